"""Data far from unit scale that meet weights made for unit scale, or that carry nothing to the first weight."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from theta0._models import StepInputs, without_labels
from theta0._moments import floats
from theta0.diagnosis.consequences import SCALE, SILENCE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import MEASURED, Finding, Severity
from theta0.diagnosis.rule import Place, Rule, RuleDoc, error_codes
from theta0.measurements.inspection import FirstInput

LARGE = 30.0  # root mean square of the data
LARGE_OUTPUT = 10.0  # root mean square of what the first layer makes of them
SMALL = 0.01  # the largest magnitude
ALIKE = 1e-3  # standard deviation between samples over root mean square
FAR = 0.05  # the same, where no short run trains
UNEVEN, COLUMNS = 1e3, 3  # times the median column's deviation, where no short run trains; columns
SILENT = 0.5  # of the samples
REPEATED = 4  # samples of a step, at least


def judge(evidence: Evidence) -> Finding | None:
    """Data that change as they are read, are too large, too small or the same, or are lost before the first weight."""
    return (
        _changed(evidence)
        or _large(evidence)
        or _constant(evidence)
        or _lost(evidence)
        or _small(evidence)
        or _uneven(evidence)
    )


def _changed(evidence: Evidence) -> Finding | None:
    """What the data set stores is changed in place each time it is read."""
    line = evidence.observed.data_changed
    if not line:
        return None
    what = (
        "The values that the data set stores are changed in place each time they are read: from the second epoch on "
        "the inputs have been changed twice, then three times. Change a copy: x = x.sub(mean), not x.sub_(mean) or "
        "x -= mean, or clone() first."
    )
    found = _finding("error", [""], (1.0, 0.0), what, remedy="")
    return replace(
        found,
        quantity="data changed as they are read",
        source="what was written while samples were read; exact",
        source_line=line,
    )


def _large(evidence: Evidence) -> Finding | None:
    """Large data, no normalization behind them, and a first layer that is as far off."""
    large = [
        found
        for found in evidence.inspection.inputs
        if found.rms > LARGE and not found.normalised and _size(evidence.table.get(found.layer, {})) > LARGE_OUTPUT
    ]
    if not large:
        return None
    first = large[0]
    return _finding(
        "warning",
        [found.layer for found in large],
        (first.rms, LARGE),
        f"The data reach layer {first.layer!r} with root mean square {first.rms:.3g} and mean {first.mean:.3g}, "
        "where weights are drawn for about 1; the layer's output is as far off. "
        "Standardize the inputs to mean 0 and standard deviation 1, then diagnose again.",
    )


def _uneven(evidence: Evidence) -> Finding | None:
    """A column of a table far larger than the others, also where a normalization of units stands behind the weights."""
    tables = [x.double() for x in _leaves(evidence) if x.dim() == 2 and x.is_floating_point() and x.shape[1] > 1]
    if len(tables) != 1 or not evidence.nothing_trains:
        return None
    spreads = tables[0].std(0)
    varied = spreads[spreads > 0]
    if len(varied) < COLUMNS or not float(varied.max() / varied.median()) > UNEVEN:
        return None
    column, ratio = int(spreads.argmax()), float(varied.max() / varied.median())
    met = evidence.inspection.inputs
    return _finding(
        "error",
        [met[0].layer if met else ""],
        (ratio, UNEVEN),
        f"Column {column} of the inputs varies {ratio:.2g} times as much as the median column: in every unit it drowns "
        "the others, and what normalizes units afterwards does not undo that. Standardize each column to mean 0 and "
        "standard deviation 1.",
    )


def _constant(evidence: Evidence) -> Finding | None:
    """The inputs of all samples are the same, or next to it beside what they share."""
    repeated = _repeated(evidence) if isinstance(evidence.batches[0].inputs, StepInputs) else None
    if repeated is not None:
        return repeated
    spreads = _spreads(_leaves(evidence))
    if not spreads or max(spreads) >= FAR or (max(spreads) >= ALIKE and not evidence.nothing_trains):
        return None
    met, spread = evidence.inspection.inputs, max(spreads)
    layer = met[0].layer if met else ""
    if max(spreads) < ALIKE and _batches_differ(evidence):
        if not all(_alike_but_targets(evidence, number) for number in range(len(evidence.batches))):
            return None
        what = (
            "Within each batch all samples have the same inputs, though their targets differ: nothing can be told "
            "apart. Look at how the data are read and put together."
        )
        return _finding("error", [layer], (0.0, ALIKE), what, remedy="")
    if any(evidence.table.get(found.layer, {}).get("sample_share", 0.0) >= FAR for found in met):
        return None  # what the model draws itself, as a generator its noise, tells the samples apart
    if spread == 0:
        what = "All samples have the same inputs: nothing distinguishes them. Look at how the data are read."
        return _finding("error", [layer], (0.0, ALIKE), what, remedy="")
    if not met or any(found.normalised for found in met):
        return None
    what = (
        f"The inputs vary between samples by {spread:.1e} of their size: next to what they share, nothing differs. "
        "Standardize the inputs to mean 0 and standard deviation 1."
    )
    return _finding("warning", [layer], (spread, ALIKE), what)


def _repeated(evidence: Evidence) -> Finding | None:
    """Of a step: its first layer gets one sample many times, another one in each batch, beside data that differ."""
    met = [found for found in evidence.inspection.inputs if not found.constant]
    rows = min((found.rows * found.repeated for found in met), default=0)
    shares = [evidence.table.get(found.layer, {}).get("sample_share", 0.0) for found in met]
    if rows < REPEATED or max(shares) < ALIKE:
        return None
    leaves = [x for x in tree_leaves(evidence.batches[0].inputs) if isinstance(x, Tensor) and x.dim()]
    if not any(len(x) == rows and bool((x != x[:1]).any()) for x in leaves if x.layout is torch.strided):
        return None
    what = (
        f"Within a batch all {rows} samples have the same inputs, another one in each batch, though the rest of their "
        "data differ: nothing can be told apart. An array that is written to after it was stored, as the state that an "
        "environment returns, does this: store copies."
    )
    return _finding("error", [met[0].layer], (0.0, ALIKE), what, remedy="")


def _lost(evidence: Evidence) -> Finding | None:
    """What meets the first weight is zero for samples whose data are not."""
    step = isinstance(evidence.batches[0].inputs, StepInputs)  # which may give parts of its data to calls of their own
    leaves = _leaves(evidence, whole=False) if step else _leaves(evidence)
    shares = floats([(leaf.reshape(len(leaf), -1) == 0).all(1).double().mean() for leaf in leaves])
    zero = list(zip(map(len, leaves), shares, strict=True))

    def share(found: FirstInput) -> float:
        return max((silent for rows, silent in zero if not step or rows == found.rows), default=0.0 if step else 1.0)

    lost = [f for f in evidence.inspection.inputs if not f.constant and f.silent - share(f) >= SILENT]
    if not lost:
        return None
    first = lost[0]
    return _finding(
        "warning",
        [found.layer for found in lost],
        (first.silent, SILENT),
        f"For {first.silent:.0%} of the samples everything that meets the weights of {first.layer!r} is zero, though "
        "the data are not: what is computed of them before (a basis, a rectifier, a mask) is zero where they lie. "
        "Scale the inputs into the range that it covers.",
        remedy="",
    )


def _small(evidence: Evidence) -> Finding | None:
    """Data of which even the largest number is small, and no normalization behind them."""
    met = [found for found in evidence.inspection.inputs if not found.constant]
    small = [found for found in met if 0 < found.extreme < SMALL and not found.normalised]
    if not small or len(small) < len(met):
        return None
    first = small[0]
    return _finding(
        "warning",
        [found.layer for found in small],
        (first.extreme, SMALL),
        f"The largest number that reaches layer {first.layer!r} is {first.extreme:.2g}, where weights are drawn for "
        "data of about 1: biases drown what differs between samples. Standardize the inputs to mean 0 and standard "
        "deviation 1.",
    )


def _finding(
    severity: Severity,
    layers: Sequence[str],
    numbers: tuple[float, float],
    message: str,
    remedy: str = "inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-8)",
) -> Finding:
    return Finding(
        code="input-scale",
        severity=severity,
        layer=layers[0],
        value=numbers[0],
        threshold=numbers[1],
        message=message,
        remedy=remedy,
        source=f"LeCun et al. (1998), Efficient BackProp, section 4.3; threshold {MEASURED}",
        layers=tuple(layers),
    )


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding:
    """An error where one follows from it."""
    return replace(finding, severity="error") if error_codes(others) & (SCALE | SILENCE) else finding


def _leaves(evidence: Evidence, number: int = 0, *, whole: bool = True) -> list[Tensor]:
    """The inputs of a batch; where `whole`, those that have a row for each sample, of which there are several."""
    batch = evidence.batches[number]
    leaves = tree_leaves(without_labels(batch.inputs))
    dense = [x.detach() for x in leaves if isinstance(x, Tensor) and x.layout is torch.strided and x.numel()]
    return [x for x in dense if x.dim() and (not whole or len(x) == batch.size > 1)]


def _batches_differ(evidence: Evidence) -> bool:
    """Whether the first samples of the batches differ, as where each batch repeats a sample of its own."""
    first = [[x[:1] for x in _leaves(evidence, number)] for number in range(len(evidence.batches))]
    alike = [x for x in first if [y.shape for y in x] == [y.shape for y in first[0]]]
    spreads = _spreads([torch.cat(leaves) for leaves in zip(*alike, strict=True)])
    return max(spreads, default=0.0) >= ALIKE


def _alike_but_targets(evidence: Evidence, number: int) -> bool:
    """Whether a batch repeats one sample, with targets that differ."""
    targets, size = evidence.batches[number].targets, evidence.batches[number].size
    if not isinstance(targets, Tensor) or not targets.dim() or len(targets) != size:
        return False
    leaves = _leaves(evidence, number)
    return bool(leaves) and max(_spreads(leaves)) == 0 and bool((targets != targets[:1]).any())


def _spreads(leaves: Sequence[Tensor]) -> list[float]:
    """Of each leaf the standard deviation between samples over root mean square; 0 for zeros."""
    return floats([_spread(leaf) for leaf in leaves])


def _spread(leaf: Tensor) -> Tensor:
    x = leaf.double().reshape(len(leaf), -1)
    spread = x.var(0, correction=0).mean().sqrt() / x.square().mean().sqrt()
    return spread.where((x != x[:1]).any(), 0.0)


def _size(numbers: dict[str, float]) -> float:
    variance, mean = numbers.get("preactivation_variance", 0.0), numbers.get("preactivation_mean", 0.0)
    size = (variance + mean**2) ** 0.5
    return size if size == size else float("inf")  # a layer that has overflowed is large


RULE = Rule(
    code="input-scale",
    judge=judge,
    place=Place.DATA,
    brings=SCALE | SILENCE,
    fault="the data",
    revise=revise,
    refutable=True,
    doc=RuleDoc(
        meaning="The inputs are far larger than initial weights are made for: the first layer's outputs, the first "
        "loss and the curvature are too large, and bounded nonlinearities saturate. Or the inputs are far "
        "too small, or equal for all samples: the network cannot tell samples apart. Or they change from epoch to "
        "epoch, because what reads them writes to what is stored.",
        why="Raw pixels from 0 to 255, prices, timestamps or physical units are used as they are; inputs are "
        "scaled twice, or again in each epoch (`x.sub_(mean)` on what the data set holds); or a basis (splines, radial "
        "functions) does not cover the data.",
        numbers=(
            (
                "the root mean square of the data at the first layer, where no normalization follows and the layer's"
                f" output is above {LARGE_OUTPUT:g}",
                f"warning above {LARGE:g}; error where signals that are too large follow from it",
                "LeCun et al. (1998), section 4.3; judgement",
            ),
            (
                "the largest magnitude of the data at the first layer, where no normalization follows",
                f"warning below {SMALL:g}; error where signals that are too small follow from it",
                "judgement",
            ),
            (
                "the standard deviation of the inputs between samples, divided by their root mean square",
                f"error at 0, over all samples or within each batch, if the targets differ; warning below {ALIKE:g}, "
                f"or below {FAR:g} where no short run trains",
                "judgement",
            ),
            (
                "functions that change the floating values of a script's data set in place while samples are read "
                "(such as `sub_` and `div_`, in the process that trains)",
                "error from 2",
                "exact",
            ),
            (
                "of a table, the largest standard deviation of a column over the median one",
                f"error above {UNEVEN:g} where no short run trains, with {COLUMNS} columns or more that vary",
                "judgement",
            ),
            (
                "the share of samples of which only zeros arrive at a first weight, though the data are not zero",
                f"warning at {SILENT:g}; error where signals that are too small follow from it",
                "judgement",
            ),
        ),
        fix="batches = [((x - x.mean(0)) / (x.std(0) + 1e-8), y) for x, y in batches]",
        command="standardize the inputs where your script loads them.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            batches = [(inputs * 1000, targets)]
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="You can ignore it where the first weights were made for data of this scale, for example divided by it.",
    ),
)
