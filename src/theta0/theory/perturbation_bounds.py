"""How far random perturbations reach, which classes they keep, how steep a ReLU layer is (lee2023mmd, Theorems 1-3)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class JacobianMoments:
    """Moments of ‖J_k‖²_F, the squared norm of one row of a layer's Jacobian, over random weights and gates.

    Attributes:
        mean: its expectation.
        deviation: its standard deviation.
    """

    mean: float
    deviation: float


def distance_tail_bound(radius: float, parameters: int, largest_variance: float) -> float:
    """P(‖θ - θ₀‖ ≥ r) ≤ exp(-min{η², mη}/8), η = r²/(m α*) - 1, for θ ~ N(θ₀, diag(σ²)) (lee2023mmd, Theorem 1).

    A loose bound: with equal variances the probability falls like exp(-mη²/4), while η² here has no factor m, because
    the proof replaces Σσ⁴ by (Σσ²)² (its eq. 31). `distance_tail_bound_by_variances` keeps it.

    Args:
        radius: r, with r² > m α*.
        parameters: m, how many are perturbed.
        largest_variance: α* = max σ².

    Returns:
        The bound, in (0, 1).

    Raises:
        ValueError: if m is below 1, α* not positive and finite, or r² not above m α*, where the theorem is silent.

    >>> f"{distance_tail_bound(radius=5.0, parameters=5, largest_variance=1.0):.4f}"
    '0.1353'
    """
    if parameters < 1:
        raise ValueError(f"parameters: expected at least 1, got {parameters}")
    if not 0 < largest_variance < math.inf:
        raise ValueError(f"largest_variance: expected a positive, finite variance, got {largest_variance}")
    least = math.sqrt(parameters * largest_variance)
    if not least < radius < math.inf:
        raise ValueError(
            f"radius: expected a finite one above sqrt(m * largest variance) = {least:.6g}, where Theorem 1 begins, "
            f"got {radius}"
        )
    eta = radius**2 / (parameters * largest_variance) - 1
    return math.exp(-min(eta**2, parameters * eta) / 8)


def distance_tail_bound_by_variances(radius: float, variances: Float[Tensor, " parameters"]) -> float:
    """P(‖θ - θ₀‖ ≥ r) ≤ exp(-min{t²/Σσ⁴, t/α*}/8), t = r² - Σσ² (lee2023mmd, eq. 30, before the theorem's last step).

    Args:
        radius: r, with r² > Σσ².
        variances: σ² of every parameter.

    Returns:
        The bound, in (0, 1), never above that of Theorem 1.

    Raises:
        ValueError: if a variance is negative or not finite, all are 0, or r² is not above their sum.

    >>> f"{distance_tail_bound_by_variances(5.0, torch.ones(5)):.4f}"
    '0.0821'
    """
    squares = variances.double()
    if not bool((torch.isfinite(squares) & (squares >= 0)).all()) or not bool(squares.any()):
        raise ValueError("variances: expected finite ones, none negative and not all 0")
    excess = radius**2 - float(squares.sum())
    if not 0 < excess < math.inf:
        raise ValueError(
            f"radius: expected a finite one above the root of the summed variances, {float(squares.sum()) ** 0.5:.6g}, "
            f"got {radius}"
        )
    return math.exp(-min(excess**2 / float(squares.square().sum()), excess / float(squares.max())) / 8)


def class_probability_bounds(
    probabilities: Float[Tensor, "n classes"], *, sharp: bool = False
) -> Float[Tensor, " classes"]:
    """P(f(x) ∈ A_i) ≥ 1 - √d E‖v⁽ⁱ⁾ - f(x)‖: how often class i is the largest (lee2023mmd, Theorem 2, eq. 13).

    A_i holds the outputs whose i-th entry is largest, v⁽ⁱ⁾ is the i-th vertex of the simplex. √d can be √2 for every d
    (`sharp`, ours): the nearest outputs to v⁽ⁱ⁾ at which another class draws level are its midpoints with other
    vertices, at a distance 1/√2. A negative bound says nothing. The bounds of all classes are never positive at once,
    since E‖v⁽ⁱ⁾ - f(x)‖ is at least √(1 - 1/d) for one i (`largest_vertex_distance_floor`).

    Args:
        probabilities: softmax outputs of one model, a row per sample.
        sharp: √2 in the place of √d.

    Returns:
        One bound per class, at most 1.

    Raises:
        ValueError: if there are no rows or fewer than 2 classes, or a row is not on the simplex.

    >>> class_probability_bounds(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    rows, classes = probabilities.shape
    if rows < 1 or classes < 2:
        raise ValueError(
            f"probabilities: expected a row per sample and at least 2 classes, got shape {tuple(probabilities.shape)}"
        )
    p = probabilities.double()
    if not bool(((p >= 0).all(1) & ((p.sum(1) - 1).abs() < 1e-3)).all()):
        raise ValueError("probabilities: expected rows that are not negative and sum to 1; pass softmax outputs")
    vertices = torch.eye(classes, dtype=p.dtype, device=p.device)
    distances = torch.linalg.vector_norm(vertices - p.unsqueeze(1), dim=2).mean(0)
    bounds: Tensor = 1 - math.sqrt(2 if sharp else classes) * distances
    return bounds


def largest_vertex_distance_floor(classes: int) -> float:
    """√(1 - 1/d): the least that max_i E‖v⁽ⁱ⁾ - f(x)‖ can be, whatever f (ours).

    The distances to all vertices, summed, are a convex symmetric function of the output, smallest at the centre. So the
    degenerate-softmax loss (lee2023mmd, eq. 14) is at least √(1 - 1/d) - 1/√d: 0 for two classes, where it asks for a
    mean output of ½, but 0.63 for ten; its hinge at 1/√d never acts beyond two classes.

    Args:
        classes: d.

    Returns:
        The distance.

    Raises:
        ValueError: if there are fewer than 2 classes.

    >>> f"{largest_vertex_distance_floor(2):.4f} {largest_vertex_distance_floor(10):.4f}"
    '0.7071 0.9487'
    """
    if classes < 2:
        raise ValueError(f"classes: expected at least 2, got {classes}")
    return math.sqrt(1 - 1 / classes)


def relu_jacobian_moments(fan_in: int, weight_variance: float | None = None) -> JacobianMoments:
    """Moments of ‖J_k‖²_F for z ↦ W ReLU(z), W_kj ~ N(0, σ²), with z symmetric about 0 (lee2023mmd, Theorem 3).

    ‖J_k‖² = Σ_j W_kj² 1(z_j > 0) has mean n σ²/2, which is 1 at He's σ² = 2/n; the theorem says so in the limit of
    large n. At finite n its variance is (5/4) n σ⁴ (ours), so one row's squared norm is 1 ± √(5/n). An input layer has
    no ReLU in front of it (l = 0 is left out of the theorem): there He's weights give 2.

    Args:
        fan_in: n, the number of inputs of the layer.
        weight_variance: σ²; None takes He's 2/n.

    Returns:
        Mean and standard deviation.

    Raises:
        ValueError: if the fan-in is below 1, or the variance negative or not finite.

    >>> relu_jacobian_moments(500)
    JacobianMoments(mean=1.0, deviation=0.1)
    """
    if fan_in < 1:
        raise ValueError(f"fan_in: expected at least 1, got {fan_in}")
    variance = 2 / fan_in if weight_variance is None else weight_variance
    if not 0 <= variance < math.inf:
        raise ValueError(f"weight_variance: expected a finite one that is not negative, got {weight_variance}")
    return JacobianMoments(fan_in * variance / 2, variance * math.sqrt(1.25 * fan_in))
