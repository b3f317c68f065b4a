"""What keeping the channels last in memory gains, or loses."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.population import CNNS, endless_loop, population, serial_engine
from benchmarks.rows import Row
from benchmarks.trials import ratio, time_alternately
from potluck.methods.standalone import Standalone

MODELS = (*CNNS, "resnet18", "mobilenet-v2")


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Plain ÷ channels last, in processor time. No goal: it is asked for, and can be measured per network."""
    for name in ("cnn-5",) if quick else MODELS:
        for batch in (10,) if quick else (10, 64):
            built = population(1, [name], 2 * batch if quick else 128, batch)
            plain, last = built.with_channels_last(()), built.with_channels_last((name,))
            actions = {
                label: endless_loop(Standalone(), one, serial_engine(Standalone(), one), 1).step
                for label, one in (("plain", plain), ("last", last))
            }
            seconds = time_alternately(actions, 2 if quick else 5, clock=time.process_time)
            spread = ratio(seconds["plain"], seconds["last"])
            yield Row("plain ÷ channels last", f"{name}, batch {batch}", spread)
