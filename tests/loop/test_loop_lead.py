"""Limited draws in large populations equal a scan of all clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.core.random import generator
from potluck.loop.loop import Loop
from potluck.loop.schedule import Clock, LeadLimiter, exclude, index_of, sample_without_replacement
from potluck.methods.fedavg import FedAvg
from potluck.methods.scaffold import Scaffold
from potluck.methods.standalone import Standalone
from support.tiny import Recorder, make_loop, tiny


@pytest.mark.parametrize(("length", "count"), [(1, 1), (2, 1), (7, 3), (7, 7), (7, 9), (50, 49), (5000, 20)])
def test_the_places_drawn_are_the_beginning_of_torchs_permutation(length: int, count: int):
    for seed in range(5):
        permutation = torch.randperm(length, generator=generator(seed))
        assert sample_without_replacement(length, count, generator(seed)) == permutation[:count].tolist()


def test_full_draw_advances_the_stream_like_a_permutation():
    """Who draws twice from one stream, as the lead does where few are close, must find the same numbers."""
    stream, torchs = generator(3), generator(3)
    sample_without_replacement(9, 9, stream)
    torch.randperm(9, generator=torchs)
    assert torch.equal(torch.rand(4, generator=stream), torch.rand(4, generator=torchs))


@given(st.sets(st.integers(0, 40), max_size=30), st.sets(st.integers(0, 40), max_size=20))
def test_leaving_some_out_is_the_list_without_them(numbers: set[int], some: set[int]):
    remaining = exclude(some, sorted(numbers))
    expected = sorted(numbers - some)
    assert [remaining[place] for place in range(len(remaining))] == expected
    assert [index_of(value, remaining) for value in expected] == list(range(len(expected)))
    assert all(index_of(value, remaining) is None for value in some)


def formerly(
    idle: Sequence[int],
    busy: Sequence[int],
    numbers: dict[int, int],
    room: int,
    lead: int,
    rng: torch.Generator,
) -> list[int]:
    """The rule as it reads, going through everybody: those close to the one with the fewest jobs, by lot."""
    jobs = {index: numbers.get(index, 0) for index in (*idle, *busy)}
    chosen: list[int] = []
    while len(chosen) < room:
        least = min(jobs.values())
        close = [index for index in idle if index not in chosen and jobs[index] - least < lead]
        if not close:
            break
        order = torch.randperm(len(close), generator=rng)[: room - len(chosen)]
        for index in sorted(close[place] for place in order.tolist()):
            jobs[index] += 1
            chosen.append(index)
    return sorted(chosen)


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.integers(0, 30), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 2**16),
    st.booleans(),
)
def test_limited_draw_equals_a_scan_of_all_clients(
    clients: set[int], max_concurrent: int, lead: int, seed: int, some_away: bool
):
    """Fifty draws in a row, with answers coming back in any order in between."""
    eligible, choice, numbers = sorted(clients), generator("luck", seed), dict[int, int]()
    pending: list[Any] = []
    dispatcher = make_loop(Standalone(), mode="async", concurrency=max_concurrent, lead=lead).dispatcher
    dispatcher.task = replace(dispatcher.task, clients=range(31), seed=seed)  # type: ignore[arg-type]
    away = {int(torch.randint(31, (), generator=choice)) for _ in range(10 * some_away)}
    if some_away:
        dispatcher.clock = Clock(available=lambda info, draw: (info + draw) % 31 not in away)  # type: ignore[operator]
    for draw in range(1, 51):
        busy = [flight.job.client for flight in pending]
        free = [index for index in eligible if index not in busy]
        idle = [index for index in free if (index + draw) % 31 not in away] or free
        room = min(max_concurrent, len(eligible)) - len(busy)
        expected = formerly(idle, busy, numbers, room, lead, generator(seed, "sampling", draw))
        dispatcher.progress.pending = pending
        assert dispatcher.choose(eligible, 1000) == expected
        for index in expected:
            numbers[index] = dispatcher.progress.job_counts[index] = numbers.get(index, 0) + 1
            pending.append(SimpleNamespace(job=SimpleNamespace(client=index)))
        pending.pop(int(torch.randint(len(pending), (), generator=choice)))


def test_lead_limiter_counts_jobs_from_before_a_resume():
    full_history, half = LeadLimiter(range(5), {}, 2), {0: 2, 1: 1, 3: 1}
    for client in (0, 1, 0, 3):
        full_history.record(client)
    taken_up = LeadLimiter(range(5), half, 2)
    for client in (1, 2, 4, 3, 0):
        full_history.record(client)
        taken_up.record(client)
        places = range(len(full_history.eligible(())))
        assert [full_history.eligible(())[n] for n in places] == [taken_up.eligible(())[n] for n in places]


# -- nobody goes through the population, round for round and answer for answer ---------------------------------


class Counted(tuple[Any, ...]):
    """A population that counts how many of its members were looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        type(self).looks += 1
        return super().__getitem__(place)

    def __iter__(self) -> Any:
        type(self).looks += len(self)
        return super().__iter__()


def looks_of_steps(loop: Loop, steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many entries of the population some steps look at, once the first ones are over."""
    for _ in range(3):
        loop.step()
    monkeypatch.setattr(Counted, "looks", 0)
    for _ in range(steps):
        loop.step()
    return Counted.looks


def counted_loop(clients: int, method: Any, **plan: Any) -> Loop:
    """A loop over so many clients of two architectures, of which all know each other by counted sequences."""
    few = tiny(4, validation=False)
    infos = Counted(replace(few.task.clients[n % 4], index=n, name=f"client-{n}") for n in range(clients))
    members = [few.members[n % 4] for n in range(clients)]
    fed = replace(few, task=replace(few.task, clients=infos), members=members)
    loop = make_loop(method, fed, rounds=10_000, participation=4 / clients, callbacks=[Recorder()], **plan)
    loop.server.eligible = Counted(loop.server.eligible)
    return loop


PLANS: dict[str, dict[str, Any]] = {
    "whole rounds": {},
    "one at a time": {"mode": "async"},
    "several, nobody far ahead": {"mode": "async", "concurrency": 3},
    "several, any number ahead": {"mode": "async", "concurrency": 3, "lead": 0},
    "buffered": {"mode": "async", "concurrency": 4, "buffer": 2},
}


@pytest.mark.parametrize("method", [Standalone, FedAvg, Scaffold])
@pytest.mark.parametrize("plan", PLANS)
def test_server_step_examines_equally_many_clients_in_larger_populations(
    plan: str, method: Any, monkeypatch: pytest.MonkeyPatch
):
    small = looks_of_steps(counted_loop(100, method(), **PLANS[plan]), 12, monkeypatch)
    large = looks_of_steps(counted_loop(3200, method(), **PLANS[plan]), 12, monkeypatch)
    # Only a search by halves looks at more in a population that is 32 times as large: at five more, or six.
    assert 0 < small <= large < small + 200 < 3200


def test_listed_clients_need_no_scan_of_the_population(monkeypatch: pytest.MonkeyPatch):
    loop = counted_loop(3200, Standalone(), order=((5, 1, 9, 3), (7, 2, 3100, 4)))
    assert looks_of_steps(loop, 4, monkeypatch) < 1000
