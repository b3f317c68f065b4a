"""A client's own rows cut into training, validation and test parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError
from potluck.core.random import derive_seed

Rows = NDArray[np.int64]
MOST_SHARES = 20
"""Parts with a larger sum are taken for percents, which a slip of the finger may keep from adding up."""


def split_client(
    index: Rows, parts: Sequence[float] = (0.75, 0.25), *, seed: int, client: object
) -> tuple[Rows, ...]:
    """Cut a client's rows at random into `parts`: training first, test last, validation between.

    The cut depends on the seed and the client's name alone, never on which client was built first. Every
    client keeps at least one training row and, with two rows or more, at least one test row.
    """
    if len(index) == 0:
        raise PotluckError(f"Client {client!r} has no rows to split; give every client at least one.")
    rng = np.random.default_rng(derive_seed("split", seed, client))
    order = rng.permutation(np.sort(np.asarray(index, dtype=np.int64)))
    ends = np.cumsum(_sizes(len(order), parts))[:-1]
    return tuple(np.sort(part) for part in np.split(order, ends))


def split_in_three(
    index: Rows, split: str, *, seed: int, client: object, test_apart: bool = False
) -> tuple[Rows, Rows, Rows]:
    """A client's training, validation and test rows by a text such as `"8:1:1"`; a part may be empty.

    With `test_apart` the test rows come from elsewhere, and these are cut into training and validation alone.
    """
    parts = parse_split(split)
    nothing = index[:0]
    validation = parts[1] if len(parts) == 3 else 0.0
    if test_apart and not validation:
        return index, nothing, nothing
    if test_apart:
        train, middle = split_client(index, parts[:2], seed=seed, client=client)
        return train, middle, nothing
    pieces = split_client(index, parts, seed=seed, client=client)
    return pieces[0], (pieces[1] if validation else nothing), (pieces[-1] if len(pieces) > 1 else nothing)


def _sizes(n: int, parts: Sequence[float]) -> list[int]:
    total = sum(parts)
    edges = np.rint(np.cumsum(parts) / total * n).astype(int)
    sizes: list[int] = np.diff(edges, prepend=0).tolist()
    if sizes[0] == 0:
        sizes[int(np.argmax(sizes))] -= 1
        sizes[0] = 1
    if len(sizes) > 1 and n > 1 and sizes[-1] == 0:
        spare = [sizes[0] - 1, *sizes[1:]]
        sizes[max(range(len(sizes)), key=lambda part: (spare[part], part))] -= 1  # validation before training
        sizes[-1] = 1
    return sizes


def parse_split(text: str) -> tuple[float, ...]:
    """`"8:1:1"`, `"8:2"` or `"75:25"` as fractions; `"shared"` keeps all rows for training.

    With `"shared"` the test set is common to all clients: the publisher's test part.
    """
    if text == "shared":
        return (1.0,)
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or min(numbers) < 0 or numbers[0] <= 0 or numbers[-1] <= 0:
        raise PotluckError(
            f"Split {text!r} is not understood; write train:test or train:val:test, such as 8:1:1."
        )
    total = sum(numbers)
    if total > MOST_SHARES and abs(total - 100) > 0.5:
        raise PotluckError(
            f"Split {text!r} adds up to {total:g}; write percents that add up to 100, such as 75:25, or small shares, "
            "such as 8:1:1."
        )
    return tuple(number / total for number in numbers)
