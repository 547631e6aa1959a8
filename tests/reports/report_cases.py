"""Synthetic results of every size and oddity that the faces must be able to show."""

import math

import torch

from theta0._records import Record
from theta0.comparison.results import Candidate, Comparison, Standing, TuningRun
from theta0.curvature.learning_rate import LearningRate, RateRun
from theta0.diagnosis.results import Diagnosis, Finding, Severity
from theta0.experiments.probe import ExperimentRun
from theta0.explanation.results import Explanation, Proof
from theta0.spectra import Spectrum, SpectrumChange
from theta0.treatment.results import Attempt, Run, Treatment

TARGET = "examples/deep_sigmoid.py"
QUANTILES = {"q01": -2.33, "q25": -0.67, "q50": 0.0, "q75": 0.67, "q99": 2.33}  # of a standard normal


def layer_records(
    layer: str,
    mean: float,
    variance: float,
    shift: float,
    gradient: float,
    saturated: float = 0.0,
    samples: float = 0.5,
) -> list[Record]:
    deviation, slope = math.sqrt(variance), math.sqrt(gradient)
    values = {
        "preactivation_mean": mean,
        "preactivation_variance": variance,
        "between_unit_variance": shift * variance,
        "within_unit_variance": (1 - shift) * variance,
        "shift_share": shift,
        "sample_share": samples,
        "preactivation_max": abs(mean) + 3 * deviation,
        **{f"preactivation_{name}": mean + z * deviation for name, z in QUANTILES.items()},
        "gradient_variance": gradient,
        **{f"gradient_{name}": z * slope for name, z in QUANTILES.items()},
        "forward_factor": 0.0434,
        "backward_factor": 0.0448,
        "dead_share": 0.0,
        "saturated_share": saturated,
        "weight_gradient_norm": 10 * slope,
    }
    return [Record(layer, quantity, value) for quantity, value in values.items()]


def finding(code: str, layer: str, value: float, threshold: float, severity: Severity = "error", **changes) -> Finding:
    texts = {
        "message": f"The number at {layer or 'the network'} says {code}, so the layers before it learn nothing. "
        "Constrain the weights of each layer to zero sums and scale every layer to unit variance.",
        "remedy": f"theta0 treat {TARGET} --with lcw --out start.safetensors",
        "source": "kutsuna2019lcw, Prop. 2",
    }
    return Finding(code, severity, layer, value, threshold, **{**texts, **changes})


def deep_sigmoid(depth: int = 20) -> Diagnosis:
    """A default start: the shift takes over from the second layer on, the gradient loses 1.4 decades a layer."""
    records = [
        Record("", "loss", 2.3412),
        Record("", "loss_constant", 2.3026),
        Record("", "output_sample_std", 3.1e-9),
    ]
    names = [f"hidden.{i}" for i in range(depth)] + ["output"]
    for i, name in enumerate(names):
        wobble = 1 + 0.2 * math.sin(3 * i)
        shift = 0.02 if i == 0 else 1 - 0.3 * 10.0 ** (-0.6 * i)
        gradient = 1e-4 * wobble * 10.0 ** (-1.4 * (depth - i))
        samples = 0.98 * 10.0 ** (-0.4 * i)
        records += layer_records(name, 0.1 * wobble, 0.16 * wobble, shift, gradient, samples=samples)
    findings = (
        finding("activation-shift", "hidden.1", 0.9246, 0.5, layers=tuple(names[1:])),
        finding(
            "vanishing-gradients", names[-3], 1.9e-7, 1e-3, source="ratio of gradient variances, output to layer",
            layers=tuple(reversed(names[:-2])), cause="activation-shift",
        ),
        finding(
            "constant-output", "", 3.1e-9, 1e-4, source="measured: healthy starts lie above 0.05",
            cause="vanishing-gradients",
        ),
        finding("initial-loss", "", 2.3412, 2.3257, "note", remedy="", source="ln 10, the best constant prediction"),
    )  # fmt: skip
    return Diagnosis(tuple(records), findings, 3.24)


def healthy(depth: int = 20) -> Diagnosis:
    records = [Record("", "loss", 2.4), Record("", "loss_constant", 2.3026), Record("", "output_sample_std", 0.97)]
    for i, name in enumerate([f"hidden.{i}" for i in range(depth)] + ["output"]):
        gradient = 2e-6 * 1.03 ** (depth - i)
        records += layer_records(name, 0.01, 1.0 + 0.01 * math.sin(i), 0.03, gradient, saturated=0.01, samples=0.9)
    note = finding(
        "initial-loss", "", 2.4, 2.3257, "note", remedy="", source="ln 10, the best constant prediction",
        message="The first loss is 4 % above that of a constant prediction. Nothing needs to be done.",
    )  # fmt: skip
    return Diagnosis(tuple(records), (note,), 3.1)


def short_run(end: float, held_out: float, steps: int = 100) -> Run:
    losses = tuple(end + (2.34 - end) * math.exp(-i / 30) + 0.06 * math.sin(7.3 * i) for i in range(steps))
    return Run("momentum", 0.1, losses, held_out, 2.35)


def kept(depth: int = 20) -> Treatment:
    before, after, run = deep_sigmoid(depth), healthy(depth), short_run(0.1, 0.1719)
    passed_over = Attempt("unit-variance", before, short_run(2.30, 2.31), "held-out loss no lower than as given")
    attempts = (passed_over, Attempt("lcw", after, run, "lowest held-out loss"))
    reason = "The treated start's held-out loss after the same 100 steps is lower by 2.14."
    return Treatment("lcw", before, after, True, reason, short_run(2.30, 2.3088), run, attempts, 412.5)


def not_kept() -> Treatment:
    before, run = healthy(), Run("sgd", 1.0, (2.3, 9.0, 1e4, math.inf), math.inf, 2.35)
    attempts = (
        Attempt("unit-variance", deep_sigmoid(), run, "the run diverged at step 4"),
        Attempt("lcw", None, None, "conv.0 has a fan-in of 1, which leaves no weight of zero sum"),
    )
    reason = "The treated start diverged; the weights were restored."
    return Treatment("unit-variance", before, deep_sigmoid(), False, reason, short_run(0.3, 0.41), run, attempts, 230.0)


def untried() -> Treatment:
    return Treatment("", healthy(), None, False, "No finding names a remedy.", None, None, (), 3.1)


def empty() -> Diagnosis:
    return Diagnosis((), (), 0.0)


def non_finite() -> Diagnosis:
    records = [Record("", "loss", math.nan)]
    records += layer_records("a", 0.0, 1.0, 0.1, 1e-4)
    ends = (-math.inf, -1.0, 0.0, 1.0, math.inf)
    records += [Record("b", q, math.inf) for q in ("preactivation_variance", "preactivation_max")]
    records += [Record("b", f"preactivation_{q}", v) for q, v in zip(QUANTILES, ends, strict=True)]
    records += [Record("b", f"gradient_{q}", math.nan) for q in QUANTILES]
    records += [Record("c", "weight_gradient_norm", math.nan)]
    return Diagnosis(tuple(records), (finding("non-finite", "b", math.nan, math.inf, remedy=""),), math.nan)


def hostile() -> Diagnosis:
    """Names and messages that would be markup, mathematics, control sequences or layout somewhere."""
    names = [
        "<script>alert(1)</script>",
        "[bold]x[/bold]",
        "$\\frac{$",
        "\x1b[31mred",
        "a&b\"'",
        "{{ 7 * 7 }}",
        "層.0",
        "x" * 200,
    ]
    records = [r for i, name in enumerate(names) for r in layer_records(name, 0.0, 1.0, 0.1 * i, 1e-4)]
    findings = tuple(
        finding(
            "activation-shift",
            name,
            0.9,
            0.5,
            "warning",
            message=f"In {name} <b>it</b> [red]begins[/red].",
            remedy=name,
        )
        for name in names
    )
    return Diagnosis(tuple(records), findings, 3.0)


def many_findings(amount: int = 40) -> Diagnosis:
    whole = deep_sigmoid(60)
    findings = tuple(finding("saturated-units", f"hidden.{i}", 0.9, 0.5, "warning") for i in range(amount))
    return Diagnosis(whole.records, findings, 3.0)


def laborious() -> Treatment:
    """Much was found, much was tried, much is left."""
    many, run = many_findings(), short_run(2.3, 2.31)
    attempts = tuple(Attempt(f"remedy-{i}", many, run, "held-out loss no lower than as given") for i in range(6))
    return Treatment("remedy-0", many, many, True, "Least bad.", run, run, attempts, 1e4)


def explained() -> Explanation:
    """One module at fault, on two seeds; the run as given is not the first that was made."""
    losses = tuple(2.3 - 0.01 * i for i in range(10))
    given = ExperimentRun("nothing changed", "adam", 1e-3, losses, 2.2, "undecided")
    changed = ExperimentRun("`blocks.3` re-initialized", "adam", 1e-3, tuple(v / 2 for v in losses), 0.9, "trains")
    proof = Proof("`blocks.3` re-initialized", "blocks.3", (given, given), (changed, changed))
    left = {"embedding": "its values are pretrained"}
    return Explanation(proof.sentence, False, proof, (changed, given), (), left, deep_sigmoid(), 120.0)


def raced(starts: int = 7) -> Comparison:
    names = ["lcw", "default", *(f"another-start-{i}" for i in range(starts - 2))]
    standings = tuple(
        Standing(name, 0.1, (short_run(0.1 + i / 5, 0.2 + i / 5), short_run(0.1, 0.21 + i / 5)), (0, 1), 1.0)
        for i, name in enumerate(names)
    )
    candidates = tuple(Candidate(name, 0.2, (0.1, 0.2), 0.1, 3.0, "") for name in names)
    failed = Candidate("redraw", None, (), 0.0, None, "expected units that are copies, got none")
    tuning = tuple(TuningRun(name, 0.1, 25, short_run(0.3, 0.4, 25)) for name in names)
    return Comparison(standings, (*candidates, failed), tuning, "sgd", 100, True, True, 812.0, 3.0)


def rated() -> LearningRate:
    runs = (
        RateRun(0.001, (2.3, 2.2, 2.1), "waits"),
        RateRun(0.01, (2.3, 1.2, 0.4), "trains"),
        RateRun(1.0, (2.3, 9.0, math.inf), "diverges"),
    )
    reason, advice = "the least loss after 3 steps, 0.4 from 2.3", ("A higher rate may train better if raised.",)
    return LearningRate(
        0.01, 0.2, 9.28, 1e-4, 7, 31.0, None, "adam", "ggn", (8.9, 9.3), (), True, runs, True, 1.2, None, reason, advice
    )


def spectra() -> SpectrumChange:
    amplitudes = torch.tensor([[1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.007, 0.003]])
    start, trained = (Spectrum(torch.arange(9.0), factor * amplitudes, "hann") for factor in (1.0, 2.0))
    losses = {"no penalty": (2.3, 1.1), "l2": (2.3, 1.4)}
    return SpectrumChange((0, 1), start, {"no penalty": trained, "l2": start}, losses, "sgd", 0.1)
