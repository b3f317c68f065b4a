"""What families of networks share: what each tells the registry of its members, and how layers take first weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel

Kind = Literal["image", "series", "text", "any"]

_FORMS: dict[Kind, tuple[str, ...]] = {
    "image": ("channels", "height", "width"),
    "series": ("channels", "steps"),
    "text": ("length",),
}


EXAMPLE_SHAPES: dict[Kind, tuple[int, ...]] = {
    "image": (3, 32, 32),
    "series": (9, 128),
    "text": (64,),
    "any": (32,),
}


@dataclass(frozen=True)
class Request:
    """The task a network is built for: shape of one input, number of classes, words known to a text model."""

    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0


@dataclass(frozen=True)
class Entry:
    """One architecture: what it is in a line, how it is built, and the smallest input it accepts.

    `pooled_head` makes the head when the features are pooled to a common size; networks whose published
    setting uses something else than one linear layer there name it. `rated` families come in widths,
    asked for as `NAME@RATE`; their builder takes the rate as second argument. `channels_last` says that the
    network trains faster with its channels last in memory (`potluck bench --part layout`): it belongs to the
    network, so that rounding is the same on every machine.
    """

    summary: str
    build: Callable[..., ClientModel]
    kind: Kind = "image"
    min_side: int = 1
    multiple: int = 1
    pooled_head: Callable[[int, int], nn.Module] = nn.Linear
    rated: bool = False
    channels_last: bool = False

    def check(self, name: str, request: Request) -> None:
        """Refuse an input the network cannot take, naming model, shape and remedy."""
        shape = request.shape
        form = _FORMS.get(self.kind, shape)
        if len(shape) != len(form) or min(shape, default=0) < 1:
            raise PotluckError(
                f"Model {name!r} takes {self.kind} input of shape ({', '.join(map(str, form))}), not {shape}; "
                f"choose a model for this data or reshape it."
            )
        sides = shape[1:] if self.kind in ("image", "series") else shape
        if sides and min(sides) < self.min_side:
            need = "×".join([str(self.min_side)] * len(sides))
            smaller = "a model of the group 'small5'" if self.kind == "image" else "another model"
            raise PotluckError(
                f"Model {name!r} needs inputs of at least {need}, but input_shape is {shape}; "
                f"choose {smaller} or larger inputs."
            )
        if any(side % self.multiple for side in sides):
            raise PotluckError(
                f"Model {name!r} cuts its input into patches of {self.multiple}×{self.multiple}, which do "
                f"not fit input_shape {shape}; choose another model or resize the inputs."
            )
        if self.kind == "text" and request.vocabulary < 2:
            raise PotluckError(
                f"Model {name!r} reads word numbers and needs vocabulary=N, the number of different words "
                f"including 0 for padding."
            )


def he_normal(layer: nn.Module) -> None:
    """He's initialisation for a layer followed by ReLU, with zero bias.

    Torch's own default lets the signal fade from layer to layer, which costs a small client with few
    batches most of its first rounds. Apply it before the head is added: nothing rectifies the class scores.
    Layers under batch norm do better with the default, as larger weights make their steps relatively smaller.
    """
    if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


@contextmanager
def only_shapes() -> Iterator[None]:
    """A block in which networks are built without numbers, to see how large they are.

    Torch would draw normal numbers that have no place to be through its compiler, the import of which takes longer
    than a small round.
    """
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Leaves a layer's weights alone where they would be drawn."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Draw nothing, do everything else."""
        options = kwargs or {}
        if func in _DRAWING:
            return args[0] if args else options["tensor"]
        return func(*args, **options)


_DRAWING = (torch.Tensor.normal_, torch.Tensor.uniform_, nn.init.normal_, nn.init.uniform_)
