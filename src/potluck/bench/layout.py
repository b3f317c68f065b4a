"""What keeping the channels last in memory gains, or loses."""

from __future__ import annotations

import time
from collections.abc import Iterator

from potluck.bench.population import CNNS, endless, population, serial_engine
from potluck.bench.rows import Row
from potluck.bench.trials import in_turns, ratio
from potluck.methods.standalone import Standalone

MODELS = (*CNNS, "resnet18", "mobilenet-v2")


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Plain ÷ channels last, in processor time. No goal: it is asked for, and can be measured per network."""
    for name in ("cnn-5",) if quick else MODELS:
        for batch in (10,) if quick else (10, 64):
            built = population(1, [name], 2 * batch if quick else 128, batch)
            plain, last = built.laid_out(()), built.laid_out((name,))
            actions = {
                label: endless(Standalone(), one, serial_engine(Standalone(), one), 1).step
                for label, one in (("plain", plain), ("last", last))
            }
            seconds = in_turns(actions, 2 if quick else 5, clock=time.process_time)
            spread = ratio(seconds["plain"], seconds["last"])
            yield Row("plain ÷ channels last", f"{name}, batch {batch}", spread)
