"""Where a forward pass applies its trainable parameters, and what a sample's gradient is made of at each place."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from theta0._trace.calls import LinearCall, trace_calls
from theta0._trace.functions import Spec
from theta0._trace.interpreter import Handler, Step


@dataclass(frozen=True, eq=False)
class Use:
    """One application of a trainable parameter, or of a view of one.

    Attributes:
        parameter: its name.
        view: the tensor applied.
        output: the result, detached.
        edge: where the gradient of the result is found in the graph, also if it is overwritten later.
        call: the linear call, where the parameter is its weight; else the parameter enters elementwise.
        aligned: for elementwise uses, the view's shape with ones added to meet the output's axes.
        factor: for elementwise uses, gives what the view is multiplied by; None for the number `sign`.
        sign: a further factor.
    """

    parameter: str
    view: Tensor
    output: Tensor
    edge: GradientEdge
    call: LinearCall | None = None
    aligned: tuple[int, ...] = ()
    factor: Callable[[], Tensor] | None = None
    sign: float = 1.0


@dataclass
class Uses:
    """What one forward pass showed; grows while it runs.

    `batch_statistics` names the normalisations that used statistics of the batch.
    """

    found: list[Use] = field(default_factory=list)
    batch_statistics: list[str] = field(default_factory=list)


class _Elementwise:  # a class because what it recognises shares names and uses
    """Notes the parameters that enter a sum, a product, a normalization or a PReLU."""

    def __init__(self, names: Mapping[int, str], uses: Uses) -> None:
        self.names, self.uses = names, uses

    def after(self, step: Step, result: Any) -> None:
        """Look at one function."""
        spec, args = step.spec, step.arguments
        if spec is None:
            return
        if spec.role in ("norm", "batch_norm"):
            self.norm(step, spec, result)
        elif not step.options and len(args) == 2 and isinstance(result, Tensor):
            if spec.role in ("add", "subtract"):
                signs = (-1.0, 1.0) if spec.reversed else (1.0, 1.0 if spec.role == "add" else -1.0)
                for value, sign in zip(args, signs, strict=True):
                    self.add(value, result, None, sign=sign)
            elif spec.role == "multiply" and result is not args[0]:
                for value, other in (args, args[::-1]):
                    self.add(value, result, _fixed(other) if isinstance(other, Tensor) else None)
            elif spec.name == "prelu":
                self.add(args[1], result, partial(_negative_part, args[0].detach()), axis=1 if args[0].dim() > 1 else 0)

    def norm(self, step: Step, spec: Spec, result: Tensor) -> None:
        """Note the affine parameters of a normalization."""
        given = inspect.signature(step.function).bind(*step.arguments, **step.options).arguments
        weight, bias = given.pop("weight", None), given.pop("bias", None)
        if spec.role == "batch_norm" and given.get("training", False):
            name = self.name_of(weight) or "without parameters"
            self.uses.batch_statistics.append(name.removesuffix(".weight"))
        given["input"] = given["input"].detach()
        self.add(weight, result, partial(step.function, **given), axis=spec.unit_axis)
        self.add(bias, result, None, axis=spec.unit_axis)

    def name_of(self, value: Any) -> str | None:
        """The parameter that a tensor is, or a view of."""
        if not isinstance(value, Tensor):
            return None
        return self.names.get(id(value)) or self.names.get(id(value._base))

    def add(
        self,
        value: Any,
        result: Tensor,
        factor: Callable[[], Tensor] | None,
        *,
        axis: int | None = None,
        sign: float = 1.0,
    ) -> None:
        """Note one elementwise use, if the value is a trained parameter."""
        name = self.name_of(value)
        if name is None or not value.requires_grad or not result.requires_grad or result.dim() < value.dim():
            return
        left = result.dim() - value.dim() if axis is None else axis
        aligned = (1,) * left + tuple(value.shape)
        aligned += (1,) * (result.dim() - len(aligned))
        self.uses.found.append(
            Use(name, value, result.detach(), get_gradient_edge(result), aligned=aligned, factor=factor, sign=sign)
        )


@contextmanager
def uses_of(model: nn.Module) -> Iterator[Uses]:
    """Within the block, every recognised application of a trainable parameter is noted.

    Recognised are linear maps, convolutions, matrix products and embeddings, their biases, the affine parameters of
    normalisations, PReLU, and sums and products with a parameter; a parameter may be used several times, or by a view.
    """
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    uses = Uses()
    elementwise = _Elementwise(names, uses)

    def linear(call: LinearCall) -> None:
        if not call.output.requires_grad:
            return
        name = elementwise.name_of(call.weight)
        if name is not None and call.weight.requires_grad and call.kind != "recurrent":
            edge = get_gradient_edge(call.output)
            uses.found.append(Use(name, call.weight, call.output.detach(), edge, call=call))
        if call.bias is not None:
            axis = call.output.dim() + call.unit_axis if call.bias.dim() == 1 else None
            elementwise.add(call.bias, call.output, None, axis=axis)

    with trace_calls(model, linear, None, Handler(after=elementwise.after)):
        yield uses


def _fixed(value: Tensor) -> Callable[[], Tensor]:
    held = value.detach()
    return lambda: held


def _negative_part(values: Tensor) -> Tensor:
    return values.clamp(max=0)
