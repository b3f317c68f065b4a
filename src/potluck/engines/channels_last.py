"""For which architectures is it faster to keep the channels last in memory? One short measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from potluck.core.errors import unknown
from potluck.core.random import seeded
from potluck.engines.trial import TRIALS, time_training
from potluck.federation import Federation

GAIN = 1.05
"""How many times faster it has to be: rounding changes, so a gain within noise is not worth it."""


def chosen(words: Sequence[str], federation: Federation) -> tuple[str, ...]:
    """The architectures that a setting means: names, `all`, or those that a measurement finds (`auto`)."""
    known = list(federation.task.architectures)
    if tuple(words) == ("all",):
        return tuple(known)
    if tuple(words) == ("auto",):
        with seeded("channels last"):
            return tuple(name for name in known if _is_faster(name, federation))
    for word in words:
        if word not in known:
            raise unknown("architecture in engine.channels_last", word, [*known, "all", "auto"])
    return tuple(words)


def _is_faster(architecture: str, federation: Federation) -> bool:
    """Train the client with the most samples for a few batches, in turns either way."""
    infos = [info for info in federation.task.clients if info.architecture == architecture]
    largest = max(infos, key=lambda info: info.samples, default=None)
    weights = federation.task.architectures[architecture].initial.values()
    if largest is None or largest.samples < 2 or not any(weight.dim() == 4 for weight in weights):
        return False
    either = federation, replace(federation, channels_last=frozenset({architecture}))
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(TRIALS + 1):
        for place, one in zip(seconds, either, strict=True):
            place.append(time_training([one.client(largest.index)]))
    plain, last = (min(times[1:]) for times in seconds)  # the first turn warms up
    return plain > GAIN * last
