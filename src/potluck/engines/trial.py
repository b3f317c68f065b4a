"""A short trial of training, for choices that only a measurement can make."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from potluck.core.client import Client
from potluck.core.training import FitRequest, cross_entropy_loss
from potluck.engines.hardware import settle

BATCHES, TRIALS = 4, 3

Pair = tuple[Client, FitRequest]


def time_training(clients: Sequence[Client], fit: Callable[[list[Pair]], object] | None = None) -> float:
    """Seconds that these clients, which are spoilt by it, take for a few batches: by `fit`, or one by one."""
    pairs = []
    for me in clients:
        # Nobody is cut to the size of others: uneven last batches cost a stack more than a client by itself.
        me.train = me.train.select(torch.arange(min(len(me.train), BATCHES * me.batch_size())))
        pairs.append((me, plain_request(me)))
    settle(clients[0].task.device)
    started = time.perf_counter()
    (fit or _one_by_one)(pairs)
    settle(clients[0].task.device)
    return time.perf_counter() - started


def plain_request(me: Client) -> FitRequest:
    """An epoch of cross-entropy on the client's own model."""
    return FitRequest(cross_entropy_loss, (), me.model, 1, None, None, "model", None)


def _one_by_one(pairs: list[Pair]) -> None:
    for me, request in pairs:
        me.train_alone(request)
