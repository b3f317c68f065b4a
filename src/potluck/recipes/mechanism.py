"""Whether a method's own mechanism acted in a run, by a number that the method records of itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potluck.runs.run import Run


@dataclass(frozen=True)
class Mechanism:
    """A note of a method, its value where the mechanism does nothing, and the least distance from it that counts."""

    note: str
    idle: float
    least: float
    about: str


MECHANISMS: dict[str, Mechanism] = {
    "pfedafm": Mechanism("alpha", 1.0, 0.01, "mean mixing weight α; 1 is the private model alone"),
    "fedgh": Mechanism("movement", 0.0, 1e-6, "relative change of the header in a server step"),
    "fedl2g-l": Mechanism("movement", 0.0, 1e-6, "relative change of the guiding vectors by the quiz"),
    "fedl2g-f": Mechanism("movement", 0.0, 1e-6, "relative change of the guiding vectors by the quiz"),
    "fedin": Mechanism("pairs", 0.0, 0.5, "pairs of features that the server holds"),
    "fedapen": Mechanism("lambda", 0.5, 0.01, "mean share λ of the private model; 0.5 before it is learned"),
}


@dataclass(frozen=True)
class Activity:
    """The value of a mechanism's note that lies farthest from doing nothing."""

    mechanism: Mechanism
    value: float

    @property
    def acts(self) -> bool:
        """Whether the mechanism changed anything worth the name."""
        return abs(self.value - self.mechanism.idle) >= self.mechanism.least

    def __str__(self) -> str:
        return f"{self.mechanism.note} {self.value:.3g}"


def activity(method: str, run: Run) -> Activity | None:
    """Return what the mechanism did in a run; nothing for a method that records none."""
    mechanism = MECHANISMS.get(method)
    if mechanism is None:
        return None
    return _farthest(mechanism, ((record.get("notes") or {}).get(mechanism.note) for record in run.rounds))


def stored_activity(method: str, notes: Mapping[str, Sequence[Sequence[float]]]) -> Activity | None:
    """Return the same from stored curves of notes: points of round and value."""
    mechanism = MECHANISMS.get(method)
    if mechanism is None:
        return None
    return _farthest(mechanism, (value for _, value in notes.get(mechanism.note, ())))


def _farthest(mechanism: Mechanism, values: Iterable[Any]) -> Activity | None:
    known = [float(value) for value in values if value is not None and math.isfinite(float(value))]
    if not known:
        return None
    return Activity(mechanism, max(known, key=lambda value: abs(value - mechanism.idle)))
