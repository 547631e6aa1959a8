"""Trained tensors that the forward pass uses and the model, or its optimizer, does not hold; models that hold none."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed


def judge(evidence: Evidence) -> list[Finding]:
    """Tensors that the model does not hold, or that it holds and the optimizer does not; or no parameter at all."""
    found = (_foreign(evidence) or _none(evidence), _lacking(evidence))
    return [finding for finding in found if finding is not None]


def _lacking(evidence: Evidence) -> Finding | None:
    """Parameters that get a gradient and are in none of the optimizer's groups."""
    lacking = [name for name in evidence.kind.lacking if evidence.table.get(name, {}).get("gradient_norm")]
    if not lacking:
        return None
    named = evidence.parameters
    entries, total = (sum(named[name].numel() for name in names) for names in (lacking, evidence.trained))
    return Finding(
        code="unregistered-parameters",
        severity="error" if entries == total else "warning",
        layer=lacking[0],
        value=entries / total,
        quantity="share of weights",
        threshold=0.0,
        message=(
            f"No optimizer holds {listed(lacking)}: {entries:,} of {total:,} "
            "trained weights get a gradient and stay as they are. Make the optimizer from model.parameters() after "
            "every layer is made, or add a group; where they are meant to stay, set requires_grad_(False) on them."
        ),
        remedy="",
        source="model.parameters(), held against the optimizer's groups",
        layers=tuple(lacking),
    )


def _foreign(evidence: Evidence) -> Finding | None:
    """Tensors that need a gradient and are not in `parameters()`."""
    foreign = evidence.inspection.foreign
    if not foreign:
        return None
    named = [found.name for found in foreign if found.name]
    first = foreign[0]
    known = sum(p.numel() for p in evidence.model.parameters())
    missing = sum(found.entries for found in foreign)
    made = "created again in every forward pass" if not named else "kept where `parameters()` does not look"
    what = listed(named) if named else f"{len(foreign)} tensors"
    advice = (
        "Hold layers in nn.ModuleList or nn.ModuleDict, tensors in nn.Parameter or nn.ParameterList."
        if named
        else "Make layers once, in __init__."
    )
    return Finding(
        code="unregistered-parameters",
        severity="error",
        layer=named[0] if named else first.operation.path,
        value=missing / (missing + known),
        quantity="share of weights",
        threshold=0.0,
        message=(
            f"The forward pass uses {what}, {made}: the optimizer never sees {'it' if len(foreign) == 1 else 'them'}, "
            f"and {missing:,} of {missing + known:,} weights stay as they are. {advice}"
        ),
        remedy="",
        source="tensors that need a gradient, held against model.parameters()",
        layers=tuple(named) if named else (first.operation.path,),
        source_line=first.operation.line,
    )


def _none(evidence: Evidence) -> Finding | None:
    if any(True for _ in evidence.model.parameters()) or not evidence.has_loss:
        return None
    return Finding(
        code="unregistered-parameters",
        severity="error",
        layer="",
        value=0.0,
        threshold=0.0,
        message=(
            "The model has no parameters: there is nothing to train. Assign layers to attributes in __init__, in "
            "nn.ModuleList where there are several, after super().__init__()."
        ),
        remedy="",
        source="model.parameters() is empty",
    )


RULE = Rule(
    code="unregistered-parameters",
    judge=judge,
    place=Place.LOSS,
    fault="which parameters are trained",
    doc=RuleDoc(
        meaning="The network uses weights that the optimizer does not hold. They keep their random values, are "
        "missing from the state dict, and do not follow `model.to(device)`.",
        why="Layers are kept in a plain list or dictionary, parameters in a tuple, or `forward` creates layers "
        "in each call. `model.parameters()` finds only modules and parameters that are attributes, or are "
        "in `nn.ModuleList` and similar containers. Or layers were added or replaced after the optimizer "
        "was created.",
        numbers=(
            (
                "the number of tensors that need a gradient, are used where a gradient reaches them and are not in "
                "`model.parameters()`; or a model without any parameter",
                "error above 0",
                "exact, from one step",
            ),
            (
                "the number of trained parameters that get a gradient and are held by no optimizer, where the "
                "optimizer is given as an instance",
                "warning above 0; error if these are all the parameters that are trained",
                "exact, from its groups",
            ),
        ),
        fix="model.layers = nn.ModuleList(model.layers)",
        command="register the layers in `__init__`, and give all parameters to the optimizer.",
        ill="""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers, self.head = [nn.Linear(8, 8) for _ in range(2)], nn.Linear(8, 3)

                def forward(self, x):
                    for layer in self.layers:
                        x = torch.tanh(layer(x))
                    return self.head(x)

            model = Net()
        """,
        healthy="""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers, self.head = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)), nn.Linear(8, 3)

                def forward(self, x):
                    for layer in self.layers:
                        x = torch.tanh(layer(x))
                    return self.head(x)

            model = Net()
        """,
        ignore="You can ignore it where the weights are meant to stay as they are: then call "
        "`requires_grad_(False)` on them.",
    ),
)
