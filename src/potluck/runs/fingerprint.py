"""Which population a run trained, as digests: what an experiment file cannot say of a user's own objects."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from potluck.core.samples import Samples
from potluck.federation.federation import Federation
from potluck.loop.letter import as_bytes

BUDGET = 16 << 20
"""Bytes of rows that are looked at in all arrays together; smaller data are looked at whole."""

LEAST = 64
"""Rows of each array that are looked at, however many arrays there are."""


MANY = 1000
"""Clients that are looked at one by one where all were dealt from one data set; of more, so many from first to last."""


def fingerprint(federation: Federation) -> dict[str, str]:
    """Digests of the clients (names, rows, labels) and of the models (first weights of each kind)."""
    task, dealt = federation.task, federation.holdings
    looked_at: Sequence[int] = range(len(federation.members))
    clients: list[Any] = [task.num_classes, list(task.input_shape), task.seed]
    if dealt and len(looked_at) > MANY:
        # The rows of everybody as they were dealt; how they are then cut is the same rule for all.
        looked_at = torch.linspace(0, len(looked_at) - 1, MANY, dtype=torch.float64).round().long().tolist()
        kinds = [(info.name, info.architecture, info.samples, info.validation) for info in task.clients]
        labels = [part.y for part in (federation.members[0].train, federation.members[0].test)]
        clients += [kinds, *(_tensor(one) for one in (*dealt, *labels))]
    members = [federation.members[index] for index in looked_at]
    seen = _Arrays([samples.x for one in members for samples in (one.train, one.test, one.validation)])
    for one, index in zip(members, looked_at, strict=True):
        # Transforms are code: what they make of the first row stands for them.
        first, info = _tensor(one.train.take(slice(0, 1))[0]), task.clients[index]
        views = [seen.view(part) for part in (one.train, one.test, one.validation)]
        clients.append([info.name, info.architecture, *views, first])
    common = [
        None if samples is None else seen.view(samples) for samples in (federation.shared_test, task.public)
    ]
    models = {
        name: {key: _tensor(tensor) for key, tensor in architecture.initial.items()}
        for name, architecture in task.architectures.items()
    }
    return {"clients": _text([*clients, common]), "models": _text(models)}


class _Arrays:
    """Digests of arrays that many clients may share: each is read once, so that ten thousand views cost little."""

    def __init__(self, arrays: list[Tensor]) -> None:
        self._budget = BUDGET // max(1, len({_place(array) for array in arrays}))
        self._known: dict[object, str] = {}

    def view(self, samples: Samples) -> list[str]:
        """Which rows of which array, and their labels."""
        place = _place(samples.x)
        if place not in self._known:
            self._known[place] = self._digest(samples.x)
        rows = "all" if samples.index is None else _tensor(samples.index)
        return [self._known[place], rows, _tensor(samples.labels)]

    def _digest(self, array: Tensor) -> str:
        """All rows of a small array, or rows evenly spread from its first to its last."""
        count, size = len(array), max(1, array[:1].nbytes)
        looked_at = max(LEAST, self._budget // size)
        if count > looked_at:
            spread = torch.linspace(0, count - 1, looked_at, dtype=torch.float64).round().long()
            return _text([list(array.shape), _tensor(array[spread.to(array.device)])])
        return _text([list(array.shape), _tensor(array)])


def _place(array: Tensor) -> object:
    return array.data_ptr(), tuple(array.shape), array.stride(), array.dtype


def _tensor(tensor: Tensor) -> str:
    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(repr((plain.dtype, tuple(plain.shape))).encode())
    digest.update(as_bytes(plain))
    return digest.hexdigest()


def _text(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
