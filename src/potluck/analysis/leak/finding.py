"""What a look at a run's answers gives: scores, pictures, and what could not be asked."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Leak:
    """One question: how well it could be answered, how well by chance, from what, and over how many cases."""

    question: str
    score: float
    chance: float
    way: str
    cases: int


@dataclass(frozen=True)
class Shown:
    """One class of one client in pictures, by what each of them is; all have values in [0, 1]."""

    client: int
    label: int
    samples: int
    pictures: Mapping[str, Tensor]

    def stored(self) -> dict[str, Any]:
        """As JSON: 256 shades, in base64."""
        shape = list(next(iter(self.pictures.values())).shape)
        shades = {name: _bytes(picture) for name, picture in self.pictures.items()}
        return {
            "client": self.client,
            "class": self.label,
            "samples": self.samples,
            "shape": shape,
            "pictures": {name: base64.b64encode(each).decode() for name, each in shades.items()},
        }


def _bytes(picture: Tensor) -> bytes:
    return (picture * 255).round().byte().numpy().tobytes()


def read_shown(entry: Mapping[str, Any]) -> dict[str, np.ndarray[Any, np.dtype[np.uint8]]]:
    """The pictures of a stored entry, `[channels, height, width]` each."""
    return {
        name: np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(entry["shape"])
        for name, text in entry["pictures"].items()
    }


@dataclass
class Findings:
    """Everything that was found; `skipped` has a sentence for each question that could not be asked."""

    scores: list[Leak] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def stored(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "scores": [asdict(one) for one in self.scores],
            "skipped": self.skipped,
            "pictures": [one.stored() for one in self.shown],
        }
