"""Is stacking worth it here? One short measurement on copies of the clients."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import torch

from potluck.core import toolkit
from potluck.core.client import Client, FitRequest
from potluck.core.random import seeded
from potluck.core.task import Task
from potluck.engines.vectorized.stack import Stack

CLIENTS, BATCHES, TRIALS = 8, 4, 3


def worth_stacking(task: Task, make: Callable[[int], Client]) -> bool:
    """Train a few clients of the commonest architecture for a few batches, in turn and stacked; faster wins."""
    common, count = Counter(info.architecture for info in task.clients).most_common(1)[0]
    if count < 2:
        return False
    indexes = [info.index for info in task.clients if info.architecture == common and info.samples > 1][
        :CLIENTS
    ]
    if len(indexes) < 2:
        return False
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with seeded("worth_stacking"):
        for _ in range(TRIALS):
            for stacked in (False, True):
                seconds[stacked].append(_time([make(index) for index in indexes], stacked=stacked))
    return min(seconds[True]) < min(seconds[False])


def _time(clients: list[Client], *, stacked: bool) -> float:
    size = min(min(len(me.train) for me in clients), BATCHES * clients[0].batch_size())
    pairs = []
    for me in clients:
        me.train = me.train.select(torch.arange(size))
        request = FitRequest(toolkit.cross_entropy_loss, (), me.model, 1, None, None, "model", None)
        pairs.append((me, request))
    started = time.perf_counter()
    if stacked:
        Stack(pairs).fit()
    else:
        for me, request in pairs:
            me.train_plainly(request)
    return time.perf_counter() - started
