"""Which architectures keep the channels last in memory: as they were built, as asked, or as a trial finds."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.core.errors import unknown
from potluck.core.random import seeded
from potluck.engines.trial import TRIALS, time_training
from potluck.federation.federation import BUILT, Federation
from potluck.models.registry import parse_name

GAIN = 1.05
"""How many times faster it has to be: rounding changes, so a gain within noise is not worth it."""


def chosen(words: Sequence[str], federation: Federation) -> tuple[str, ...]:
    """The architectures that a setting means: names, `all`, those that are so already (`built`), or `auto`.

    `auto` measures networks that the zoo does not know; of its own it knows the answer.
    """
    known, built = list(federation.task.architectures), federation.built_channels_last()
    if tuple(words) == ("all",):
        return tuple(known)
    if tuple(words) == BUILT:
        return built
    if tuple(words) == ("auto",):
        with seeded("channels last"):
            return tuple(
                name
                for name in known
                if (name in built if parse_name(name) else _is_faster(name, federation))
            )
    for word in words:
        if word not in known:
            raise unknown("architecture in engine.channels_last", word, [*known, "built", "all", "auto"])
    return tuple(words)


def _is_faster(architecture: str, federation: Federation) -> bool:
    """Train the client with the most samples for a few batches, in turns either way."""
    infos = [info for info in federation.task.clients if info.architecture == architecture]
    largest = max(infos, key=lambda info: info.samples, default=None)
    weights = federation.task.architectures[architecture].initial.values()
    if largest is None or largest.samples < 2 or not any(weight.dim() == 4 for weight in weights):
        return False
    either = federation.laid_out(()), federation.laid_out((architecture,))
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(TRIALS + 1):
        for place, one in zip(seconds, either, strict=True):
            place.append(time_training([one.client(largest.index)]))
    plain, last = (min(times[1:]) for times in seconds)  # the first turn warms up
    return plain > GAIN * last
