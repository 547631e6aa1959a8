"""How steep a network can be, how steep it is on the data, and what that says about generalization."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from theta0._batches import Batch, checked_forward, prepared
from theta0._losses import Loss
from theta0._models import main_output, without_labels
from theta0._records import Record
from theta0._state import preserve_state
from theta0._trace.interpreter import no_dropout
from theta0.measurements.lipschitz import lipschitz_bounds

_MOST_OUTPUTS = 64  # rows of a Jacobian that are computed; fewer rows keep the lower bound a lower bound


def capacity(
    model: nn.Module, batches: Iterable[Any], loss: Loss = None, *, max_batches: int | None = 4
) -> list[Record]:
    """Lipschitz bounds of a network and their components (furusho2020thesis, Theorems 4 and 5).

    `lipschitz_spectral`, `lipschitz_frobenius`, `lipschitz_l1` and `lipschitz_path` are upper bounds,
    `lipschitz_lower` is the largest slope seen on the data; each linear map has its `spectral_norm`, `frobenius_norm`
    and `l1_norm`. A ValueError names the function that cannot be followed where there is one.

    Args:
        model: any module; left bit-identical.
        batches: `(inputs, targets)` batches, or bare inputs.
        loss: not used; here so that all measurements are called alike.
        max_batches: how many batches are read; None reads all.

    Returns:
        The records.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> found = {r.quantity: r.value for r in capacity(model, batches) if r.layer == ""}
        >>> found["lipschitz_lower"] <= found["lipschitz_spectral"] <= found["lipschitz_frobenius"]
        True
    """
    measured, read = prepared(model, batches, max_batches)
    bounds = lipschitz_bounds(measured, without_labels(read[0].inputs))
    lower = lipschitz_lower_bound(measured, read, max_batches=None)
    uppers = {name: getattr(bounds, name) for name in ("spectral", "frobenius", "l1", "path")}
    whole = [Record("", f"lipschitz_{name}", value) for name, value in {"lower": lower, **uppers}.items()]
    return [*bounds.layers, *whole]


def lipschitz_lower_bound(model: nn.Module, batches: Iterable[Any], *, max_batches: int | None = 4) -> float:
    r"""The largest slope $\max_i \|\partial f / \partial x\,(x_i)\|_2$ over the data, in evaluation mode.

    The Lipschitz constant is the supremum over all inputs, so this is a lower bound. Of more than 64 outputs only the
    first 64 are differentiated, which can only lower it.

    Args:
        model: any module with floating inputs; left bit-identical.
        batches: `(inputs, targets)` batches, or bare inputs.
        max_batches: how many batches are read; None reads all.

    Returns:
        The largest spectral norm of the input Jacobian.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> model.weight.data = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
        >>> round(lipschitz_lower_bound(model, [torch.randn(4, 2)]), 4)
        3.0
    """
    model, read = prepared(model, batches, max_batches)
    with preserve_state(model), torch.enable_grad(), no_dropout():
        model.eval()
        return max(_largest_slope(model, batch) for batch in read)


def rademacher_bound(norm_product: float, depth: int, largest_input: float, samples: int) -> float:
    r"""Theorem 1: $\mathcal R \le 2^{L - 1/2} K \max_n \|x(n)\|_2 / \sqrt N$ for ReLU networks without biases.

    Args:
        norm_product: K, a bound of the product of all layers' Frobenius norms. (The theorem fixes the last one to 1;
            ReLU networks are homogeneous, so the last norm may be moved into K.)
        depth: L, the number of layers.
        largest_input: the largest Euclidean norm of an input.
        samples: N.

    Returns:
        The bound of the Rademacher complexity of the networks within K.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> rademacher_bound(norm_product=1.0, depth=1, largest_input=1.0, samples=200)
        0.1
    """
    if depth < 1 or samples < 1 or not (norm_product >= 0 and largest_input >= 0):
        raise ValueError(
            f"expected depth and samples of at least 1 and norms of at least 0, got depth {depth}, samples {samples}, "
            f"norm_product {norm_product}, largest_input {largest_input}"
        )
    return 2 ** (depth - 0.5) * norm_product * largest_input / math.sqrt(samples)


def generalization_gap(
    rademacher: float, samples: int, *, loss_lipschitz: float, loss_bound: float, delta: float
) -> float:
    r"""Theorem 2: $R - R_S \le 2\alpha\mathcal R + 4c\sqrt{2 \log(4/\delta) / N}$ with probability $1 - \delta$.

    Args:
        rademacher: 𝓡, or a bound of it.
        samples: N.
        loss_lipschitz: α, the Lipschitz constant of the loss in the output.
        loss_bound: c, a bound of the loss's absolute value.
        delta: the probability that the bound fails.

    Returns:
        The bound of the difference between expected and empirical risk.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> round(generalization_gap(0.01, 10**6, loss_lipschitz=1.0, loss_bound=1.0, delta=0.05), 4)
        0.0318
    """
    if samples < 1 or not 0 < delta < 1 or min(rademacher, loss_lipschitz, loss_bound) < 0:
        raise ValueError(
            f"expected samples of at least 1, delta between 0 and 1 and nothing negative, got samples {samples}, "
            f"delta {delta}, rademacher {rademacher}, loss_lipschitz {loss_lipschitz}, loss_bound {loss_bound}"
        )
    return 2 * loss_lipschitz * rademacher + 4 * loss_bound * math.sqrt(2 * math.log(4 / delta) / samples)


def _largest_slope(model: nn.Module, batch: Batch) -> float:
    def leaf(value: Any) -> Any:
        real = isinstance(value, Tensor) and value.is_floating_point()
        return value.detach().clone().requires_grad_() if real else value

    inputs = tree_map(leaf, batch.inputs)
    leaves = [t for t in tree_flatten(inputs)[0] if isinstance(t, Tensor) and t.requires_grad]
    outputs = main_output(checked_forward(model, Batch(inputs, batch.targets, batch.size, batch.number)))
    if not leaves or outputs is None or not outputs.requires_grad:
        raise ValueError("model: expected real-valued inputs that the output depends on, got none; slopes need them")
    outputs = outputs.reshape(batch.size, -1)
    rows = []
    for column in outputs[:, :_MOST_OUTPUTS].unbind(1):
        slopes = torch.autograd.grad(column.sum(), leaves, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([slope.reshape(batch.size, -1) for slope in slopes], 1).double())
    jacobian = torch.stack(rows, 1)
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(jacobian @ jacobian.mT).max())))
