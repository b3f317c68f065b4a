"""Settings of schedule and evaluation: draws, answers per server step, protocols, the virtual clock."""

from __future__ import annotations

import math
import typing
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from potluck.core.payload import Payload
from potluck.core.settings import Settings, setting
from potluck.core.task import Averaging, ClientInfo, Rule, Task
from potluck.wire.jobs import Test

Mode = Literal["auto", "sync", "async"]
LEAD = 4
"""Jobs that a client may be ahead of another by default: near whole rounds in accuracy, far below them in time."""


@dataclass(frozen=True)
class Schedule(Settings):
    """When clients train. A round is a cohort's worth of ended jobs in either mode, so that curves compare."""

    rounds: int = setting(20, "how many rounds", ge=1)
    participation: float = setting(1.0, "share of the clients asked per round", gt=0, le=1)
    order: tuple[tuple[int, ...], ...] = setting(
        (),
        "clients of each draw, one list of client numbers after another, repeated; empty: drawn at random",
    )
    exclude: tuple[int, ...] = setting(
        (), "clients, by number, that take no part: they neither train nor are tested", later=True
    )
    mode: Mode = setting(
        "auto", "server steps per round (sync) or per answer (async); auto: the method's own"
    )
    buffer: int = setting(0, "answers per server step; 0: the cohort (sync) or 1 (async)", ge=0)
    concurrency: int = setting(0, "clients at work at once; 0: the cohort (sync) or 1 (async)", ge=0)
    lead: int | None = setting(
        None,
        "jobs that a client may be ahead of the one with the fewest before it waits, where rounds are not whole; "
        "0: any number; unset: 4 where several clients work at once, else any number",
        ge=0,
    )
    min_clients: int = setting(1, "usable answers without which a round ends the run", ge=0)
    patience: float = setting(
        43200.0,
        "seconds that a round waits for nodes where fewer than min_clients (at least one) can be reached",
        results=False,
        later=True,
        ge=0,
    )
    deadline: float = setting(0.0, "virtual seconds a synchronous round waits; 0: for all clients", ge=0)
    over_select: float = setting(1.0, "ask this many times the cohort, drop the late", ge=1, le=1e6)
    staleness_power: float = setting(
        0.0, "a stale answer weighs (1 + staleness)^-power, its staleness counted in rounds", ge=0
    )
    robust: Rule = setting("mean", "how the server averages; all but the mean withstand a poisoned answer")
    attackers: float = setting(
        0.3,
        "expected share of attackers: what trimmed-mean leaves out at either end, and krum in all",
        later=True,
        ge=0,
        lt=0.5,
    )
    max_share: float = setting(
        1.0,
        "part of an average by samples that one client may have at most; 1: what it registers",
        later=True,
        gt=0,
        le=1,
    )
    max_payload_mb: float = setting(1024.0, "megabytes; a larger answer is rejected", gt=0, le=1e9)
    on_failure: Literal["stop", "continue"] = setting(
        "stop", "at a client's exception: end the run, or go on"
    )

    @property
    def synchronous(self) -> bool:
        """Whether a server step waits for the whole cohort."""
        return self.mode != "async" and self.buffer == 0 and self.concurrency == 0

    @property
    def round_timeout(self) -> float:
        """Virtual seconds that a synchronous round waits."""
        return self.deadline or math.inf

    @property
    def averaging(self) -> Averaging:
        """How the server takes averages."""
        return Averaging(self.robust, self.attackers, self.max_share)

    def cohort(self, clients: int) -> int:
        """m = max(1, int(C·N)), with a guard against 0.29·100 = 28.99…"""
        return max(1, int(self.participation * clients + 1e-9))

    def jobs_per_round(self, clients: int) -> int:
        """Return how many jobs a round has: the cohort, and the spare ones of over-selection."""
        return min(clients, math.ceil(self.cohort(clients) * self.over_select - 1e-9))

    def answers_per_step(self, clients: int) -> int:
        """Return how many answers the server waits for."""
        default = 1 if self.mode == "async" else self.cohort(clients)
        return min(self.buffer or default, self.max_concurrent(clients))

    def max_concurrent(self, clients: int) -> int:
        """Return how many clients are busy at once."""
        default = 1 if self.mode == "async" else self.jobs_per_round(clients)
        return min(self.concurrency or default, clients)

    def max_lead(self, clients: int) -> int:
        """By how many jobs a client may be ahead; 0: any number.

        With several clients at work fast ones are idle again first and would do most jobs, so that the data of slow
        clients would hardly be learned.
        """
        default = LEAD if not self.synchronous and self.max_concurrent(clients) > 1 else 0
        return default if self.lead is None else self.lead

    def staleness_weight(self, staleness: int, clients: int) -> float:
        """Return how much an update counts that is so many server steps old, each of which is a part of a round."""
        rounds = staleness * self.answers_per_step(clients) / self.jobs_per_round(clients)
        return float((1 + rounds) ** -self.staleness_power)

    def ordered_clients(self, draw: int) -> tuple[int, ...]:
        """Return the clients of the n-th draw (counted from 1), where `order` is set."""
        return self.order[(draw - 1) % len(self.order)]

    def draw(self, idle: IntSequence, count: int, rng: torch.Generator) -> list[int]:
        """Choose clients uniformly without replacement, in ascending order."""
        return sorted(idle[place] for place in sample_without_replacement(len(idle), count, rng))


def sample_without_replacement(length: int, count: int, rng: torch.Generator) -> list[int]:
    """Return the first `count` numbers of `torch.randperm(length)`, without drawing the others.

    Torch swaps each position with one drawn from those after it; here only swapped positions are stored.
    """
    if count >= length:
        return torch.randperm(length, generator=rng).tolist()
    sample: list[int] = []
    moved: dict[int, int] = {}
    for place in range(count):
        other = place + int(torch.randint(length - place, (), generator=rng))
        sample.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return sample


@dataclass(frozen=True)
class Clock:
    """Virtual time. Without devices every job takes one second, uploads take none, and all clients are available.

    `duration(client, number, message)`: seconds from sending a client its job of that number until the answer is
    ready. `upload(client, size)`: seconds that an answer of so many bytes takes. `available(client, draw)`: whether a
    client can take a job at the n-th draw; None: all can.
    """

    duration: Callable[[ClientInfo, int, Payload], float] = lambda client, number, message: 1.0
    upload: Callable[[ClientInfo, int], float] = lambda client, size: 0.0
    available: Callable[[ClientInfo, int], bool] | None = None


Protocol = Literal["local", "received", "shared", "global"]
Protocols = tuple[Protocol, ...]
Select = Literal["auto", "validation", "test", "last"]


@dataclass(frozen=True)
class Evaluation(Settings):
    """How a comparison measures: one protocol for all its methods.

    `local`: the round's participants right after training, on their own test data; in asynchronous runs all clients
    that have trained so far, each as it stands. `received`: all clients
    as if they had just got the server's message, on their own test data. `shared`: the same on one common
    test set. `global`: the server's own model on the common test set, where the method has one.

    Clients' validation samples are looked at in the very jobs of the chosen protocol (for `shared` and `global`: as
    if clients had just got the server's message), and say which round was the best one.
    """

    protocol: Protocol = setting("local", "which test gives `accuracy`")
    also: Protocols = setting((), "further protocols, recorded beside it")
    every: int = setting(1, "rounds between evaluations; the last round always has one", ge=1)
    clients: Literal["all", "one-per-architecture"] = setting(
        "all", "whom `received` and `shared` test after a round"
    )
    select: Select = setting(
        "auto", "what the best round is best on; auto: validation samples where clients have some, else test"
    )
    gradient_norm: bool = setting(
        False,
        "also record the squared gradient norm of the tested models on their clients' training samples",
        later=True,
    )
    newcomers: float = setting(
        0.0, "share of the clients kept out of training; at the end they join, or train alone", ge=0, lt=1
    )
    newcomer_epochs: int | None = setting(None, "how long they train; unset: training.epochs", ge=1)

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """All protocols to record, the chosen one first."""
        return (self.protocol, *(name for name in self.also if name != self.protocol))

    def due(self, round_number: int, rounds: int) -> bool:
        """Return whether a round is evaluated; the last one always is."""
        return round_number % self.every == 0 or round_number == rounds

    def tests_in_training(self, task: Task) -> tuple[Test, ...]:
        """Return what training jobs end with: the local scores, which need no job of their own."""
        own: tuple[Test, ...] = ("own",) if "local" in self.protocols else ()
        return (*own, *self._validation(task), *self._gradient()) if self.protocol == "local" else own

    def tests(self, task: Task) -> tuple[Test, ...]:
        """Return the test sets that need jobs of their own after a round."""
        names: dict[Protocol, Test] = {"received": "own", "shared": "shared"}
        tests = tuple(names[name] for name in self.protocols if name in names)
        return tests if self.protocol == "local" else (*tests, *self._validation(task), *self._gradient())

    def last_tests(self, task: Task) -> tuple[Test, ...]:
        """Return what every client is tested on at the end."""
        test: Test = "shared" if self.protocol in ("shared", "global") else "own"
        return (test, *self._validation(task))

    def _validation(self, task: Task) -> tuple[Test, ...]:
        return ("validation",) if task.has_validation else ()

    def _gradient(self) -> tuple[Test, ...]:
        return ("gradient",) if self.gradient_norm else ()

    def population(self, task: Task, absent: Collection[int] = ()) -> list[int]:
        """Return which clients the `received` and `shared` protocols ask; never absent ones."""
        present = [info for info in task.clients if info.index not in absent]
        if self.clients == "all":
            return [info.index for info in present]
        first = {info.architecture: info.index for info in reversed(present)}
        return sorted(first.values())


class IntSequence(typing.Protocol):
    """A sequence of integers by position: a list, a range, or a view without some of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> int: ...


class ExcludingView:
    """A view of a sequence without some positions (ascending)."""

    def __init__(self, whole: IntSequence, places: list[int]) -> None:
        self._whole, self._places = whole, places

    def __len__(self) -> int:
        return len(self._whole) - len(self._places)

    def __getitem__(self, place: int, /) -> int:
        # `places[n] - n` of the others stand before the n-th place that is skipped.
        gaps = range(len(self._places))
        return self._whole[place + bisect_right(gaps, place, key=lambda gap: self._places[gap] - gap)]


def index_of(number: int, numbers: IntSequence) -> int | None:
    """Return the position of a number among ascending ones, or None."""
    place = bisect_left(numbers, number)
    return place if place < len(numbers) and numbers[place] == number else None


def exclude(excluded: Iterable[int], numbers: IntSequence) -> IntSequence:
    """Return ascending numbers without some of them."""
    places = sorted(place for number in excluded if (place := index_of(number, numbers)) is not None)
    return ExcludingView(numbers, places) if places else numbers


class LeadLimiter:
    """Limits how many jobs a client may be ahead of the client with the fewest: fewer than `lead`.

    It is updated job by job. All clients are scanned only when the last client with the fewest jobs gets another one,
    which happens at most once in as many jobs as there are clients.
    """

    def __init__(self, clients: IntSequence, numbers: Mapping[int, int], lead: int) -> None:
        self._clients, self._jobs, self._lead = clients, dict(numbers), lead
        self._scan()

    def _scan(self) -> None:
        jobs = [self._jobs.get(self._clients[place], 0) for place in range(len(self._clients))]
        self._fewest = min(jobs, default=0)
        self._last = jobs.count(self._fewest)
        self._ahead = [place for place, count in enumerate(jobs) if self._is_ahead(count)]

    def _is_ahead(self, jobs: int) -> bool:
        return jobs - self._fewest >= self._lead

    def eligible(self, busy: Iterable[int]) -> IntSequence:
        """Return the clients that may get a job, without the busy ones; valid until the next `record`."""
        return exclude(busy, ExcludingView(self._clients, self._ahead) if self._ahead else self._clients)

    def record(self, client: int) -> None:
        """Count one more job of a client."""
        before = self._jobs.get(client, 0)
        self._jobs[client] = before + 1
        self._last -= before == self._fewest
        if not self._last:
            self._scan()
        elif self._is_ahead(before + 1) and not self._is_ahead(before):
            insort(self._ahead, bisect_left(self._clients, client))
