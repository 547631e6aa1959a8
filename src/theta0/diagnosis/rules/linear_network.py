"""Several weights in a row without a nonlinearity between them: the network is one linear map."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed

LEAST = 2


def judge(evidence: Evidence) -> Finding | None:
    """No nonlinearity between any two weights on the way to the output; a look-up is no weight in this sense."""
    chain = evidence.inspection.chain
    kinds = {name: type(module).__name__ for name, module in evidence.model.named_modules()}
    layers = list(dict.fromkeys(name for name in chain.layers if "Embedding" not in kinds.get(name, "")))
    if chain.nonlinear or len(layers) < LEAST or not evidence.has_loss:
        return None
    return Finding(
        code="linear-network",
        severity="warning",
        layer=layers[0],
        value=float(len(layers)),
        threshold=float(LEAST),
        message=(
            f"There is no nonlinearity between the {len(layers)} layers {listed(layers)}: together they are one linear "
            "map, and no number of them learns more than one layer does. Put an activation between them."
        ),
        remedy="",
        source="a product of matrices is a matrix",
        layers=tuple(layers),
    )


RULE = Rule(
    code="linear-network",
    judge=judge,
    place=Place.OUTPUT,
    fault="the forward pass",
    doc=RuleDoc(
        meaning="The network can only learn a linear function of its inputs, at the price of a deep one.",
        why="The activations were left out, or are applied and their result is not used.",
        numbers=(
            (
                "weights in a row on the way to the output, where no nonlinearity lies between any two",
                f"{LEAST}: warning",
                "a product of matrices is a matrix",
            ),
        ),
        fix="model = nn.Sequential(model[0], nn.Tanh(), model[1])",
        command="No command changes your model.",
        ill="model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3))",
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="Where a low rank is the purpose, as in a linear autoencoder.",
    ),
)
