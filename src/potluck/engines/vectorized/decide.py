"""Is training clients together faster here? One short measurement on copies of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from potluck.core.client import Client
from potluck.core.random import seeded
from potluck.core.task import Task
from potluck.engines.trial import TRIALS, Pair, plain_request, time_training
from potluck.engines.vectorized.stack import Stack, in_pieces, key_of

CLIENTS = 8


def is_faster_together(task: Task, make: Callable[[int], Client]) -> bool:
    """Train a few clients of the commonest architecture for a few batches, in turn and stacked; faster wins."""
    common, count = Counter(info.architecture for info in task.clients).most_common(1)[0]
    if count < 2:
        return False
    indexes = [info.index for info in task.clients if info.architecture == common and info.samples > 1][
        :CLIENTS
    ]
    if len(indexes) < 2 or not _alike([make(index) for index in indexes]):
        return False
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with seeded("worth_stacking"):
        for _ in range(TRIALS):
            seconds[False].append(time_training([make(index) for index in indexes]))
            try:
                seconds[True].append(time_training([make(index) for index in indexes], _stacked))
            except RuntimeError:  # not every network can be stacked: one that looks at its numbers, say
                return False
    return min(seconds[True]) < min(seconds[False])


def _stacked(pairs: list[Pair]) -> None:
    for piece in in_pieces(pairs, pairs[0][1].model):
        Stack(piece).fit()


def _alike(clients: Sequence[Client]) -> bool:
    """Whether these clients can be stacked: models of one name may still be wired differently."""
    keys = [key_of(me, plain_request(me)) for me in clients]
    return keys[0] is not None and all(key == keys[0] for key in keys)
