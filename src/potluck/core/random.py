"""Random streams that depend on names and numbers, never on who ran first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(*parts: object) -> int:
    """A seed below 2⁶³ from any sequence of names and numbers; the same on every machine.

    Torch's CPU generator starts from its lower 32 bits alone, so among hundreds of thousands of streams a few
    are equal: harmless for batches and first weights, but no secret may rest on such a stream.
    """
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*parts: object) -> torch.Generator:
    """A CPU generator of its own for the stream named by `parts`."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Run a block whose torch defaults (layer initialisation, dropout) draw from the named stream.

    Layers take their first weights, and dropout its masks, from torch's default generator. Inside the
    block that generator is ours; afterwards the caller's own state is back, untouched.
    """
    seed = derive_seed(*parts)
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
