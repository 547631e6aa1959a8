"""Lines, curves and planes in input space, as functions of one or two coordinates."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Curve = Callable[[Float[Tensor, "n 1"]], Float[Tensor, "n ..."]]
Plane = Callable[[Float[Tensor, "n 2"]], Float[Tensor, "n ..."]]


def segment(first: Float[Tensor, "..."], last: Float[Tensor, "..."]) -> Curve:
    """The straight line with `first` at t = 0 and `last` at t = 1, both without a batch axis.

        >>> segment(torch.zeros(2), torch.ones(2))(torch.tensor([[0.25]])).tolist()
        [[0.25, 0.25]]

    Returns:
        `t [n, 1] -> inputs [n, ...]`, differentiable.
    """
    return polyline(torch.stack(_alike(first, last)))


def polyline(points: Float[Tensor, "points ..."]) -> Curve:
    """The curve through several inputs, straight between neighbours, the first at t = 0 and the last at t = 1.

    Any other curve is a function of one's own: a decoder along a latent line is `lambda z: decoder(z)`.

    Args:
        points: at least two inputs.

    Returns:
        `t [n, 1] -> inputs [n, ...]`.

    Raises:
        ValueError: there are fewer than two points, or one is not finite.

    Example:
        >>> import torch
        >>> curve = polyline(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]))
        >>> curve(torch.tensor([[0.0], [0.25], [0.75]])).tolist()
        [[0.0, 0.0], [0.5, 0.0], [1.0, 0.5]]
    """
    if len(points) < 2:
        raise ValueError(f"points: expected at least two inputs, got {len(points)}")
    if not bool(torch.isfinite(points).all()):
        raise ValueError("points: expected finite inputs, got NaN or infinite ones")

    def at(t: Float[Tensor, "n 1"]) -> Float[Tensor, "n ..."]:
        position = t.to(points).flatten() * (len(points) - 1)
        left = position.floor().clamp(0, len(points) - 2).long()
        share = (position - left).view(-1, *[1] * (points.dim() - 1))
        return points[left] * (1 - share) + points[left + 1] * share

    return at


def plane(origin: Float[Tensor, "..."], first: Float[Tensor, "..."], second: Float[Tensor, "..."]) -> Plane:
    """The plane through three inputs: `origin` at (0, 0), `first` at (1, 0), `second` at (0, 1).

    Returns:
        `coordinates [n, 2] -> inputs [n, ...]`.

    Example:
        >>> import torch
        >>> through = plane(torch.zeros(3), torch.tensor([1.0, 0, 0]), torch.tensor([0, 2.0, 0]))
        >>> through(torch.tensor([[1.0, 0.5]])).tolist()
        [[1.0, 1.0, 0.0]]
    """
    start, one, two = _alike(origin, first, second)

    def at(coordinates: Float[Tensor, "n 2"]) -> Float[Tensor, "n ..."]:
        u, v = (column.view(-1, *[1] * start.dim()) for column in coordinates.to(start).unbind(1))
        return start + u * (one - start) + v * (two - start)

    return at


def _alike(*points: Tensor) -> list[Tensor]:
    shapes = {tuple(point.shape) for point in points}
    if len(shapes) > 1:
        raise ValueError(f"expected inputs of one shape, got {sorted(shapes)}; take them without a batch axis")
    return list(points)
