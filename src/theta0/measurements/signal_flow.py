"""Follow what depends on a model's input through its forward pass, function by function; refuse what is not known."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten, tree_map

from theta0._models import main_output, outputs_of, unwrapped
from theta0._trace.functions import Role, Spec
from theta0._trace.interpreter import PROCEED, Handler, Step, trace


@dataclass(frozen=True, eq=False)
class SignalStep:
    """One function applied to the signal.

    `signals` are the tensors among the arguments that depend on the input, and what has been noted of each; `path` is
    that of the module that runs, `place` the same with its kind, for messages.
    """

    function: Callable[..., Any]
    spec: Spec
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    signals: tuple[tuple[Tensor, Any], ...]
    path: str
    place: str

    @property
    def role(self) -> Role:
        """What the function does."""
        return self.spec.role

    def carries(self, value: Any) -> bool:
        """Whether an argument depends on the input."""
        return isinstance(value, Tensor) and any(value is signal for signal, _ in self.signals)


@dataclass(frozen=True, eq=False)
class _Signal:
    """The note on a tensor that depends on the inputs, with what the rules noted of it."""

    value: Any


Rule = Callable[[SignalStep], tuple[Any, Any]]


def flow(model: nn.Module, inputs: Any, rule: Rule, note: Any = None) -> tuple[Tensor, Any]:
    """Run a model in evaluation mode, with a rule in place of every function that the inputs reach.

    What does not depend on the inputs (weights, constants) is computed as written. Modes are put back. The rule's note
    travels with its result, `note` being that of the inputs. Returned are the main output as the rules made it, and its
    note.

    Raises:
        ValueError: the inputs reach a function whose role is not known, or do not reach the output.
    """
    model = unwrapped(model)
    handler = _signal_handler(rule)
    inputs = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)
    with _evaluation_mode(model), trace(model, handler) as interpreter:
        for leaf in tree_flatten(inputs)[0]:
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                interpreter.annotate(leaf, handler, _Signal(note))
        output = main_output(_called(model, inputs))
    signal = interpreter.note_of(output, handler)
    if output is None or signal is None:
        raise ValueError(
            "model: expected an output that the inputs reach by torch functions, got one that they do not; token "
            "inputs, scripted modules and numpy inside forward cannot be followed"
        )
    return output, signal.value


def _signal_handler(rule: Rule) -> Handler:
    """Runs the rule in the place of each function that the signal reaches, and refuses one that is not known."""
    made: list[_Signal] = []

    def replaced(step: Step) -> Any:
        signals = tuple((tensor, note.value) for tensor, note in step.notes(handler))
        if not signals:
            return PROCEED
        if step.spec is None:
            refuse(step.function, step.place, "expected a function that is known")
        result, note = rule(
            SignalStep(step.function, step.spec, step.arguments, step.options, signals, step.path, step.place)
        )
        made.append(_Signal(note))
        return result

    handler = Handler(replace=replaced, after=lambda step, result: made.pop() if made else None)
    return handler


def ones_for(model: nn.Module, example: Any) -> Any:
    """One sample of ones in the form of an example, or as wide as the first linear layer where there is none.

    Raises:
        ValueError: an example is needed, or has nothing that could be one.
    """
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    dtype = next(iter(kinds)) if len(kinds) == 1 else None
    if example is not None:
        leaves = tree_flatten(example)[0]
        if not leaves or not all(
            isinstance(t, Tensor) and t.is_floating_point() and t.dim() and len(t) for t in leaves
        ):
            raise ValueError(
                "example: expected a batch of floating inputs as the model takes them, got none; "
                "paths begin at real-valued inputs, so tokens cannot be followed"
            )
        return tree_map(lambda leaf: torch.ones_like(leaf[:1], dtype=dtype or leaf.dtype), example)
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding))]
    if not layers or not isinstance(layers[0], nn.Linear) or is_lazy(layers[0].weight):
        first = type(layers[0]).__name__ if layers else "no linear layer"
        raise ValueError(
            f"example: expected a batch of inputs, got None for a model that begins with {first}; the sizes of its "
            "inputs are not in its weights: pass some inputs as example"
        )
    return layers[0].weight.new_ones(1, layers[0].in_features)


def _called(model: nn.Module, inputs: Any) -> Any:
    try:
        return outputs_of(model, inputs)
    except ValueError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise ValueError(
            f"the model's forward, on a sample of ones: expected a result, got {reason}; pass inputs that it takes as "
            "example"
        ) from error


def refuse(function: Any, place: str, reason: str) -> NoReturn:
    """Raise a ValueError that says which function of which module cannot be followed."""
    name = getattr(function, "__name__", str(function))
    raise ValueError(
        f"{place}: {reason}, got {name}; what can be followed are linear maps, convolutions, sums, joins, pooling, "
        "batch normalization in evaluation form and elementwise nonlinearities: measure the part without it"
    )


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training
