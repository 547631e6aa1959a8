"""Calling a user's model: out of its wrappers, with any form of inputs, to the one tensor that is its output."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import register_pytree_node, tree_flatten, tree_map

from theta0._errors import NothingBetterError

P = ParamSpec("P")
Step = Callable[[nn.Module, Any], Any]  # of the user's own: from the model and a batch to the loss


@dataclass(frozen=True, eq=False)
class StepInputs:
    """A batch of any form with the step that takes it; a pytree, so that it can be moved, copied and cut as data.

    Attributes:
        step: called with the model and the batch; returns the loss, or a mapping with it.
        item: the batch as the user's data source gave it.
    """

    step: Step
    item: Any


register_pytree_node(StepInputs, lambda s: ([s.item], s.step), lambda items, step: StepInputs(step, next(iter(items))))


def outputs_of(model: nn.Module, inputs: Any) -> Any:
    """Call the model: a mapping is passed as keywords, a sequence is unpacked if `forward` takes several arguments.

    A mapping's `labels` are left out where `forward` has no place for them: then they are only for the loss. The model
    gets copies, since a first layer that works in place would overwrite the data that every measurement shares.
    """
    return called(model, tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs))


def called(model: nn.Module, inputs: Any) -> Any:
    """As `outputs_of`, on the given tensors themselves."""
    if isinstance(inputs, StepInputs):
        return _stepped(model, inputs)
    if isinstance(inputs, Mapping):
        return model(**(inputs if _takes_labels(model) else without_labels(inputs)))
    if isinstance(inputs, (tuple, list)) and _takes_several(model):
        return model(*inputs)
    return model(inputs)


def _stepped(model: nn.Module, inputs: StepInputs) -> dict[str, Any]:
    """What a step returns, as if the model returned its own loss; `outputs` are those of the model's first call."""
    seen: list[Any] = []

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        if module is model:
            seen.append(output)

    handle = module_hooks.register_module_forward_hook(note)
    try:
        result = inputs.step(model, inputs.item)
    finally:
        handle.remove()
    loss = result.get("loss") if isinstance(result, Mapping) else result
    return {"outputs": seen[0] if seen else None, "loss": loss}


def without_labels(inputs: Any) -> Any:
    """A mapping without its `labels`; other inputs as they are."""
    return {k: v for k, v in inputs.items() if k != "labels"} if isinstance(inputs, Mapping) else inputs


def outputs_with(model: nn.Module, parameters: Mapping[str, Tensor], inputs: Any) -> Any:
    """As `outputs_of`, with other values in place of some parameters; tied ones are replaced together."""
    with _reparametrize_module(model, dict(parameters), tie_weights=True):
        return outputs_of(model, inputs)


def main_output(outputs: Any) -> Tensor | None:
    """The tensor that stands for a model's output: itself, its `.logits`, or the first floating tensor inside."""
    logits = getattr(outputs, "logits", None)
    if logits is None and isinstance(outputs, Mapping):
        logits = outputs.get("logits")
    if isinstance(logits, Tensor):
        return logits
    leaves = [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return next((leaf for leaf in leaves if leaf.dim() > 0), None)


def class_rows(outputs: Any) -> Float[Tensor, "samples classes"]:
    """A classifier's main output, if it is a row of at least two logits a sample."""
    logits = main_output(outputs)
    if logits is None or logits.dim() != 2 or logits.shape[1] < 2:
        got = "no floating tensor" if logits is None else f"shape {tuple(logits.shape)}"
        raise ValueError(
            f"model: expected outputs of samples × classes, at least two logits a sample, got {got}; for a single "
            "logit let the model return (0, logit)"
        )
    return logits


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's module inside `torch.compile`, DataParallel or DistributedDataParallel wrappers."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {model!r:.100}")
    require_whole(model)
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = cast(nn.Module, model._orig_mod)
        else:
            return model


def require_whole(model: nn.Module) -> None:
    """Refuse a model some of whose parameters are sharded over processes, or kept elsewhere than in the model.

    What a rank holds of them is neither their values nor their gradients.

    Raises:
        ValueError: naming the first of them.
    """
    for name, parameter in model.named_parameters():
        # By name: the classes live in sub-packages that not every build of torch has, or in another library.
        kinds = {kind.__name__ for kind in type(parameter).__mro__}
        if kinds & {"DTensor", "FlatParameter"} or hasattr(parameter, "_sharded_size") or hasattr(parameter, "ds_id"):
            raise ValueError(
                f"{name}: expected a whole parameter, got one sharded over processes (FSDP, tensor parallelism, ZeRO); "
                "look at the model before it is sharded: theta0.diagnose(model, …), then fully_shard(model)"
            )
        if parameter.is_meta and any(hasattr(module, "_hf_hook") for module in model.modules()):
            raise ValueError(
                f"{name}: expected a parameter with values, got one that accelerate loads when it is needed "
                "(device_map, CPU or disk offloading); load the model without device_map"
            )


def device_of(model: nn.Module) -> torch.device:
    """The one device of a model's parameters and buffers, which must have data; the CPU for a model without any."""
    devices = {t.device for t in [*model.parameters(), *model.buffers()]}
    if any(device.type == "meta" for device in devices):
        raise ValueError(
            "model: expected parameters with values, got some on the meta device; "
            "call model.to_empty(...) and initialize them first"
        )
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(
            f"model: expected all parameters and buffers on one device, got {names}; move it with model.to(device)"
        )
    return next(iter(devices), torch.device("cpu"))


def in_place(change: Callable[Concatenate[nn.Module, P], Any]) -> Callable[Concatenate[nn.Module, P], nn.Module]:
    """The public form, `name_`, of a function that changes a model and returns a result: it returns the model.

    Where the result says that nothing better was found it raises a `NothingBetterError`, and where it says that the
    user interrupted the work, KeyboardInterrupt.
    """

    @functools.wraps(change)
    def changed(model: nn.Module, *args: P.args, **kwargs: P.kwargs) -> nn.Module:
        result = change(model, *args, **kwargs)
        if getattr(result, "interrupted", False):
            raise KeyboardInterrupt
        if not getattr(result, "kept", True):
            raise NothingBetterError(result.refusal)
        return model

    changed.__name__ = changed.__qualname__ = f"{change.__name__}_"
    may_refuse = "kept" in getattr(change.__annotations__["return"], "__dataclass_fields__", ())
    said = "The model; a `NothingBetterError` says why where nothing better was found." if may_refuse else "The model."
    changed.__doc__ = re.sub(r"(Returns:\n +).*(?:\n +\S.*)*", rf"\g<1>{said}", change.__doc__ or "", count=1)
    changed.__annotations__ = change.__annotations__ | {"return": nn.Module}
    changed.__signature__ = inspect.signature(change).replace(return_annotation=nn.Module)  # type: ignore[attr-defined]
    return cast(Callable[Concatenate[nn.Module, P], nn.Module], changed)


def graph_nodes(tensors: Iterable[Tensor | None]) -> Iterator[Any]:
    """Every node of the graph behind some tensors, once."""
    waiting, seen = [t.grad_fn for t in tensors if t is not None], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting.extend(following for following, _ in node.next_functions)


def required_parameters(model: nn.Module) -> list[str]:
    """The arguments that `forward` cannot do without."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]


def parameter_names(model: nn.Module) -> set[str] | None:
    """The names of `forward`'s parameters; None where it takes any."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL}


def _takes_several(model: nn.Module) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return True
    required = [p for p in parameters if p.kind in kinds]
    return len(required) > 1


def _takes_labels(model: nn.Module) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return "labels" in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
