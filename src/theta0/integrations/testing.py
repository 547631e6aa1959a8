"""pytest: a network that will not train fails a test. torch is imported when a test asks, not when pytest starts."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import nn

    from theta0.diagnosis import Diagnosis
    from theta0.integrations._stopping import FailOn


def assert_trainable(
    model: "nn.Module",
    batches: Iterable[Any],
    loss: Any = None,
    *,
    fail_on: "FailOn" = "error",
    **options: Any,
) -> "Diagnosis":
    """Fail where a diagnosis finds that a network will not train; the failure says in ten lines why and what to do.

    Args:
        model: left bit-identical.
        batches: as in `theta0.diagnose`.
        loss: likewise.
        fail_on: "error", or "warning" for warnings too.
        options: further arguments of `theta0.diagnose`, such as `optimizer` and `learning_rate`, or `ignore` for the
            codes of findings that are accepted.

    Returns:
        The diagnosis; of a failure, the error's `diagnosis`.

    Raises:
        AssertionError: if something is found that is grave enough.

    Example:
        >>> import torch
        >>> x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
        >>> assert_trainable(torch.nn.Linear(8, 2), [(x, x[:, :2])], "mse").healthy
        True
    """
    __tracebackhide__ = True
    from theta0.diagnosis import diagnose
    from theta0.integrations._stopping import stop

    diagnosis = diagnose(model, batches, loss, **options)
    stop(diagnosis, fail_on, AssertionError)
    return diagnosis


@pytest.fixture(name="assert_trainable", scope="session")
def assert_trainable_fixture() -> Callable[..., "Diagnosis"]:
    """`assert_trainable`, for tests that would rather not import it."""
    return assert_trainable
