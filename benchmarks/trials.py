"""Two things timed in turns, so that whatever else the machine does hits both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Clock = Callable[[], float]
Action = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """The median of some measurements and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Quartiles of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


def time_alternately(
    actions: Mapping[str, Action], trials: int, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each action in each trial; the order is turned round from trial to trial.

    A first pass warms up and is not counted. `time.process_time` as the clock leaves out the time that other
    programs take from us: right for comparing single processes, useless for several.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    order = list(actions)
    for trial in range(trials + 1):
        for name in order:
            started = clock()
            actions[name]()
            if trial:
                seconds[name].append(clock() - started)
        order.reverse()
    return seconds


def ratio(over: list[float], under: list[float]) -> Spread:
    """Trial by trial, one divided by the other."""
    return Spread.of([mine / other for mine, other in zip(over, under, strict=True)])


@contextmanager
def patched_attribute(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """A block in which a method, or a function of a module, is what `wrap` makes of it."""
    own, original = name in vars(owner), getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
