"""θ₀ is where training starts: say what is wrong with it, fix it, and prove by a short run that it now trains.

    import theta0

    diagnosis = theta0.diagnose(model, batches, "cross_entropy")   # reads the model, never changes it
    treatment = theta0.treat(model, batches, "cross_entropy")      # changes it only if that is proven better

Verbs: `diagnose`, `explain`, `treat`, `compare`, `capture`, `capture_steps`, `suggest_learning_rate`, `top_eigenvalue`,
`save_start`, `load_start_`, `parametrize_`, `remove_`, and `this_rank_only` where several processes train together.
Results: `Captured`, `CapturedStep`, `Diagnosis`, `Finding`, `Explanation`, `Treatment`, `Comparison`, `LearningRate`,
`Run`, `Record`.
Errors, all of them `ValueError`s: `UserCodeError`, `CaptureError`, `InapplicableError`, `NothingBetterError`,
`NoCurvatureError`, `NotTrainableError`; and `RankError`, an `OSError`, where processes train together.
Catalogues: `theta0.measurements`, `theta0.theory`, `theta0.initializers`, `theta0.parametrizations`, `theta0.layers`,
`theta0.regularizers`, `theta0.spectra`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from theta0._records import shown_by
from theta0._version import __version__

if TYPE_CHECKING:
    from theta0 import (
        comparison,
        curvature,
        diagnosis,
        experiments,
        explanation,
        initializers,
        layers,
        measurements,
        parametrizations,
        regularizers,
        reports,
        spectra,
        theory,
        treatment,
    )
    from theta0._errors import (
        CaptureError,
        InapplicableError,
        NoCurvatureError,
        NothingBetterError,
        NotTrainableError,
        RankError,
        UserCodeError,
    )
    from theta0._ranks import this_rank_only
    from theta0._records import Record
    from theta0.captures import Captured, CapturedStep, capture, capture_steps
    from theta0.comparison import Comparison, compare
    from theta0.curvature import LearningRate, top_eigenvalue
    from theta0.diagnosis import Diagnosis, Finding, diagnose
    from theta0.experiments import suggest_learning_rate
    from theta0.explanation import Explanation, explain
    from theta0.parametrizations import parametrize_, remove_
    from theta0.treatment import Run, Treatment, load_start_, save_start, treat

# Names load on first use (PEP 562), so that `theta0 --help` does not wait for torch.
_HOMES = {
    name: f"theta0.{home}"
    for home, names in {
        "_errors": (
            "CaptureError",
            "InapplicableError",
            "NoCurvatureError",
            "NotTrainableError",
            "NothingBetterError",
            "RankError",
            "UserCodeError",
        ),
        "_ranks": ("this_rank_only",),
        "_records": ("Record",),
        "captures": ("Captured", "CapturedStep", "capture", "capture_steps"),
        "comparison": ("Comparison", "compare"),
        "curvature": ("LearningRate", "top_eigenvalue"),
        "diagnosis": ("Diagnosis", "Finding", "diagnose"),
        "explanation": ("Explanation", "explain"),
        "experiments": ("suggest_learning_rate",),
        "parametrizations": ("parametrize_", "remove_"),
        "treatment": ("Run", "Treatment", "load_start_", "save_start", "treat"),
    }.items()
    for name in names
}
shown_by("theta0.reports.faces")
__all__ = [
    "CaptureError",
    "Captured",
    "CapturedStep",
    "Comparison",
    "Diagnosis",
    "Explanation",
    "Finding",
    "InapplicableError",
    "LearningRate",
    "NoCurvatureError",
    "NotTrainableError",
    "NothingBetterError",
    "RankError",
    "Record",
    "Run",
    "Treatment",
    "UserCodeError",
    "__version__",
    "capture",
    "capture_steps",
    "compare",
    "comparison",
    "curvature",
    "diagnose",
    "diagnosis",
    "experiments",
    "explain",
    "explanation",
    "initializers",
    "layers",
    "load_start_",
    "measurements",
    "parametrizations",
    "parametrize_",
    "regularizers",
    "remove_",
    "reports",
    "save_start",
    "spectra",
    "suggest_learning_rate",
    "theory",
    "this_rank_only",
    "top_eigenvalue",
    "treat",
    "treatment",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use.

    Raises:
        AttributeError: if there is none of that name.
    """
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"theta0.{name}")
    raise AttributeError(f"module 'theta0' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return __all__
