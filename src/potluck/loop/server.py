"""The server's side of a step: messages, checks of answers, aggregation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Predictor, Update, payload_types
from potluck.core.payload import Payload, PayloadError
from potluck.core.random import seeded
from potluck.core.schema import check_payload
from potluck.core.task import CPU, ClientInfo, Context, Task
from potluck.loop.records import PendingJob, Progress
from potluck.loop.schedule import Schedule
from potluck.wire.jobs import Answer, Failure, Test
from potluck.wire.score import Score

if TYPE_CHECKING:
    from potluck.loop.secure_sums import ClientSum

Aggregated = tuple[list[Update[Any]], list[Failure]]


@dataclass(frozen=True)
class Accepted:
    """The usable updates by client id, the jobs without one, and the scores that came with updates, by client."""

    updates: list[Update[Any]]
    failures: list[Failure]
    scores: dict[int, dict[Test, Score]]


class Server:
    """Calls the method's server functions, each with its own random stream."""

    def __init__(
        self, method: Method[Any, Any, Any], task: Task, schedule: Schedule, progress: Progress | None = None
    ) -> None:
        self.method, self.task, self.schedule = method, task, schedule
        self.eligible, self.cohort = task.eligible, schedule.jobs_per_round(len(task.eligible))
        self._answer_type = payload_types(method)[1]
        self._keeps_latest = not schedule.synchronous
        self.seconds = 0.0
        """Processor time of the method's server functions so far, in this process."""
        self.progress = progress or Progress(self.initial_state())

    def initial_state(self) -> Any:
        """Make the server's state before the first step."""
        with seeded(self.task.seed, "torch", "init_server"):
            return self.method.init_server(self._context(1, 0))

    def set_initial_state(self, state: Any) -> None:
        """Start from a given state of the same form as the method's first one."""
        try:
            supplied, initial = tree.flatten(state), tree.flatten(self.progress.state)
        except TypeError as error:
            raise PotluckError(f"The state to begin with cannot be used: {error}.") from None
        for name in sorted(supplied.tensors.keys() | initial.tensors.keys()):
            shape, expected = (
                tuple(flat.tensors[name].shape) if name in flat.tensors else None
                for flat in (supplied, initial)
            )
            if shape != expected:
                raise PotluckError(
                    f"The state to begin with has {shape} at {name!r} where {type(self.method).__name__}.init_server "
                    f"makes {expected}; change what init_server gives, or pass a state of a run like this one."
                )
        self.progress.state = tree.unflatten(supplied, self.progress.state)

    def context(self) -> Context:
        """Return the context of the next step; its round is the one that the next ended job belongs to."""
        number = min(self.progress.ended // self.cohort + 1, self.schedule.rounds)
        return self._context(number, self.progress.step + 1)

    def _context(self, number: int, step: int) -> Context:
        cohort = 0 if self.schedule.synchronous else self.cohort
        return Context(
            self.task, number, self.schedule.rounds, self.task.seed, step, self.schedule.averaging, cohort
        )

    def message(self, client: ClientInfo, context: Context) -> Payload:
        """Return the message for a client, as a copy that no later step changes."""
        with self._seeded("broadcast"):
            message: Payload = self.method.broadcast(self.progress.state, client, context)
        return message.copy().to(CPU)

    def accept(
        self, arrived: Sequence[PendingJob], context: Context, sums: Mapping[int, ClientSum] | None = None
    ) -> Accepted:
        """Check the answers of ended jobs; `sums` has the secure sum that a client is in."""
        sums = sums or {}
        updates: list[Update[Any]] = []
        failures: list[Failure] = []
        scores: dict[int, dict[Test, Score]] = {}
        for pending in arrived:
            result, info = pending.result, self.task.clients[pending.job.client]
            if isinstance(result, Answer):
                try:
                    payload_info = sums[info.index].info if info.index in sums else info
                    payload = self._checked(result.payload, payload_info, context)
                except PayloadError as error:
                    result = Failure(pending.job.id, info.index, str(error), "invalid")
                else:
                    updates.append(self._update(pending, payload))
                    if result.scores:
                        scores[info.index] = result.scores
            if isinstance(result, Failure):
                failures.append(result)
        return Accepted(sorted(updates, key=lambda update: update.client.index), failures, scores)

    def _update(self, pending: PendingJob, payload: Payload, *, fresh: bool = True) -> Update[Any]:
        job, stale = pending.job, self.progress.step - pending.step
        sent = None if job.message is None else job.message.to(self.task.device)
        weight = self.schedule.staleness_weight(stale, len(self.eligible))
        return Update(self.task.clients[job.client], payload, stale, weight, sent, job.number, fresh)

    def _with_latest(self, updates: list[Update[Any]]) -> list[Update[Any]]:
        """Add the latest updates of other clients, up to a cohort; ordered by client id."""
        answered, latest = {update.client.index for update in updates}, list[Update[Any]]()
        for pending in reversed(self.progress.recent.values()):
            if pending.job.client not in answered and len(answered) + len(latest) < self.cohort:
                assert isinstance(pending.result, Answer)
                assert pending.result.payload is not None
                payload = pending.result.payload.to(self.task.device)
                latest.append(self._update(pending, payload, fresh=False))
        return sorted([*updates, *latest], key=lambda update: update.client.index)

    def keep_latest(self, arrived: Sequence[PendingJob], updates: Sequence[Update[Any]]) -> None:
        """Keep the aggregated answers, one per client and at most a cohort, if the method uses them."""
        if not self._keeps_latest:
            return
        recent, accepted = self.progress.recent, {update.client.index for update in updates}
        for pending in arrived:
            if pending.job.client in accepted:
                recent.pop(pending.job.client, None)
                recent[pending.job.client] = pending
        for client in list(recent)[: -self.cohort]:
            del recent[client]

    def _checked(self, payload: Payload | None, info: ClientInfo, context: Context) -> Payload:
        """Check that an answer is what the method declares, and return it on the server's device."""
        if payload is None:
            raise PayloadError(f"The answer holds no {self._answer_type.__name__}.")
        limit = int(self.schedule.max_payload_mb * 2**20)
        check_payload(payload, self._answer_type, self.task, info, max_bytes=limit)
        self.method.check_update(payload, info, context)
        return payload.to(self.task.device)

    def aggregate(
        self,
        updates: list[Update[Any]],
        failures: list[Failure],
        context: Context,
        sums: Mapping[int, ClientSum] | None = None,
    ) -> Aggregated:
        """Run the method's server function; if its state would not be finite, reject all updates instead."""
        now = self.progress
        if not updates:
            return updates, failures
        before = self._copy_state()
        aggregated = self._with_latest(updates) if self._keeps_latest else updates
        if sums:
            aggregated = join_sums(aggregated, sums)
        with self._seeded("server"):
            now.state = self.method.server(now.state, aggregated, context)
        if tree.is_finite(now.state):
            return updates, failures
        if before is None:
            raise PotluckError(
                f"The server's state of {type(self.method).__name__} is no longer finite after round "
                f"{context.round}, and it cannot be put back; keep tensors, modules and numbers in the state."
            )
        now.state = tree.unflatten(before, now.state)
        reason = "with this round's answers the server's state would no longer be finite"
        return [], failures + [Failure(-1, update.client.index, reason, "invalid") for update in updates]

    def _copy_state(self) -> tree.Flat | None:
        """Copy the state, which many methods change in place; None if it cannot be copied."""
        try:
            return tree.flatten(self.progress.state)
        except TypeError:
            return None

    def predictor(self, context: Context) -> Predictor | None:
        """Return the global model, where the method has one."""
        with self._seeded("predict_server"):
            return self.method.predict_server(self.progress.state, context)

    @contextmanager
    def _seeded(self, purpose: str) -> Iterator[None]:
        started = time.process_time()
        with seeded(self.task.seed, "torch", purpose, self.progress.step):
            yield
        self.seconds += time.process_time() - started


def join_sums(updates: Sequence[Update[Any]], sums: Mapping[int, ClientSum]) -> list[Update[Any]]:
    """Return one update for each secure sum, in place of those of its members.

    Where a method counts all clients alike, a sum counts by its members, relative to the largest sum.
    """
    joined, largest = list[Update[Any]](), max(len(total.members) for total in sums.values())
    for update in updates:
        total = sums.get(update.client.index)
        if total is None:
            joined.append(update)
        elif update.client.index == total.members[0].index:
            weight = update.weight if total.by_samples else update.weight * len(total.members) / largest
            joined.append(replace(update, client=total.info, weight=weight, members=total.members))
    return joined
