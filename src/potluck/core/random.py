"""Reproducibility: named random streams, single-threaded sums, rounding of denormals."""

from __future__ import annotations

import functools
import hashlib
import operator
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


def derive_seed(*parts: object) -> int:
    """Return a seed below 2⁶³ from any sequence of names and numbers; the same on every machine.

    Torch's CPU generator starts from its lower 32 bits alone, so among hundreds of thousands of streams a few
    are equal: harmless for batches and first weights, but no secret may rest on such a stream.
    """
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*parts: object) -> torch.Generator:
    """Return a new CPU generator for the stream named by `parts`."""
    return torch.Generator().manual_seed(derive_seed(*parts))


def add_up(values: Iterable[float]) -> float:
    """Add numbers from left to right: the built-in sum of floats rounds otherwise from Python 3.12 on."""
    return functools.reduce(operator.add, values, 0)


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Run a block whose torch defaults (layer initialisation, dropout) draw from the named stream.

    Layers take their first weights, and dropout its masks, from torch's default generator and in its default precision.
    Inside the block the generator is ours and the precision single; afterwards the caller's own are back, untouched.
    """
    seed, precision = derive_seed(*parts), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        if torch.cuda.is_available() or torch.backends.mps.is_available():
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                torch.manual_seed(seed)
                yield
            return
        # The same without accelerators, a hundred times cheaper: `manual_seed` notes a stack trace for each kind.
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)
    finally:
        torch.set_default_dtype(precision)


@contextmanager
def without_denormals() -> Iterator[None]:
    """Flush denormal numbers to 0 inside the block.

    Optimiser states of clients that have learned their few classes fill with such numbers, and many processors
    take a hundred times as long for each. The setting belongs to the thread that makes it.
    """
    before = _SMALLEST / _TWO == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


_SMALLEST, _TWO = sys.float_info.min, 2.0
"""Half of the smallest normal number is 0 exactly where denormals are flushed."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread inside the block, so that sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
