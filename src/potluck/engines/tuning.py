"""Short measurements that choose memory layout, worker count and stacking."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch

from potluck.core.client import Client
from potluck.core.errors import unknown
from potluck.core.random import seeded
from potluck.core.task import Task
from potluck.core.training import FitRequest, cross_entropy_loss
from potluck.engines.vectorized.stack import MAX_STACK_CLIENTS, fit_stacked, split_into_stacks, stacking_key
from potluck.federation.federation import BUILT, Federation
from potluck.models.registry import parse_name
from potluck.worker.hardware import synchronize

BATCHES, TRIALS = 4, 3

Pair = tuple[Client, FitRequest]


def time_training(clients: Sequence[Client], fit: Callable[[list[Pair]], object] | None = None) -> float:
    """Return seconds that these clients, which are spoilt by it, take for a few batches: by `fit`, or one by one."""
    pairs = []
    for me in clients:
        # No client is cut to the size of others: uneven last batches cost a stack more than a client by itself.
        me.train = me.train.select(torch.arange(min(len(me.train), BATCHES * me.batch_size())))
        pairs.append((me, plain_request(me)))
    synchronize(clients[0].task.device)
    started = time.perf_counter()
    (fit or _one_by_one)(pairs)
    synchronize(clients[0].task.device)
    return time.perf_counter() - started


def plain_request(me: Client) -> FitRequest:
    """Return an epoch of cross-entropy on the client's own model."""
    return FitRequest(loss=cross_entropy_loss, model=me.model, epochs=1)


def _one_by_one(pairs: list[Pair]) -> None:
    for me, request in pairs:
        me.train_alone(request)


LAYOUT_GAIN = 1.05
"""How many times faster it has to be: rounding changes, so a gain within noise is not worth it."""


def resolve_channels_last(words: Sequence[str], federation: Federation) -> tuple[str, ...]:
    """Return the architectures that a setting means: names, `all`, those that are so already (`built`), or `auto`.

    `auto` measures networks that the zoo does not know; of its own it knows the answer.
    """
    architectures, built = list(federation.task.architectures), federation.built_channels_last()
    if tuple(words) == ("all",):
        return tuple(architectures)
    if tuple(words) == BUILT:
        return built
    if tuple(words) == ("auto",):
        with seeded("channels last"):
            return tuple(
                name
                for name in architectures
                if (name in built if parse_name(name) else _is_faster(name, federation))
            )
    for word in words:
        if word not in architectures:
            raise unknown(
                "architecture in engine.channels_last", word, [*architectures, "built", "all", "auto"]
            )
    return tuple(words)


def _is_faster(architecture: str, federation: Federation) -> bool:
    """Train the client with the most samples for a few batches, in turns either way."""
    infos = [info for info in federation.task.clients if info.architecture == architecture]
    largest = max(infos, key=lambda info: info.samples, default=None)
    weights = federation.task.architectures[architecture].initial.values()
    if largest is None or largest.samples < 2 or not any(weight.dim() == 4 for weight in weights):
        return False
    either = federation.with_channels_last(()), federation.with_channels_last((architecture,))
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(TRIALS + 1):
        for place, variant in zip(seconds, either, strict=True):
            place.append(time_training([variant.client(largest.index)]))
    plain, last = (min(times[1:]) for times in seconds)  # the first turn warms up
    return plain > LAYOUT_GAIN * last


Make = Callable[[int], Client]


def stacking_candidates(task: Task, make: Make) -> list[int]:
    """Return a few clients of the commonest architecture; none where there are not two that could be stacked."""
    common, _ = Counter(info.architecture for info in task.clients).most_common(1)[0]
    indices = [info.index for info in task.clients if info.architecture == common and info.samples > 1][
        :MAX_STACK_CLIENTS
    ]
    candidates = (
        list(split_into_stacks(indices, task.architectures[common].initial.values(), task.device)[0])
        if indices
        else []
    )
    return candidates if len(candidates) > 1 and _alike([make(index) for index in candidates]) else []


def is_stacking_faster(task: Task, make: Make, cohort: int, workers: int = 1) -> bool:
    """Train a few clients for some batches, in turn and stacked, and return whether stacks make a shorter round.

    Stacks are fewer than clients: where there are less of them than workers, some of these would stand idle.
    """
    indexes = stacking_candidates(task, make)
    if not indexes:
        return False
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with seeded("worth_stacking"):
        for _ in range(TRIALS):
            seconds[False].append(time_training([make(index) for index in indexes]))
            try:
                seconds[True].append(time_training([make(index) for index in indexes], fit_in_stacks))
            except RuntimeError:  # not every network can be stacked: one that looks at its numbers, say
                return False
    alone, together, sizes = min(seconds[False]), min(seconds[True]), stack_sizes(task, cohort)
    longest = together * _longest(sizes, workers)
    return max(sizes) > 1 and longest < alone * _longest([1] * cohort, workers)


def fit_in_stacks(pairs: list[Pair]) -> None:
    """Fit clients of equal requests as a run would: in stacks, and one by one those too large for a stack."""
    for piece in split_into_stacks(pairs, pairs[0][1].model.parameters(), pairs[0][0].task.device):
        fit_stacked(piece)


def stack_sizes(task: Task, cohort: int) -> list[int]:
    """Return the sizes of the stacks of a cohort with the mix of architectures of all clients."""
    sizes = list[int]()
    for name, count in Counter(info.architecture for info in task.clients).items():
        share = range(max(1, round(cohort * count / len(task.clients))))
        sizes += [
            len(piece)
            for piece in split_into_stacks(share, task.architectures[name].initial.values(), task.device)
        ]
    return sizes


def _longest(sizes: Iterable[int], workers: int) -> int:
    """Return how many clients the busiest worker gets, with the largest stacks assigned first."""
    loads = [0] * workers
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


def _alike(clients: Sequence[Client]) -> bool:
    """Return whether these clients can be stacked: models of one name may still be wired differently."""
    keys = [stacking_key(me, plain_request(me)) for me in clients]
    return keys[0] is not None and all(key == keys[0] for key in keys)
