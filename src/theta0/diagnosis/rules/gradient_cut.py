"""An operation at which the path from the loss to trained parameters ends."""

from collections.abc import Sequence

from theta0.diagnosis.consequences import SILENCE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding, Severity
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed, whole_parts
from theta0.measurements.gradient_paths import Cut, GradientPaths
from theta0.measurements.recurrences import CutRecurrence

HALF = 0.5  # of the trained tensors, of the weights, or of the loss


def judge(evidence: Evidence) -> list[Finding]:
    """One finding for each kind of cut, for each term of the loss that is cut off, and for a recurrence that is."""
    recurrence = [] if evidence.cut_recurrence is None else [_of_recurrence(evidence.cut_recurrence)]
    paths = evidence.paths
    if paths is None:
        return recurrence
    partly = [cut for cut in paths.cuts if cut.partly]
    cuts = [cut for cut in paths.cuts if not cut.partly and (cut.kind != "zero" or cut.term is not None)]
    kinds = dict.fromkeys(cut.kind for cut in cuts if cut.term is None)
    whole = [_finding(evidence, paths, [c for c in cuts if c.kind == kind and c.term is None]) for kind in kinds]
    whole += [_codes(evidence, cut) if cut.kind == "codes" else _constant(cut, paths) for cut in partly]
    return whole + [_of_term(evidence, paths, cut) for cut in cuts if cut.term is not None] + recurrence


def _finding(evidence: Evidence, paths: GradientPaths, cuts: Sequence[Cut]) -> Finding:
    """Parameters that get no gradient by any path; the earliest of several cuts of a kind is named."""
    lost = [name for name in evidence.trained if any(name in cut.parameters for cut in cuts)]
    first = min((cut for cut in cuts), key=lambda cut: cut.operation.number)
    named = evidence.parameters
    total = sum(named[name].numel() for name in evidence.trained)
    share = max(len(lost) / len(evidence.trained), sum(named[name].numel() for name in lost) / max(1, total))
    layer = first.operation.path or first.parameters[-1].rpartition(".")[0]
    held = set(lost) - set(evidence.kind.lacking)  # what no optimizer holds is not to be trained
    parts = whole_parts(evidence, lost) if first.kind != "no_grad" else []  # what runs without gradients may be meant
    return Finding(
        code="gradient-cut",
        severity="note" if not held else "error" if share >= HALF or parts else "warning",
        layer=layer,
        value=share,
        quantity="share",
        threshold=HALF,
        message=(
            f"The gradient ends at {first.operation}: {_WHY[first.kind]}. {listed(lost)} "
            f"{'gets' if len(lost) == 1 else 'get'} none by any path and never "
            f"{'changes' if len(lost) == 1 else 'change'}{_said(parts)}. {_advice(first, paths)}"
        ),
        remedy="",
        source="the autograd graph of one step",
        layers=(layer, *lost),
        source_line=first.operation.line,
    )


def _constant(cut: Cut, paths: GradientPaths) -> Finding:
    """A derivative by an input in the loss, which the gradient of the loss leaves out, or which is zero everywhere."""
    if cut.kind == "flat":
        said = (
            f"The loss is made of a derivative that is exactly zero at every point: the one taken at {cut.operation}. "
            f"What it stands for is missing from the loss. {_advice(cut, paths)}"
        )
    else:
        said = (
            f"The loss is made of a derivative that is taken at {cut.operation} without create_graph=True: it is a "
            "constant for autograd, so that the gradient of the loss leaves out how the weights change it, and leads "
            f"elsewhere. {_ADVICE['create_graph']} Where it is meant to be a constant, say so by detach()."
        )
    return Finding(
        code="gradient-cut",
        severity="error",
        layer=cut.operation.path,
        value=1.0,
        threshold=0.0,
        message=said,
        remedy="",
        source="the autograd graph of one step",
        layers=(cut.operation.path,),
        source_line=cut.operation.line,
    )


def _codes(evidence: Evidence, cut: Cut) -> Finding:
    """An encoder that learns nothing of what its codes are decoded to."""
    learns = evidence.training is not None
    return Finding(
        code="gradient-cut",
        severity="warning" if learns else "error",
        layer=cut.operation.path,
        value=1.0,
        threshold=0.0,
        message=(
            "What is compared with the data depends on them only through the whole numbers that are made at "
            f"{cut.operation}, which have no derivative: {listed(cut.parameters)} "
            f"{'gets' if len(cut.parameters) == 1 else 'get'} no gradient of that comparison, and what other terms "
            "give leads elsewhere. Pass the gradient straight through what is looked up: "
            "z + (looked_up - z).detach()."
        ),
        remedy="",
        source="the autograd graph of one step",
        layers=(cut.operation.path, *cut.parameters),
        source_line=cut.operation.line,
    )


def _said(parts: Sequence[str]) -> str:
    return f": all of {listed(parts)}" if parts else ""


def _of_term(evidence: Evidence, paths: GradientPaths, cut: Cut) -> Finding:
    """A term of the loss that no training can lower."""
    term, loss = paths.terms[cut.term or 0], abs(evidence.network["loss"])
    share = abs(term.value) / loss if loss else 0.0
    severity: Severity = "error" if share >= HALF else "warning"
    return Finding(
        code="gradient-cut",
        severity=severity,
        layer=cut.operation.path,
        value=share,
        quantity="share of the loss",
        threshold=HALF,
        message=(
            f"The term `{term.operation.name}` of the loss ({term.value:.3g}) has no gradient: its path ends at "
            f"{cut.operation}, since {_WHY[cut.kind]}. Training cannot lower it. {_advice(cut, paths)}"
        ),
        remedy="",
        source="the autograd graph of one step",
        layers=(cut.operation.path,),
        source_line=cut.operation.line or term.operation.line,
    )


def _of_recurrence(found: CutRecurrence) -> Finding:
    """A state that keeps its values from step to step and loses its graph."""
    return Finding(
        code="gradient-cut",
        severity="warning",
        layer=found.operation.path or found.parameter.rpartition(".")[0],
        value=float(found.steps - 1),
        quantity="steps",
        threshold=0.0,
        message=(
            f"{found.parameter} is applied {found.steps} times, each time to what the last time made, and between "
            "any two "
            f"the gradient ends at {found.operation}: each step learns for itself alone, and none learns what to "
            "keep for later ones. Detach the state between batches, or chunks of many steps."
        ),
        remedy="",
        source="the autograd graph of one step",
        layers=(found.operation.path, found.parameter),
        source_line=found.operation.line,
    )


_WHY = {
    "detach": "it takes the values out of the graph",
    "no_grad": "it runs where gradients are off (no_grad or inference mode)",
    "left torch": "the values leave torch as plain numbers there",
    "not differentiable": "its result is whole numbers or truth values, which have no derivative",
    "zero derivative": "its derivative is zero everywhere",
    "derivative": "the derivative that is taken there does not depend on the parameters: the next derivative is zero "
    "everywhere",
    "create_graph": "the derivative is taken without create_graph=True and is a constant for autograd",
    "flat": "the derivative that is taken there is zero everywhere",
    "rebuilt": "its result is a new tensor without a graph",
    "zero": "a gradient arrives there and exactly zero is passed on",
}


def _advice(cut: Cut, paths: GradientPaths) -> str:
    if cut.kind in ("derivative", "zero", "flat") and paths.piecewise_linear:
        return (
            f"The second derivative of {listed(paths.piecewise_linear)} is zero: use a smooth nonlinearity, as tanh, "
            "SiLU or softplus."
        )
    return _ADVICE.get(cut.kind, "")


_FREEZE = "If that is meant, freeze these parameters by requires_grad_(False)."
_ADVICE = {
    "detach": f"Leave it out. {_FREEZE}",
    "no_grad": f"Run it with gradients on. {_FREEZE}",
    "left torch": "Compute with tensors up to the loss.",
    "not differentiable": "Train on a smooth stand-in (softmax for argmax, sigmoid for a threshold), or pass the "
    "gradient straight through: soft + (hard - soft).detach().",
    "zero derivative": "Pass the gradient straight through: x + (round(x) - x).detach().",
    "derivative": "Use smooth nonlinearities, and check what is differentiated with respect to what.",
    "create_graph": "Say create_graph=True.",
    "rebuilt": "Use the tensor itself; torch.stack joins several.",
    "zero": "Look for a factor that is zero, or a function that is flat there.",
}

RULE = Rule(
    code="gradient-cut",
    judge=judge,
    place=Place.LOSS,
    brings=(SILENCE - {"dead-units"}) | {"unused-parameters", "learning-rate-too-low", "learning-rate-too-high"},
    fault="the forward pass",
    doc=RuleDoc(
        meaning="The loss depends on these parameters, but no gradient flows back to them, so they are never "
        "trained. Or a term of the loss has no gradient, so training cannot lower it.",
        why="Between the parameters and the loss there is a `detach`, `.data`, `no_grad`, `.item()`, numpy, or "
        "a tensor that is created from values; or an operation with derivative zero (`argmax`, a "
        "comparison, rounding); or a second derivative of a piecewise linear network, which is zero, as in "
        "a physics-informed loss with ReLU.",
        numbers=(
            (
                "trained parameters that the loss depends on but that get no gradient on any path, as a share of all"
                " tensors or of all weights, whichever is larger. Where a term of the loss has no gradient: the "
                "share of that term in the loss",
                f"error at {HALF:g}, or for a whole part of the model unless `no_grad` cuts it, which is often meant;"
                " warning below; note for parameters that no optimizer holds",
                "exact, from the graph; the severity is judgement",
            ),
            (
                "outputs that are compared with data and that depend on the data only through whole numbers that "
                "trained parameters choose, such as codes to look up",
                "error for any; warning where a short run trains",
                "exact, from the graph",
            ),
            (
                "a derivative that the step takes of another derivative",
                "error where it is zero at every point and what is differentiated is not",
                "exact, from one step",
            ),
            (
                "a recurrence of three or more steps",
                "warning if the state is detached after every step",
                "exact, from the graph",
            ),
        ),
        fix="""
            def forward(self, x):
                return self.head(torch.tanh(self.body(x)))

            Net.forward = forward
        """,
        command="remove the operation that the report names, here `.detach()`.",
        ill="""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

                def forward(self, x):
                    return self.head(torch.tanh(self.body(x)).detach())

            model = Net()
        """,
        healthy="""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

                def forward(self, x):
                    return self.head(torch.tanh(self.body(x)))

            model = Net()
        """,
        ignore="You can ignore it where the part is not meant to be trained: then call `requires_grad_(False)` on it, "
        "and give the optimizer only the parameters that are trained.",
    ),
)
