"""Which population a run trained, as digests: what an experiment file cannot say of a user's own objects."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor

from potluck.codec import encode_state
from potluck.core.tree import flatten
from potluck.federation import Federation


def fingerprint(federation: Federation) -> dict[str, str]:
    """Digests of the clients (names, labels, a first sample) and of the models (first weights of each kind)."""
    task = federation.task
    clients: list[Any] = [task.num_classes, list(task.input_shape), task.seed]
    for one, info in zip(federation.participants, task.clients, strict=True):
        first = one.train.take(slice(0, 1))[0]
        clients.append([info.name, info.architecture, _tensor(one.train.labels), _tensor(first)])
    models = {
        name: {key: _tensor(tensor) for key, tensor in architecture.initial.items()}
        for name, architecture in task.architectures.items()
    }
    return {"clients": _text(clients), "models": _text(models)}


def _tensor(tensor: Tensor) -> str:
    return hashlib.sha256(encode_state(flatten(tensor))).hexdigest()


def _text(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
