"""One forward pass under many perturbations: the batch is repeated, and every use of a parameter gets its noise."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import weak
from torch.utils._pytree import tree_leaves, tree_map

from theta0._trace.interpreter import Handler, Interpreter, Step
from theta0.measurements.perturbation_noise import Noise, draw, gram_is_cheaper, gram_route
from theta0.measurements.perturbed_layers import (
    Rows,
    UnsupportedCall,
    axes_of,
    batch_norm_beside,
    each_convolution,
    extent_of,
    over_perturbations,
    patches,
    split_axis,
)

Preference = Literal["counted", "gram", "explicit"]

_LINEAR = F.linear  # attention replaces the module global while it runs
_CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}


class PerturbedCalls:  # a class because what it replaces shares the noise and what depends on it
    """Within `with calls.perturbed():`, rows p·M … (p+1)·M-1 of every tensor are computed with the parameters θ + ε_p.

    A linear map takes the Gram-Cholesky route where that is cheaper; anything else that a parameter enters is mapped
    over the perturbations by `torch.vmap`, with one draw for all its uses; what no parameter enters runs as it is on
    the repeated batch, batch normalisation apart. Without layouts nothing is perturbed: the shapes alone are noted.
    """

    def __init__(
        self,
        noise: Noise,
        names: Mapping[int, str],
        samples: int,
        *,
        prefer: Preference,
        reused: frozenset[int],
        layouts: Sequence[Sequence[Rows]] | None = None,
    ) -> None:
        self.noise, self.names, self.samples, self.prefer, self.reused = noise, names, samples, prefer, reused
        self.count = len(noise.generators)
        self.derived: Any = weak.WeakIdKeyDictionary()  # made from parameters alone → one value a perturbation
        self.repeated: Any = weak.WeakIdKeyDictionary()  # made from the inputs
        self.shared: Any = weak.WeakIdKeyDictionary()  # the inputs themselves, laid out anew
        self.layouts = layouts
        self.shapes: list[list[tuple[int, ...]]] = []  # call by call, of what it takes from the inputs
        self.axes: dict[int, int] = {}  # where these hold perturbations × samples, in the call at hand
        self.uses: dict[int, int] = {}
        self.routes: dict[str, str] = {}
        self.bytes = 0
        self.in_attention = False

    def inputs(self, inputs: Any) -> Any:
        """The batch repeated for each perturbation."""

        def repeated(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != self.samples:
                return leaf
            rows = leaf.repeat(self.count, *[1] * (leaf.dim() - 1))
            self.repeated[rows] = self.shared[rows] = True
            return rows

        return tree_map(repeated, inputs)

    def perturbed(self) -> Interpreter:
        """The context in which functions are perturbed."""
        return Interpreter([Handler(replace=self.replace, makes_weights=True)])

    def replace(self, step: Step) -> Any:
        """Compute one function for all perturbations."""
        func, args, options = step.function, step.arguments, step.options
        if func is F.multi_head_attention_forward:
            result = self.attention(step)
        else:
            leaves = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
            moved = [leaf for leaf in leaves if self.moves(leaf)]
            rows = self.in_attention or any(leaf in self.repeated for leaf in leaves)
            if rows and (moved or func is F.batch_norm) and not self.in_attention:
                self.locate([leaf for leaf in leaves if leaf in self.repeated])
            if rows and self.layouts is None:
                result = func(*args, **options)
            elif func is F.batch_norm and rows:
                result = self.batch_norm(*args, **options)
            elif not moved:
                result = func(*args, **options)
            elif not rows:
                return self.from_parameters(func, args, options)
            elif func is _LINEAR:
                result = self.linear(*args, **options)
            elif func in _CONVOLUTIONS:
                result = self.convolution(func, *args, **options)
            else:
                result = self.mapped(func, args, options)
            if not rows:
                return result
        return self.noted(step, result)

    def noted(self, step: Step, result: Any) -> Any:
        """Remember that a result depends on the inputs."""
        relayout = step.spec is not None and step.spec.relayout and any(a in self.shared for a in step.arguments[:1])
        changed = (result,) if result is not None else step.arguments[:1]  # assignments to a slice return nothing
        for leaf in tree_leaves(changed):
            if isinstance(leaf, Tensor):
                self.repeated[leaf] = True
                if relayout:
                    self.shared[leaf] = True
                elif leaf._base is None:
                    self.bytes += leaf.numel() * leaf.element_size()
        return result

    def moves(self, tensor: Tensor) -> bool:
        """Whether a tensor differs between perturbations because it is a parameter, or made from parameters alone."""
        return id(tensor) in self.noise.deviations or tensor in self.derived

    def values(self, tensor: Tensor) -> Tensor:
        """The perturbed values of a parameter, or of what was made from parameters, perturbations × shape."""
        if tensor in self.derived:
            found: Tensor = self.derived[tensor]
            return found
        self.used(tensor)
        return tensor + draw(self.noise, tensor)

    def used(self, *parameters: Tensor | None) -> None:
        """Count a use."""
        for parameter in parameters:
            if parameter is not None:
                self.uses[id(parameter)] = self.uses.get(id(parameter), 0) + 1

    def explicitly(self, *tensors: Tensor | None) -> None:
        """Note that parameters were drawn."""
        for tensor in tensors:
            if id(tensor) in self.names:
                self.routes[self.names[id(tensor)]] = "explicit"

    def from_parameters(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A function of parameters alone: a query of shape, a view, a parametrization's arithmetic."""
        result = func(*args, **options)
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            return result
        self.explicitly(*(leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)))
        many = self.vmapped(func, args, options, {})
        for leaf, values in zip(tree_leaves(result), tree_leaves(many), strict=True):
            if isinstance(leaf, Tensor):
                self.derived[leaf] = values
        return result

    def mapped(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A function of both, once for each perturbation."""
        axis = min(self.axes.values())
        many = self.vmapped(func, args, options, self.axes)
        self.explicitly(*(leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)))
        return tree_map(lambda leaf: leaf.movedim(0, axis).flatten(axis, axis + 1), many)

    def vmapped(self, func: Any, args: tuple[Any, ...], options: dict[str, Any], axes: Mapping[int, int]) -> Any:
        """The function mapped over the perturbations; `axes` says where repeated tensors hold them."""
        values: dict[int, tuple[Tensor, int]] = {}
        for leaf in tree_leaves((args, options)):
            if isinstance(leaf, Tensor) and self.moves(leaf):
                values[id(leaf)] = self.values(leaf), 0
            elif id(leaf) in axes:
                values[id(leaf)] = split_axis(leaf, axes[id(leaf)], self.count), axes[id(leaf)]
        return over_perturbations(func, args, options, values)

    def locate(self, tensors: list[Tensor]) -> None:
        """Find where the tensors that a call takes from the inputs hold perturbations × samples."""
        number, rows = len(self.shapes), self.count * self.samples
        self.shapes.append([tuple(tensor.shape) for tensor in tensors])
        if self.layouts is not None:
            expected = self.layouts[number] if number < len(self.layouts) else ()
            self.axes = dict(zip(map(id, tensors), axes_of(self.shapes[number], expected, rows), strict=True))

    def axis(self, tensor: Tensor) -> int:
        """Where a tensor made from the inputs holds perturbations × samples; attention fixes it."""
        return 1 if self.in_attention else self.axes[id(tensor)]

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """H Wᵀ + b, by the cheaper route."""
        if input not in self.repeated and not self.in_attention:
            return self.mapped(_LINEAR, (input, weight, bias), {})  # type: ignore[no-any-return]
        if self.in_attention and input.dim() == 2:  # torch has folded length and batch into one axis
            folded = input.view(-1, self.count * self.samples, input.shape[1])
            return self.linear(folded, weight, bias).flatten(0, 1)
        axis = self.axis(input)
        split = split_axis(input, axis, self.count).movedim(axis, 0)
        source = split.flatten(1, -2)
        if self.by_gram(weight, bias, source.shape[1], source.shape[2]):
            self.used(weight, bias)
            result = self.gram(source[0] if input in self.shared else source, weight, bias)
        else:
            result = self.explicit(source, weight, bias)
        return result.reshape(*split.shape[:-1], -1).movedim(0, axis).flatten(axis, axis + 1)

    def gram(self, source: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The Gram-Cholesky route with the deviations of these parameters; the weight may be of any shape."""
        std = self.noise.deviations
        bias_std = 0.0 if bias is None else std.get(id(bias), 0.0)
        name = self.names[id(weight)]
        self.routes[name] = "gram"
        if bias is not None and bias_std:
            self.routes[self.names[id(bias)]] = "gram"
        return gram_route(source, weight.flatten(1), bias, std[id(weight)], bias_std, self.noise, name)

    def explicit(self, source: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One matrix product a perturbation."""
        self.explicitly(weight, bias)
        weights = self.values(weight) if self.moves(weight) else weight.expand(self.count, *weight.shape)
        if bias is None:
            return torch.bmm(source, weights.mT)
        biases = self.values(bias).unsqueeze(1) if self.moves(bias) else bias
        return torch.baddbmm(biases, source, weights.mT)

    def by_gram(self, weight: Tensor, bias: Tensor | None, rows: int, fan_in: int) -> bool:
        """Whether the Gram-Cholesky route is open to a weight and bias, and wanted."""
        if id(weight) not in self.noise.deviations or weight.dim() < 2 or self.prefer == "explicit":
            return False
        both = [p for p in (weight, bias) if p is not None]
        if any(id(p) in self.reused or p in self.derived or id(p) in self.noise.drawn for p in both):
            return False
        return self.prefer == "gram" or gram_is_cheaper(rows, fan_in, weight.shape[0])

    def convolution(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        """A convolution, as a linear map of patches or once for each perturbation."""
        self.by_samples(input, "a convolution")
        if func is F.conv2d and groups == 1 and not isinstance(padding, str):
            extent = extent_of(input.shape[2:], weight.shape[2:], stride, padding, dilation)
            if self.by_gram(weight, bias, self.samples * extent[0] * extent[1], weight[0].numel()):
                self.used(weight, bias)
                shared = input in self.shared
                images = input[: self.samples] if shared else input
                rows = patches(images, weight.shape[2:], stride, padding, dilation)
                source = rows if shared else rows.view(self.count, -1, rows.shape[1])
                result = self.gram(source, weight, bias)
                return result.reshape(input.shape[0], -1, weight.shape[0]).mT.reshape(len(input), -1, *extent)
        self.explicitly(weight, bias)
        weights, biases = (self.each(parameter) for parameter in (weight, bias))
        return each_convolution(func, input, weights, biases, (stride, padding, dilation, groups))

    def batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Each perturbation has batch statistics of its own; the running ones are left alone."""
        self.by_samples(input, "batch normalisation")
        self.explicitly(weight, bias)
        statistics = (None, None) if training else (running_mean, running_var)
        vectors = (*statistics, weight, bias)
        tiled = [None if v is None else torch.cat([part for part in self.each(v) if part is not None]) for v in vectors]
        return batch_norm_beside(input, self.count, tiled, training, momentum, eps)

    def each(self, tensor: Tensor | None) -> Sequence[Tensor | None]:
        """The values of a parameter, perturbation by perturbation."""
        drawn = tensor is not None and self.moves(tensor)
        return self.values(tensor).unbind(0) if drawn else [tensor] * self.count  # type: ignore[arg-type]

    def by_samples(self, input: Tensor, what: str) -> None:
        """Require that the first axis runs over perturbations × samples."""
        if self.axes.get(id(input)) != 0 or input.shape[0] != self.count * self.samples:
            raise UnsupportedCall(f"{what} whose first axis does not run over the samples")

    def attention(self, step: Step) -> Any:
        """Attention is one opaque call; its projections are interpreted meanwhile."""
        self.in_attention = True
        step.options = {**step.options, "training": False}  # only switches dropout
        try:
            return step.interpreter.proceed(step)
        finally:
            self.in_attention = False
