"""Is training clients together faster here? One short measurement on copies of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from potluck.core.client import Client
from potluck.core.random import seeded
from potluck.core.task import Task
from potluck.engines.trial import TRIALS, Pair, plain_request, time_training
from potluck.engines.vectorized.stack import MOST, fit_together, in_pieces, key_of

Make = Callable[[int], Client]


def team_to_try(task: Task, make: Make) -> list[int]:
    """A few clients of the commonest architecture; none where there are not two that could be stacked."""
    common, _ = Counter(info.architecture for info in task.clients).most_common(1)[0]
    alike = [info.index for info in task.clients if info.architecture == common and info.samples > 1][:MOST]
    team = (
        list(in_pieces(alike, task.architectures[common].initial.values(), task.device)[0]) if alike else []
    )
    return team if len(team) > 1 and _alike([make(index) for index in team]) else []


def is_faster_together(task: Task, make: Make, cohort: int, workers: int = 1) -> bool:
    """Train a team for a few batches, in turn and stacked, and see which makes the shorter round.

    Stacks are fewer than clients: where there are less of them than workers, some of these would stand idle.
    """
    indexes = team_to_try(task, make)
    if not indexes:
        return False
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with seeded("worth_stacking"):
        for _ in range(TRIALS):
            seconds[False].append(time_training([make(index) for index in indexes]))
            try:
                seconds[True].append(time_training([make(index) for index in indexes], stacked))
            except RuntimeError:  # not every network can be stacked: one that looks at its numbers, say
                return False
    alone, together, sizes = min(seconds[False]), min(seconds[True]), team_sizes(task, cohort)
    longest = together * _longest(sizes, workers)
    return max(sizes) > 1 and longest < alone * _longest([1] * cohort, workers)


def stacked(pairs: list[Pair]) -> None:
    """Fit clients that are alike as a run would: in stacks, and by itself whoever is too large for one."""
    for piece in in_pieces(pairs, pairs[0][1].model.parameters(), pairs[0][0].task.device):
        fit_together(piece)


def team_sizes(task: Task, cohort: int) -> list[int]:
    """The sizes of the teams that a cohort makes, if architectures are in it as they are among all."""
    sizes = list[int]()
    for name, count in Counter(info.architecture for info in task.clients).items():
        share = range(max(1, round(cohort * count / len(task.clients))))
        sizes += [
            len(piece) for piece in in_pieces(share, task.architectures[name].initial.values(), task.device)
        ]
    return sizes


def _longest(sizes: Iterable[int], workers: int) -> int:
    """How many clients the busiest worker gets, with the largest teams given out first."""
    loads = [0] * workers
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


def _alike(clients: Sequence[Client]) -> bool:
    """Whether these clients can be stacked: models of one name may still be wired differently."""
    keys = [key_of(me, plain_request(me)) for me in clients]
    return keys[0] is not None and all(key == keys[0] for key in keys)
