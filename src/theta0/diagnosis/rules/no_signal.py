"""Labels that carry no information: all the same, independent of the inputs, or learned only by heart."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from theta0._moments import fetched
from theta0.diagnosis.evidence import BY_HEART, Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.experiments.mismatched_pairs import CHANCE as LOST
from theta0.experiments.mismatched_pairs import CLEAR as FOUND
from theta0.experiments.shuffled_labels import LEAST_SAMPLES, PERMUTATIONS
from theta0.measurements.dependence import CLEAR, MOST
from theta0.measurements.label_order import label_order
from theta0.measurements.turned_targets import turned_targets

FASTER = 0.5  # of what the real labels gain over permuted ones: there is something to learn
ADVANTAGE = 0.1  # of what the real labels gain over permuted ones
LEAST_ALIKE = 8  # samples
LEAST_BATCHES, FEW_CLASSES = 3, 2.5  # batches; different labels in a batch, on average
RARE, COLUMNS = 0.25, 8  # different categories over all that are given; of a table, at most: more are a sequence
FEW = 0.25  # different samples over all, within batches
TURNED = 0.25  # of the samples
SORTED = 0.5  # of what the number of a batch could say of the labels at most
LEAST_PAIRS = 128  # rows of batches not trained on
CHANCE = 2.5  # standard deviations above permuted targets: no dependence is seen


def judge(evidence: Evidence) -> Finding | None:
    """Whether the labels differ, and by how much real ones are learned better than the best of the permuted ones."""
    found = _all_the_same(evidence) or _few_samples(evidence) or _sorted(evidence) or _turned(evidence)
    if found is not None:
        return found
    rare = evidence.hardly_learnt and _categories_are_rare(evidence)
    open_ = rare or (_hidden(evidence) and _learnt_faster(evidence))
    if not rare:
        found = (None if open_ else _independent(evidence)) or _by_heart(evidence) or _mismatched(evidence)
    if open_ and found is None:  # a finding answers the question
        evidence.not_measured.append(_UNDECIDED)
    return found


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding | None:
    """What short runs do not learn says nothing of the labels where data out of scale or an error explain it."""
    explained = any(o.code == "input-scale" or (o.severity == "error" and o.code != "does-not-train") for o in others)
    return None if finding.severity == "warning" and explained else finding


def _turned(evidence: Evidence) -> Finding | None:
    """Images and masks that were flipped or turned apart."""
    found = turned_targets(evidence.batches)
    if found is None or found.share < TURNED:
        return None
    return Finding(
        code="no-signal",
        severity="error" if evidence.training is None else "warning",
        layer="",
        value=found.share,
        quantity="share of samples",
        threshold=TURNED,
        message=(
            f"{found.share:.0%} of {found.samples} targets fit their inputs better after a flip or a turn, not all "
            f"after the same one: the mean correlation over the places is {found.given:.2g} as they are, and "
            f"{found.fit:.2g} after each one's best. Inputs and targets are augmented apart: draw once for both, or "
            "give both to the augmentation together."
        ),
        remedy="# look at a few inputs with their targets laid over them",
        source=MEASURED,
    )


def _categories_are_rare(evidence: Evidence) -> bool:
    """Whether inputs are numbers of categories most of which come once or twice, of which nothing can be learnt."""
    flat = [tree_flatten(batch.inputs)[0] for batch in evidence.batches]
    for leaves in zip(*flat, strict=False):
        known = [t for t in leaves if isinstance(t, Tensor) and t.dtype in (torch.int32, torch.int64) and t.dim()]
        if len(known) < len(flat) or len({t.shape[1:] for t in known}) > 1:
            continue
        whole = torch.cat([t.long() for t in known])
        columns = list(whole.T) if whole.dim() == 2 and whole.shape[1] <= COLUMNS else [whole.flatten()]
        shares = [len(torch.unique(column)) / len(column) for column in columns]
        if sum(shares) / len(shares) > RARE:
            return True
    return False


def _hidden(evidence: Evidence) -> bool:
    """Whether short runs hardly learn the targets, and these do not depend on the inputs in the samples at hand."""
    if not evidence.hardly_learnt or not _are_compared(evidence):
        return False
    return evidence.dependence is not None and evidence.dependence < CHANCE


def _learnt_faster(evidence: Evidence) -> bool:
    """Whether short runs learn the real targets better than permuted ones all the same."""
    shuffled, learnt = evidence.shuffled_labels, evidence.learnt_dependence
    return (shuffled is not None and shuffled.advantage >= FASTER) or (learnt is not None and learnt >= CLEAR)


def _independent(evidence: Evidence) -> Finding | None:
    found = evidence.dependence if _hidden(evidence) else None  # asked for where little is learned: it costs a pass
    if found is None:
        return None
    samples = min(sum(batch.size for batch in evidence.batches), MOST)
    return Finding(
        code="no-signal",
        severity="warning",
        layer="",
        value=found,
        threshold=CHANCE,
        message=(
            f"In {samples} samples no dependence of targets on inputs is seen (distance covariance: {found:.2g} "
            "standard deviations above that of permuted targets), and a short run learns almost nothing. Check whether "
            "inputs and labels still belong together (a shuffle, a sort or a join that moved one of them), and whether "
            "the inputs still hold what the labels are about (a clamp, a crop, an index)."
        ),
        remedy="# compare a few inputs with their labels by eye",
        source=f"Székely, Rizzo & Bakirov (2007); {MEASURED}",
    )


_UNDECIDED = (
    "Whether the targets depend on the inputs is undecided: the samples do not show it by themselves, and short runs "
    "learn little, but more than from permuted targets."
)


def _by_heart(evidence: Evidence) -> Finding | None:
    if evidence.hardly_learnt and evidence.dependence is not None and evidence.dependence >= CLEAR:
        return None
    found = evidence.shuffled_labels
    if found is None or len(found.permuted) < PERMUTATIONS or not found.advantage < ADVANTAGE:
        return None
    if evidence.learnt_dependence is not None and evidence.learnt_dependence >= CLEAR:
        return None  # on samples that were not trained on, outputs follow the targets
    return Finding(
        code="no-signal",
        severity="warning",
        layer="",
        value=found.advantage,
        threshold=ADVANTAGE,
        message=(
            f"The labels are learned no faster than the same labels permuted among the samples (loss {found.real:.3g} "
            f"and {min(found.permuted):.3g} after {len(found.losses[0])} steps, {found.constant:.3g} without looking): "
            "the network memorizes the samples. Check whether inputs and labels still belong together: a shuffle, "
            "a sort or a join that moved one of them."
        ),
        remedy="# compare a few inputs with their labels by eye",
        source=MEASURED,
    )


def _mismatched(evidence: Evidence) -> Finding | None:
    """Pairs of a contrastive loss of which some are learnt, and say nothing of others."""
    found = evidence.pairing
    if found is None or found.learnt is None or found.held_out is None or found.rows < LEAST_PAIRS:
        return None
    if found.learnt < FOUND or found.held_out >= LOST or _categories_are_rare(evidence):
        return None
    return Finding(
        code="no-signal",
        severity="warning",
        layer="",
        value=found.held_out,
        threshold=LOST,
        message=(
            f"The pairs of this contrastive loss do not seem to belong together: after {found.steps} steps on half of "
            f"the batches their partners are found ({found.learnt:.3g} standard deviations above chance), those of "
            f"other batches are not ({found.held_out:.2g}, {found.rows} rows): the network memorizes the pairs. "
            "See whether row i of one view belongs to row i of the other: a shuffle, a sort or a loader of each view's "
            "own moves them apart."
        ),
        remedy="# compare a few pairs by eye",
        source=f"the ranks of partners in batches not trained on; {MEASURED}",
    )


def _all_the_same(evidence: Evidence) -> Finding | None:
    targets = [batch.targets for batch in evidence.batches]
    known = fetched([t.detach() for t in targets if isinstance(t, Tensor) and t.dim()])
    if len(known) < len(targets):
        return None
    said = _one_label(known) if evidence.inspection.labelled else ""
    if not said and _are_compared(evidence):
        said = _one_target(known, [batch.size for batch in evidence.batches])
    if not said:
        return None
    return Finding(
        code="no-signal",
        severity="error",
        layer="",
        value=0.0,
        threshold=0.0,
        message=(
            f"{said}: their entropy is zero, and a constant output is perfect. Look at how labels are read, and "
            "shuffle data that are sorted by class."
        ),
        remedy="",
        source="the entropy of the labels",
    )


def _few_samples(evidence: Evidence) -> Finding | None:
    """Batches in which the same few samples come again and again, of data that are amounts."""
    rows = different = 0
    for batch in evidence.batches:
        leaves = [t for t in tree_flatten((batch.inputs, batch.targets))[0] if isinstance(t, Tensor) and t.dim()]
        whole = [t.detach().flatten(1) if t.dim() > 1 else t[:, None] for t in leaves if _is_dense(t, batch.size)]
        amounts = [
            t for t in whole if t.is_floating_point() and bool((t[:LEAST_ALIKE] != t[:LEAST_ALIKE].round()).any())
        ]
        if batch.size < LEAST_ALIKE or not amounts:
            return None
        rows += batch.size
        different += len(torch.unique(torch.cat([_fingerprint(t) for t in whole], 1), dim=0))
    if different > FEW * rows:
        return None
    return Finding(
        code="no-signal",
        severity="warning",
        layer="",
        value=different / rows,
        threshold=FEW,
        message=(
            f"The same few samples come again and again: within the batches {different} of {rows} rows are different. "
            "The network memorizes these. Look at the sampler (WeightedRandomSampler takes one weight a sample, "
            "weights[labels], not one a class), and at the index that the data are read with."
        ),
        remedy="sampler = WeightedRandomSampler(weights[labels], num_samples=len(labels))",
        source="the rows of each batch, inputs and targets, counted; threshold: judgement",
    )


def _fingerprint(rows: Tensor) -> Tensor:
    """Three numbers of each row, which those of no other share but by chance; no copy of the data."""
    wide = torch.float64
    largest = rows.amax(1).to(wide) if rows.shape[1] else torch.zeros(len(rows), dtype=wide, device=rows.device)
    real = rows if rows.is_floating_point() else rows.to(wide)
    return torch.stack((rows.sum(1, dtype=wide), torch.linalg.vector_norm(real, dim=1, dtype=wide), largest), 1).cpu()


def _is_dense(leaf: Tensor, rows: int) -> bool:
    return len(leaf) == rows and leaf.layout is torch.strided and not leaf.is_complex()


def _sorted(evidence: Evidence) -> Finding | None:
    """Batches of one or two classes each, other ones in each: the data are read class by class."""
    targets = [batch.targets for batch in evidence.batches]
    known = [t.detach() for t in targets if isinstance(t, Tensor) and t.dim() == 1 and not t.is_floating_point()]
    sizes = [len(t) for t in known]
    if len(known) < max(len(targets), LEAST_BATCHES) or min(sizes) < LEAST_ALIKE or not evidence.inspection.labelled:
        return None
    known = fetched(known)
    share, classes = label_order(known)
    if share < SORTED or classes > FEW_CLASSES:
        return None
    return Finding(
        code="no-signal",
        severity="error" if classes == 1 else "warning",
        layer="",
        value=share,
        threshold=SORTED,
        message=(
            f"The batches are sorted by class: each has {classes:.2g} of the {len(torch.unique(torch.cat(known)))} "
            f"classes seen, on average, and which batch a sample is in says {share:.0%} of its label. Each step learns "
            "the classes at hand and forgets the others. Shuffle the data: DataLoader(..., shuffle=True)."
        ),
        remedy="loader = DataLoader(dataset, batch_size=..., shuffle=True)",
        source="the mutual information of batch and label; judgement",
    )


def _one_label(targets: list[Tensor]) -> str:
    labels = torch.cat([t.flatten() for t in targets])
    labels = labels[labels != -100]
    same = labels.numel() > 1 and bool((labels == labels[0]).all())
    return f"All {labels.numel():,} labels are {float(labels[0]):g}" if same else ""


def _one_target(targets: list[Tensor], sizes: list[int]) -> str:
    """Samples whose targets, of several numbers or none that is a class, are all the same."""
    rows = [len(t) for t in targets]
    if rows != sizes or sum(rows) < LEAST_ALIKE or len({t.shape[1:] for t in targets}) > 1:
        return ""
    first = targets[0][:1]
    if not bool((first != 0).any()) or not all(bool((t == first).all()) for t in targets):
        return ""  # a residual is compared with zero on purpose
    return f"The targets of all {sum(rows):,} samples are the same"


def _are_compared(evidence: Evidence) -> bool:
    """Whether the loss holds the targets against the outputs."""
    return evidence.inspection.labelled or bool(evidence.inspection.comparisons)


RULE = Rule(
    code="no-signal",
    judge=judge,
    place=Place.DATA,
    brings=frozenset({"initial-loss", "constant-output", "learning-rate-too-low"}),
    fault="the data",
    revise=revise,
    doc=RuleDoc(
        meaning="The targets do not belong to the inputs (labels that do not depend on them, masks that are flipped "
        "or turned against their images), or labels are sorted by class. What the network learns will not generalize.",
        why="The data are sorted by class and not shuffled, a sampler draws the same few samples, a label column was "
        "read wrongly, or a threshold puts all samples on one side. Or inputs and labels, or the two views of a pair, "
        "were shuffled, sorted, filtered, or flipped at random, separately.",
        numbers=(
            (
                "the entropy of the labels over all batches, or of targets that the loss compares with outputs "
                f"({LEAST_ALIKE} samples or more, not all zero)",
                "error at 0",
                "definition",
            ),
            (
                "the number of different rows, of inputs and targets together, divided by the number of all rows, "
                f"within batches of {LEAST_ALIKE} samples or more, where inputs are amounts and not whole numbers",
                f"warning at {FEW:g} or less",
                "drawn without replacement they give 1, with it 0.63 or more of a data set as large as the batch",
            ),
            (
                "the share of images whose map of targets over the same places correlates clearly better with them "
                "after a flip or a quarter turn, not all after the same one; asked where maps fit their own "
                "images better than others'",
                f"warning from {TURNED:g}; error where a short run does not train",
                "measured",
            ),
            (
                "how much the batch that a sample is in says about its label, as a share of the most that it could "
                "say, where "
                f"{LEAST_BATCHES} batches or more have {FEW_CLASSES:g} different labels or fewer, on average",
                f"warning at {SORTED:g}; error if every batch has one class",
                "judgement",
            ),
            (
                "the distance covariance with the targets, in standard deviations above that of permuted targets: of"
                " the inputs, of their single features, of the outputs before training, and of the outputs on half "
                "of the batches after training on the others. "
                f"It is judged where no short run gains {BY_HEART:.0%} of what there is to learn and there are "
                f"{LEAST_SAMPLES} samples",
                f"warning if all are below {CHANCE:g} (after training: {CLEAR:g}), unless the real targets are "
                f"learned faster than permuted ones by {FASTER:.0%}",
                "Székely, Rizzo & Bakirov (2007); measured",
            ),
            (
                "how much further the loss falls with the real labels than with permuted ones in the same short run,"
                " as a share, "
                f"where that run gained less than {BY_HEART:.0%} of what there is to learn and there are "
                f"{LEAST_SAMPLES} samples",
                f"warning below {ADVANTAGE:g} on each of {PERMUTATIONS} permutations, unless the distance covariance "
                f"is {CLEAR:g} or more",
                "judgement",
            ),
            (
                "of a loss that tells the samples of a batch apart (each row has another row as its target): how "
                "well partners are found in batches that were not trained on, in standard deviations above chance, "
                f"where those that were trained on are found with {FOUND:g} standard deviations and there are "
                f"{LEAST_PAIRS} rows",
                f"warning below {LOST:g}",
                "measured: pairs that belong together had 2.2 to 19.5, others -1.6 to 2",
            ),
        ),
        fix="batches = [(x, x[:, :3].argmax(1)) for x, _ in batches]  # the labels that belong to these inputs",
        command="compare a few inputs with their labels by eye, and shuffle both with one index: "
        "`i = torch.randperm(len(x))`, then `x, y = x[i], y[i]`.",
        ill="""
            model, batches = nn.Linear(8, 3), [(inputs, torch.zeros(64, dtype=torch.long))]
        """,
        healthy="""
            model, batches = nn.Linear(8, 3), [(inputs, inputs[:, :3].argmax(1))]
        """,
        ignore="You can ignore it where the batches contain one class on purpose, or where they are few and their "
        "signal is weak: a larger `max_batches` shows it. Where inputs are categories most of which occur "
        "once or twice, nothing is reported.",
        measured="On 19 small healthy problems of many kinds the larger separation, of inputs or outputs, was 4.4 to "
        "170, on permuted, rolled and reversed targets of the same -0.5 to 1.9, with 64 to 256 samples.",
    ),
)
