"""Several weights in a row without a nonlinearity between them: the network is one linear map."""

from collections.abc import Sequence
from itertools import pairwise

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed

LEAST = 2


def judge(evidence: Evidence) -> Finding | None:
    """No nonlinearity between any two weights on the way to the output; a look-up is no weight in this sense."""
    chain = evidence.inspection.chain
    kinds = {name: type(module).__name__ for name, module in evidence.model.named_modules()}
    maps = {
        name: shape
        for name, shape in zip(chain.layers, chain.maps, strict=True)
        if "Embedding" not in kinds.get(name, "")
    }
    layers = list(maps)
    if chain.nonlinear or len(layers) < LEAST or not evidence.has_loss:
        return None
    rank = _factorized(list(maps.values()))
    if rank:
        words = (
            f"together are one linear map that passes at most {rank} numbers on. As a factorization that is sound; "
            "where a nonlinear network is meant, put an activation between them."
        )
    else:
        words = "together are one linear map, and no number of them learns more than one. Put an activation between."
    return Finding(
        code="linear-network",
        severity="note" if rank else "warning",
        layer=layers[0],
        value=float(len(layers)),
        quantity="layers without nonlinearity",
        threshold=float(LEAST),
        message=f"There is no nonlinearity between the {len(layers)} layers {listed(layers)}: they {words}",
        remedy="",
        source="a product of matrices is a matrix, of the rank of its narrowest factor",
        layers=tuple(layers),
    )


def _factorized(maps: Sequence[tuple[int, int, bool]]) -> int:
    """The width inside a product of weights that says something which one weight does not; 0 where nothing does.

    That is a width below both outer ones, which limits the rank, or that of a grouped or depthwise layer. It has to
    hold at each place between two layers: else one of them could be left out.
    """
    inner = [(max(left[1], right[0]), min(left[0], right[1]), left[2] and right[2]) for left, right in pairwise(maps)]
    meant = all(width < outer or not full for width, outer, full in inner)
    return min(width for width, _, _ in inner) if meant else 0


RULE = Rule(
    code="linear-network",
    judge=judge,
    place=Place.OUTPUT,
    fault="the forward pass",
    doc=RuleDoc(
        meaning="The network can learn only a linear function of its inputs, although it has several layers.",
        why="The activation functions are missing, or they are called and their results are not used.",
        numbers=(
            (
                "the number of weights in a row, on the way to the output, without a nonlinearity between any two",
                f"warning at {LEAST}; note where the width between them is below both outer widths (that limits the "
                "rank on purpose), or where one of them is grouped",
                "a product of matrices is a matrix",
            ),
        ),
        fix="model = nn.Sequential(model[0], nn.Tanh(), model[1])",
        command="put a nonlinearity between the layers that the report names.",
        ill="model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3))",
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="You can ignore a note where a low rank or a separable filter is intended, as in a linear autoencoder.",
    ),
)
