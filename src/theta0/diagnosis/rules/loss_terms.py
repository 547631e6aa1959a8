"""A term of the loss whose gradient dwarfs the others', or is exactly zero."""

import math

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.experiments.opposed_terms import DWARFED
from theta0.experiments.weight_decay import PULL, SHRINKING
from theta0.measurements.gradient_paths import GradientPaths

RATIO = 1e4  # penalties are often 1e3 smaller by design
COSTS = 3.0  # times what comparisons with data gain: what other terms rise meanwhile
GAIN, RISE = 0.02, 0.3  # of the comparisons' first value: gained without the others, and lost by them
HELD_BACK = 0.95  # of what the comparisons gain in all: what they gain in the sum
DECAY, LEARNT = 3.0, 0.05  # times as much is learnt without weight decay; of the first loss, at least
_MOST = 1e3  # times as much: beyond, nothing is learnt with it
LITTLE = 0.15  # of the best constant outputs' loss: what the best outputs of all gain beyond it


def judge(evidence: Evidence) -> list[Finding]:
    """A sum that leaves nothing to learn; else the largest gradient over the smallest, and those that are zero."""
    decayed = _decay(evidence)
    if decayed is not None:
        return [decayed]
    paths = evidence.paths
    if paths is None or len(paths.terms) < 2:
        return []
    found = _opposed(evidence) or _outweighed(evidence, paths)
    return [found] if found is not None else _by_gradients(paths)


def _decay(evidence: Evidence) -> Finding | None:
    """Weight decay is a term of what is trained on: without it the same steps learn much more."""
    runs = evidence.decay_runs
    if runs is None:
        return None
    gained, held = runs.first - runs.free, max(runs.first - runs.held, 0.0)
    if gained < LEARNT * abs(runs.first) or gained < DECAY * held:
        return None
    kind = evidence.probed
    pull = (
        f"each step takes {evidence.rate * kind.decay:.2g} of the weights away"  # type: ignore[operator]
        if kind.decoupled
        else f"at the start it pulls {evidence.decay_pull:.2g} times as strongly as the loss's gradient"
    )
    return Finding(
        code="loss-terms",
        severity="error",
        layer="",
        value=gained / max(held, gained / _MOST),
        threshold=DECAY,
        message=(
            f"Weight decay holds the network back: with weight_decay={kind.decay:g} the loss goes from "
            f"{runs.first:.3g} to {runs.held:.3g} in {runs.steps} steps, without it to {runs.free:.3g}; {pull}. Lower "
            "weight_decay: 1e-5 to 1e-2 is usual."
        ),
        remedy='for group in optimizer.param_groups: group["weight_decay"] = 1e-4',
        source=f"short runs with weight decay and without it; {MEASURED}",
    )


def _opposed(evidence: Evidence) -> Finding | None:
    """Training on the sum leaves the targets alone, and learning from them costs much more than it gains."""
    found = evidence.opposed_terms
    if found is None or found.operation is None:
        return None
    first, joint, alone = found.fits
    learns = found.gained > GAIN * abs(first) and first - joint < HELD_BACK * (first - alone)
    learns = learns and found.others[2] - found.others[1] > RISE * abs(first)
    if not learns or found.ratio < COSTS:
        return None
    return Finding(
        code="loss-terms",
        severity="error",
        layer="",
        value=found.ratio,
        threshold=COSTS,
        message=(
            f"In {found.steps} steps on the sum, what compares outputs with data falls from {first:.3g} to "
            f"{joint:.3g}; in "
            f"{found.steps} more on that alone it falls to {alone:.3g}, and the other terms rise from "
            f"{found.others[1]:.3g} to {found.others[2]:.3g}, {found.ratio:.2g} times as much: what can be learned "
            "from the "
            f"data costs more than it gains. The one that rises most is `{found.operation.name}` "
            f"({found.operation.line or 'no line known'}). Reduce both in the same way, as sums over entries and "
            "means over samples, or lower its weight."
        ),
        remedy="",
        source="short runs on the sum and on a part of it; threshold: judgement",
        source_line=found.operation.line,
    )


def _outweighed(evidence: Evidence, paths: GradientPaths) -> Finding | None:
    """With outputs chosen freely the sum is hardly less than with the best that are the same for every sample."""
    free = evidence.free_outputs
    if free is None or free.constant is None or free.least is None or not math.isfinite(free.least):
        return None
    share = (free.constant - free.least) / free.constant if free.constant > 0 else math.inf
    alive = [(norm, term) for norm, term in zip(paths.norms, paths.terms, strict=True) if norm]
    if not share < LITTLE or len(alive) < 2:
        return None
    _, large = max(alive, key=lambda a: a[0])
    return Finding(
        code="loss-terms",
        severity="warning",
        layer="",
        value=share,
        threshold=LITTLE,
        message=(
            f"The best outputs that are the same for every sample reach {free.constant:.3g}, and any outputs at all "
            f"{free.least:.3g}: the sum of the loss's {len(paths.terms)} terms leaves almost nothing to learn from "
            f"the targets. The largest gradient is that of `{large.operation.name}` "
            f"({large.operation.line or 'no line known'}); lower its weight."
        ),
        remedy="",
        source="the least loss with free outputs, by L-BFGS; threshold: judgement",
        source_line=large.operation.line,
    )


def _by_gradients(paths: GradientPaths) -> list[Finding]:
    cut = {c.term for c in paths.cuts}
    known = [
        (n, t) for i, (n, t) in enumerate(zip(paths.norms, paths.terms, strict=True)) if n is not None and i not in cut
    ]
    alive = [(norm, term) for norm, term in known if norm > 0]
    found = [
        Finding(
            code="loss-terms",
            severity="note",
            layer="",
            value=0.0,
            threshold=0.0,
            message=(
                f"The term `{term.operation.name}` of the loss ({term.value:.3g}) has a gradient of exactly zero: "
                "it trains nothing at this start. Look at the factor before it, or at what it is taken of."
            ),
            remedy="",
            source="the gradient of each term",
            source_line=term.operation.line,
        )
        for norm, term in known
        if norm == 0
    ]
    if len(alive) > 1:
        (largest, first), (smallest, last) = max(alive, key=lambda a: a[0]), min(alive, key=lambda a: a[0])
        if largest > RATIO * smallest:
            found.insert(0, _dwarfed(largest / smallest, first, last))
    return found


def _dwarfed(ratio: float, first: object, last: object) -> Finding:
    large, small = first.operation, last.operation  # type: ignore[attr-defined]
    return Finding(
        code="loss-terms",
        severity="note",
        layer="",
        value=ratio,
        threshold=RATIO,
        message=(
            f"The gradient of the term `{large.name}` ({large.line or 'no line known'}) is {ratio:.2g} times that "
            f"of `{small.name}` ({small.line or 'no line known'}): training follows the first alone. For a penalty "
            "that is common and no fault. If both are meant to count, weight them so that their gradients are within a "
            "few powers of ten; take both as means over entries, or both as sums."
        ),
        remedy="",
        source="the gradient of each term; threshold: judgement",
        source_line=large.line,
    )


RULE = Rule(
    code="loss-terms",
    judge=judge,
    place=Place.LOSS,
    fault="the output and the loss",
    doc=RuleDoc(
        meaning="One term of the loss outweighs all others, so that it alone decides what is learned; or one term "
        "has no effect.",
        why="One term is a sum over entries where the other is a mean, the terms have different units, or a "
        "weight is wrong by powers of ten. A gradient of exactly zero comes from a weight of zero, or from "
        "a penalty that is not active yet. Weight decay is such a term too: the optimizer adds it.",
        numbers=(
            (
                f"with weight decay that pulls on the weights more than {PULL:g} times as strongly as the loss's "
                f"gradient, or takes more than {SHRINKING:.0%} of them in a step: how far the loss falls without it in "
                f"a short run ({LEARNT:.0%} of the first loss or more), divided by its fall with it",
                f"error at {DECAY:g}",
                "measured: of two ReLU networks of three layers none with 0.01 or less in Adam or SGD",
            ),
            (
                "the terms that compare outputs with data, against the other terms (penalties), where the gradient of "
                f"these is {DWARFED:g} times as large. After a short run on the sum, another run goes on with the "
                "terms on data alone: how much the penalties rise in it, divided by how much the terms on data fall. "
                f"It is judged where the run on the sum makes less than {HELD_BACK:.0%} of the fall that both make. "
                "Losses that contain derivatives are left out",
                f"error at {COSTS:g}",
                "judgement",
            ),
            (
                "how much lower the loss of the best outputs of all is than that of the best constant outputs, as a "
                "share of the latter",
                f"warning below {LITTLE:g}",
                "L-BFGS on the outputs; judgement",
            ),
            (
                "the gradient norm of the largest term, divided by that of the smallest",
                f"note above {RATIO:,.0f}; note for a term whose gradient is exactly zero",
                "penalties a thousand times smaller are common by design; judgement",
            ),
        ),
        fix="""
            def loss(outputs, targets):
                return nn.functional.cross_entropy(outputs, targets) + 1e-3 * outputs.square().mean()
        """,
        command="give the terms of the loss weights.",
        ill="""
            model = nn.Linear(8, 3)

            def loss(outputs, targets):
                return nn.functional.cross_entropy(outputs, targets) + 1e4 * outputs.square().sum()
        """,
        healthy="""
            model = nn.Linear(8, 3)

            def loss(outputs, targets):
                return nn.functional.cross_entropy(outputs, targets) + 1e-3 * outputs.square().mean()
        """,
        ignore="You can ignore it where the small term only breaks ties, or is increased by a schedule.",
    ),
)
