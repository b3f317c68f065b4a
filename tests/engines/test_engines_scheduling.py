"""Job queue of the pool: longest first, clients stay with a worker, work is shared where it pays."""

from __future__ import annotations

from potluck.engines.pool.scheduling import DurationEstimates, JobQueue
from potluck.wire.jobs import Job


def job(number: int, client: int) -> Job:
    return Job(number, "train", client, 0, round=1, rounds=1)


def alone(number: int, client: int) -> tuple[Job]:
    return (job(number, client),)


def agenda(*costs: float) -> JobQueue:
    return JobQueue(DurationEstimates(lambda client: costs[client]), move_cost=0.5)


def test_the_longest_job_goes_first_and_equal_ones_in_the_order_submitted() -> None:
    todo = agenda(1.0, 3.0, 2.0, 3.0)
    for client in range(4):
        todo.add(alone(10 + client, client))
    taken = [todo.take(0, {}) for _ in range(5)]
    assert [batch and batch[0][0].id for batch in taken] == [11, 13, 12, 10, None]
    assert not todo


def test_jobs_of_one_client_keep_their_order_and_wait_for_each_other() -> None:
    todo = agenda(1.0)
    todo.add(alone(1, 0))
    todo.add(alone(2, 0))
    assert todo.take(0, {}) == (alone(1, 0), [])
    assert todo.take(0, {}) is None
    todo.done(alone(1, 0))
    assert todo.take(0, {}) == (alone(2, 0), [])


def test_a_job_that_was_lost_comes_before_the_later_ones_of_its_client() -> None:
    todo = agenda(1.0)
    todo.add(alone(1, 0))
    todo.add(alone(2, 0))
    todo.take(0, {})
    todo.requeue(alone(1, 0))
    assert todo.take(0, {}) == (alone(1, 0), [])


def settled() -> JobQueue:
    """Clients 0 and 1 live on worker 0, client 2 on worker 1; all have a new job of 1, 2 and 1 seconds."""
    todo = agenda(1.0, 2.0, 1.0)
    for client, home in enumerate((0, 0, 1)):
        todo.add(alone(client + 1, client))
        todo.take(home, {})
        todo.done(alone(client + 1, client))
    for client in range(3):
        todo.add(alone(client + 10, client))
    return todo


def test_a_worker_takes_its_own_clients_first() -> None:
    assert settled().take(1, {}) == (alone(12, 2), [])


def test_an_idle_worker_helps_the_one_with_most_ahead_of_it() -> None:
    todo = settled()
    todo.take(1, {})
    # Worker 0 has 1 + 2 seconds to do: taking its longest job from it saves one second, moving costs a half.
    assert todo.take(1, {}) == (alone(11, 1), [(1, 0)])
    # The client lives on worker 1 from now on.
    todo.done(alone(11, 1))
    todo.add(alone(20, 1))
    assert todo.take(1, {}) == (alone(20, 1), [])


def test_a_client_is_not_moved_for_less_than_it_costs() -> None:
    todo = settled()
    assert todo.take(0, {}) == (alone(11, 1), [])
    todo.take(1, {})
    # Worker 0 will come to client 0 in 0.4 s by itself, or in 0.6 s.
    assert todo.take(1, {0: 0.4}) is None
    assert todo.take(1, {0: 0.6}) == (alone(10, 0), [(0, 0)])


def test_clients_not_measured_are_guessed_at_the_speed_of_the_others() -> None:
    costs = DurationEstimates(lambda client: [100.0, 300.0][client])
    assert costs.of(job(1, 1)) == 300.0
    costs.record(job(1, 0), 2.0)
    assert costs.of(job(2, 1)) == 6.0
    costs.record(job(2, 1), 5.0)
    assert costs.of(job(3, 1)) == 5.0
    costs.record(job(3, 1), 4.0)
    assert costs.of(job(4, 1)) == 4.5
