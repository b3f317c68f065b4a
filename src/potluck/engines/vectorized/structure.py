"""Whether two networks compute the same function of their tensors: asked before they are stacked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, fx, nn

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""What torch itself keeps in a module: tensors, parts, hooks and the mode, which are looked at apart."""

OF_RECURRENT_LAYERS = frozenset({"_flat_weights", "_flat_weight_refs"})
"""Second names of a recurrent layer's parameters."""


def structure_of(model: nn.Module) -> object:
    """A value that is equal for networks of the same parts, settings and tensors; its numbers do not enter.

    What cannot be compared by value is compared by identity, so a doubt makes two networks different. Parts of
    it may be impossible to hash, which is a doubt as well. Shapes alone would not do: ReLU and Tanh have none.
    """
    modules = tuple((name, *_settings(module)) for name, module in model.named_modules())
    return (
        modules,
        _tensors(model.named_parameters(remove_duplicate=False)),
        _tensors(model.named_buffers(remove_duplicate=False)),
    )


def _settings(module: nn.Module) -> tuple[object, ...]:
    hooks = tuple(
        (name, *value.items()) for name, value in vars(module).items() if "_hooks" in name and value
    )
    if isinstance(module, fx.GraphModule):  # every one has a class of its own; its code says all
        return fx.GraphModule, module.code, hooks
    left_out = OF_EVERY_MODULE | (OF_RECURRENT_LAYERS if isinstance(module, nn.RNNBase) else frozenset())
    settings = {name: value for name, value in vars(module).items() if name not in left_out}
    return type(module), _comparable(settings), hooks


def _comparable(value: Any) -> object:
    if isinstance(value, dict):
        return dict, tuple((key, _comparable(item)) for key, item in sorted(value.items(), key=_by_name))
    if isinstance(value, list | tuple):
        return type(value), tuple(_comparable(item) for item in value)
    if isinstance(value, set):
        return set, frozenset(value)
    return type(value), value  # the type too: True, 1 and 1.0 are equal


def _by_name(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _tensors(named: Iterable[tuple[str, Tensor]]) -> tuple[object, ...]:
    """Name, form and learning of each tensor, and which name it had before if it is there twice (tied)."""
    first: dict[int, str] = {}
    return tuple(
        (
            name,
            first.setdefault(id(tensor), name),
            tuple(tensor.shape),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
        )
        for name, tensor in named
    )
