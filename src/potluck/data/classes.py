"""Names of classes: unite those of several sources, and number a data set's labels by an agreed list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from potluck.core.errors import PotluckError, plain
from potluck.data.dataset import Data


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names in order: by size when all are numbers, else by the alphabet."""
    distinct = sorted(set(names))
    with suppress(ValueError):
        distinct.sort(key=float)
    return tuple(distinct)


def list_names(names: Sequence[str]) -> str:
    """Return names for a sentence; of many, the first ones and how many there are."""
    shown = ", ".join(plain(name, 60) for name in names[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"


def names_are_numbers(data: Data) -> bool:
    """Tell whether labels need no names: there are none, or label i is called by its number."""
    return data.class_names in ((), tuple(map(str, range(len(data.class_names)))))


def with_class_names(data: Data, names: Sequence[str], owner: str, *, private: bool = False) -> Data:
    """Return the data with label `i` meaning `names[i]`.

    Labels that have names are numbered by them; labels without names are taken as numbers of this list. `owner` begins
    the sentence of an error, which keeps the data's own names to itself where they are `private`.
    """
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise PotluckError(f"data.class_names lists {duplicate!r} twice; list every class once.")
    present = _present(data)
    own = data.class_names or tuple(names)
    if len(present) and int(present.max()) >= len(own):
        raise PotluckError(
            f"{owner} has label {int(present.max())}, and data.class_names lists {len(names)} names "
            f"({list_names(names)}), of labels 0 to {len(names) - 1}; list the name of every label."
        )
    absent = [own[label] for label in present.tolist() if own[label] not in names]
    if absent:
        which = f"{len(absent)} of its own" if private else list_names(absent)
        raise PotluckError(
            f"{owner} has {'the class' if len(absent) == 1 else 'the classes'} {which}, which data.class_names "
            f"({list_names(names)}) does not list; add it there, or rename it in the data."
        )
    place = {name: label for label, name in enumerate(names)}
    numbers = torch.tensor([place.get(name, 0) for name in own], dtype=torch.int64)
    test_y = None if data.test_y is None else numbers[data.test_y.long()]
    return replace(
        data, y=numbers[data.y.long()], test_y=test_y, num_classes=len(names), class_names=tuple(names)
    )


def _present(data: Data) -> Tensor:
    """Return the labels that occur, ascending."""
    labels = data.y if data.test_y is None else torch.cat([data.y, data.test_y])
    return torch.bincount(labels.long()).nonzero().flatten()
