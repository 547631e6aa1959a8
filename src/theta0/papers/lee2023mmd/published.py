"""The values of lee2023mmd's tables: mean and standard deviation, in percent."""

from typing import Literal

from theta0.papers.models import Draw

Method = Literal["none", "mmd", "random labels"]
Value = tuple[float, float]
Row = tuple[Draw, bool, Method]
LABELS = (5, 10, 20, 40)  # N, the columns of Tables 1 and 2
ACCURACIES: dict[Row, tuple[Value, ...]] = {  # Table 1, over four runs
    ("xavier", False, "mmd"): ((82.42, 0.72), (85.98, 0.65), (90.07, 0.17), (92.48, 0.57)),
    ("xavier", False, "none"): ((79.63, 0.78), (83.70, 0.59), (87.54, 0.67), (90.91, 0.53)),
    ("xavier", False, "random labels"): ((76.81, 2.13), (83.34, 0.79), (87.53, 0.91), (90.88, 0.52)),
    ("xavier", True, "none"): ((77.09, 1.22), (83.50, 0.44), (88.00, 0.60), (91.48, 0.53)),
    ("xavier", True, "random labels"): ((78.87, 1.75), (84.38, 0.97), (88.71, 0.53), (91.57, 0.59)),
    ("he", False, "mmd"): ((82.27, 0.78), (86.46, 0.37), (89.69, 0.28), (92.61, 0.51)),
    ("he", False, "none"): ((79.17, 1.21), (83.41, 0.92), (87.96, 0.64), (91.34, 0.37)),
    ("he", False, "random labels"): ((77.41, 2.09), (83.52, 0.77), (87.31, 0.68), (90.66, 0.41)),
    ("he", True, "none"): ((76.89, 1.48), (83.01, 0.98), (88.01, 0.66), (91.55, 0.57)),
    ("he", True, "random labels"): ((78.82, 0.78), (85.33, 0.62), (89.15, 0.68), (92.14, 0.67)),
}
SPREADS: dict[Row, tuple[Value, ...]] = {  # Table 2, over four runs
    ("xavier", False, "mmd"): ((4.76, 0.88), (4.54, 0.52), (3.01, 0.71), (2.26, 0.40)),
    ("xavier", False, "none"): ((6.62, 1.29), (5.55, 0.62), (3.54, 0.27), (2.65, 0.53)),
    ("xavier", False, "random labels"): ((6.08, 0.92), (5.02, 1.16), (3.82, 0.23), (2.78, 0.49)),
    ("xavier", True, "none"): ((7.47, 1.70), (5.53, 0.69), (3.72, 0.78), (2.72, 0.32)),
    ("xavier", True, "random labels"): ((6.62, 1.50), (5.44, 0.33), (3.20, 0.41), (2.40, 0.37)),
    ("he", False, "mmd"): ((5.26, 0.87), (4.04, 0.80), (3.25, 0.42), (2.16, 0.40)),
    ("he", False, "none"): ((5.74, 0.81), (5.32, 0.45), (3.31, 0.48), (2.47, 0.31)),
    ("he", False, "random labels"): ((6.37, 1.10), (4.84, 1.02), (3.98, 0.44), (3.03, 0.85)),
    ("he", True, "none"): ((7.52, 0.76), (6.50, 1.76), (3.59, 0.80), (2.74, 0.41)),
    ("he", True, "random labels"): ((7.33, 1.10), (4.95, 1.08), (3.18, 0.55), (2.30, 0.28)),
}
DEGENERATE: dict[tuple[float, float], Value] = {  # Table 3 by (λ, ξ), over mini-batches
    (0.0, 0.0): (89.32, 0.94),
    (0.4, 0.0): (0.41, 0.38),
    (0.0, 1.0): (80.83, 1.03),
    (0.4, 1.0): (1.39, 0.62),
}
DEAD: dict[tuple[float, float], tuple[Value, ...]] = {  # Table 4 by (λ, ξ) and hidden layer, over mini-batches
    (0.0, 0.0): ((52.11, 3.07), (63.88, 1.30), (80.08, 0.61)),
    (0.4, 0.0): ((1.96, 0.42), (21.81, 1.40), (8.21, 2.16)),
    (0.4, 1.0): ((3.75, 0.77), (5.12, 1.20), (0.02, 0.06)),
}
GRID: dict[tuple[float, float], tuple[Value, Value]] = {  # Table 5 by (s², λ): DS and IOD, over four runs
    (0.2, 0.2): ((1.32, 0.73), (28.87, 5.05)),
    (0.2, 0.4): ((0.54, 0.42), (30.25, 3.56)),
    (0.2, 1.0): ((0.84, 0.53), (16.52, 3.27)),
    (0.5, 0.2): ((1.33, 0.64), (17.80, 3.83)),
    (0.5, 0.4): ((1.58, 0.72), (5.48, 1.56)),
    (0.5, 1.0): ((1.41, 0.72), (34.15, 28.81)),
    (1.0, 0.2): ((6.39, 1.19), (6.91, 1.19)),
    (1.0, 0.4): ((4.30, 1.23), (13.06, 3.23)),
    (1.0, 1.0): ((3.96, 1.26), (16.13, 3.57)),
    (2.0, 0.2): ((44.20, 4.75), (56.44, 5.00)),
    (2.0, 0.4): ((35.57, 5.63), (47.62, 5.48)),
    (2.0, 1.0): ((16.93, 7.63), (34.12, 9.02)),
}


def words(value: Value | None) -> str:
    """A published value as a cell shows it; a dash where the source has none."""
    return "–" if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"
