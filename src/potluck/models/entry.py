"""What a family of networks tells the registry about each of its members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from potluck.core.model import ClientModel
from potluck.models.inputs import PLAIN_INPUTS, InputFacts

Kind = Literal["image", "series", "text", "any"]

EXAMPLE_SHAPES: dict[Kind, tuple[int, ...]] = {
    "image": (3, 32, 32),
    "series": (9, 128),
    "text": (64,),
    "any": (32,),
}


@dataclass(frozen=True)
class InputSpec:
    """The task a network is built for: shape of one input, number of classes, words known to a text model.

    Pretrained networks also ask for what inputs mean, and which weights they start from (`models.pretrained`).
    """

    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
    inputs: InputFacts = PLAIN_INPUTS
    pretrained: bool | str | None = None


@dataclass(frozen=True)
class ModelEntry:
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
