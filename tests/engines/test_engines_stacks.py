"""Stacked clients give the same bits in any worker, under any timing and failure."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from same_runs import ASYNCHRONOUS, SYNCHRONOUS, Dawdling, Fatal, Methods, assert_equal, outcome, worker

import potluck
from potluck.core.client import Client
from potluck.core.payload import EmptyPayload
from potluck.core.training import Training
from potluck.engines import tuning
from potluck.engines.pool import PoolEngine
from potluck.engines.pool.channel import BatchOrder, JobChannel, JobReport
from potluck.engines.pool.scheduling import DurationEstimates, JobQueue
from potluck.engines.tuning import plain_request
from potluck.engines.vectorized import JobBatcher, VectorizedEngine, stack
from potluck.federation.federation import Federation
from potluck.loop.schedule import Schedule
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH
from potluck.wire.jobs import Answer, Failure, Job, Kind
from support.tiny import tiny

BUFFERED = Schedule(3, buffer=2, concurrency=4)


def federation() -> Federation:
    return tiny(7, hidden=(5, 7), norm=True, sizes=(12, 20, 9), training=Training(1, 4, momentum=0.9))


def together(method: Methods, fed: Federation, schedule: Schedule) -> dict[str, Any]:
    return outcome(method, VectorizedEngine(worker(method, fed), JobBatcher(fed.task)), fed, schedule)


def pool(method: Methods, fed: Federation, schedule: Schedule, workers: int = 2) -> dict[str, Any]:
    engine = PoolEngine(lambda: worker(method, fed), workers, batcher=JobBatcher(fed.task))
    return outcome(method, engine, fed, schedule)


def job(number: int, client: int, step: int = 0, kind: Kind = "train") -> Job:
    return Job(number, kind, client, 0, round=1, rounds=1, step=step)


def clients_of(batcher: Any) -> list[list[int]]:
    return [[queued.client for queued in batch] for batch in batcher]


# -- who is in a team --------------------------------------------------------------------------------------------


def test_a_team_is_of_one_step_and_one_architecture() -> None:
    """Clients 0, 2, 4, 6 and 1, 3, 5 are alike; tests are nobody's company, and the next step makes its own teams."""
    batcher = JobBatcher(tiny(7, hidden=(5, 7)).task)
    first, second = [job(n, n, 1) for n in range(5)], [job(10 + n, n, 2) for n in (1, 3)]
    tests = [job(20 + n, n, 1, "evaluate") for n in (0, 2)]
    assert clients_of(batcher.split(first + tests + second)) == [[0, 2, 4], [1, 3], [0], [2], [1, 3]]


def test_large_teams_are_cut_into_about_equal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = JobBatcher(tiny(7, hidden=(5,)).task)
    jobs = [job(n + 1, n) for n in range(7)]
    assert clients_of(batcher.split(jobs)) == [[*range(7)]]
    monkeypatch.setattr(stack, "MAX_STACK_CLIENTS", 3)
    assert clients_of(batcher.split(jobs)) == [[0, 1], [2, 3], [4, 5, 6]]


# -- the same bits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("schedule", [SYNCHRONOUS, ASYNCHRONOUS, BUFFERED], ids=["sync", "async", "buffered"])
def test_the_pool_gives_the_bits_of_one_process(schedule: Schedule, workers: int) -> None:
    fed = federation()
    assert_equal(pool(Dawdling(), fed, schedule, workers), together(FedGH(), fed, schedule))


def test_the_pool_really_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked workers see the patched class: a stack that cannot be made is a failure of its clients."""

    def broken(pairs: Any) -> Any:
        raise ValueError(f"{len(pairs)} together")

    monkeypatch.setattr(stack, "Stack", broken)
    results = pool(FedAvg(), tiny(4, hidden=(5,)), Schedule(1, on_failure="continue", min_clients=0))
    reasons = [failure["reason"] for failure in results["records"][0]["failures"]]
    assert len(reasons) == 4
    assert all("ValueError: 4 together" in reason for reason in reasons)


def test_a_worker_that_is_killed_over_a_team_changes_nothing(tmp_path: Path) -> None:
    fed, schedule = federation(), Schedule(3)
    assert_equal(pool(Fatal(lives=tmp_path, times=2, who=2), fed, schedule), together(FedGH(), fed, schedule))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_client_that_kills_every_worker_fails_alone_in_the_end(tmp_path: Path) -> None:
    fatal = Fatal(lives=tmp_path, times=99, who=2)
    records = pool(fatal, federation(), Schedule(2, on_failure="continue"))["records"]
    (failure,) = records[1]["failures"]
    assert failure["client"] == 2
    assert "its worker process died 3 times (signal SIGKILL)" in failure["reason"]
    assert records[1]["participants"] == [0, 1, 3, 4, 5, 6]
    assert len(list(tmp_path.iterdir())) == 6  # three times with its team, three times by itself


def test_a_run_on_the_pool_is_that_of_one_process(tmp_path: Path) -> None:
    rows = {}
    for name in ("serial", "pool"):
        run = potluck.run(
            "fedavg",
            clients=6,
            rounds=2,
            models="small-mlp",
            engine={"name": name, "vectorize": "on", "workers": 2},
            out=tmp_path / name,
        )
        rows[name] = [{**row, "seconds": 0} for row in run.rounds]
        assert f'name = "{name}"' in (run.path / "experiment.toml").read_text()
        assert run.summary["engine"] == "vectorized"
    assert rows["serial"] == rows["pool"]


# -- who gets it -------------------------------------------------------------------------------------------------


def test_a_team_waits_for_all_its_clients_and_goes_where_most_of_them_live() -> None:
    todo = JobQueue(DurationEstimates(), move_cost=0.5)
    for client, home in enumerate((0, 1, 1)):
        todo.add([job(client + 1, client)])
        todo.take(home, {})
    batch = [job(10 + client, client) for client in range(3)]
    todo.add(batch)
    for client in range(3):
        assert todo.take(0, {}) is None
        todo.done([job(client + 1, client)])
    assert todo.take(0, {}) is None  # it is worker 1's, who is idle and has nothing else to do
    assert todo.take(1, {}) == (batch, [(0, 0)])
    assert not todo


def test_a_team_that_was_lost_comes_before_later_jobs_of_its_clients() -> None:
    todo = JobQueue(DurationEstimates(), move_cost=0.5)
    batch, later = [job(1, 0), job(2, 1)], [job(3, 1)]
    todo.add(batch)
    todo.add(later)
    assert todo.take(0, {}) == (batch, [])
    todo.requeue(batch)
    assert todo.take(0, {}) == (batch, [])
    todo.done(batch)
    assert todo.take(0, {}) == (later, [])


def test_a_team_and_its_results_cross_a_socket() -> None:
    near_end, far_end = socket.socketpair()
    wire, batch = (
        JobChannel(EmptyPayload, EmptyPayload),
        [
            Job(1, "train", 4, 0, round=1, rounds=1, message=EmptyPayload()),
            Job(2, "train", 5, 0, round=1, rounds=1),
        ],
    )
    wire.send_order(near_end, BatchOrder(batch, [7, 8], [3]))
    order = wire.receive_order(far_end)
    assert [queued.client for queued in order.batch] == [4, 5]
    assert (order.versions, order.forget) == ([7, 8], [3])
    reports = [JobReport(Answer(1, 4, EmptyPayload()), 1, 0.5), JobReport(Failure(2, 5, "bad"), 0, 0.5)]
    wire.send_reports(far_end, reports)
    assert wire.receive_reports(near_end) == reports
    near_end.close()
    far_end.close()


# -- whether it pays ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cohort", "workers", "faster"),
    [
        (8, 1, True),  # 8 clients of a second each, or 0.6 s each
        (8, 2, False),  # 4 s on either worker, or 4.8 s on one of them
        (64, 2, True),  # 32 s on either, or two stacks of 19.2 s
        (72, 2, True),  # three stacks of 24, two of them for one worker: 28.8 s instead of 36
        (40, 4, False),  # two stacks of 20: 12 s, two workers idle; or 10 s
        (1, 1, False),  # one at a time is never a stack
    ],
)
def test_stacks_must_keep_all_workers_busy(
    cohort: int, workers: int, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(clients: list[Client], fit: Callable[..., Any] | None = None) -> float:
        return len(clients) * (1.0 if fit is None else 0.6)

    monkeypatch.setattr(tuning, "time_training", seconds)
    fed = tiny(4, hidden=(5,))
    assert tuning.is_stacking_faster(fed.task, fed.client, cohort, workers) is faster


def test_trial_stacks_only_clients_that_a_run_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pairs: Any) -> Any:
        raise AssertionError("stacked")

    monkeypatch.setattr(stack, "Stack", broken)
    fed = tiny(2, hidden=(5,))
    pairs = [(me, plain_request(me)) for me in map(fed.client, range(2))]
    with pytest.raises(AssertionError, match="stacked"):
        tuning.fit_in_stacks(pairs)
    monkeypatch.setattr(stack, "MAX_STACK_BYTES", 1)  # a byte: everybody is too large
    tuning.fit_in_stacks(pairs)
