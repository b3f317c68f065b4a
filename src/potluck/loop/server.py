"""The server's side of a step: what it sends, which answers it accepts, and how it learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Predictor, Update, payload_types
from potluck.core.payload import Payload, PayloadError
from potluck.core.random import seeded
from potluck.core.schema import check_payload
from potluck.core.task import CPU, ClientInfo, Context, Task
from potluck.loop.jobs import Answer, Failure
from potluck.loop.progress import Flight, Progress
from potluck.loop.schedule import Schedule

Accepted = tuple[list[Update[Any]], list[Failure]]


class Server:
    """Calls the method's server functions, each from a random stream of its own."""

    def __init__(
        self, method: Method[Any, Any, Any], task: Task, schedule: Schedule, progress: Progress | None = None
    ) -> None:
        self.method, self.task, self.schedule = method, task, schedule
        self.able, self.cohort = task.able, schedule.asked(len(task.able))
        self._answer_type = payload_types(method)[1]
        self._keeps_latest = method.sees_latest and not schedule.synchronous
        self.progress = progress or Progress(self.initial_state())

    def initial_state(self) -> Any:
        """The server's state before the first step."""
        with seeded(self.task.seed, "torch", "init_server"):
            return self.method.init_server(self._context(1, 0))

    def begin_with(self, state: Any) -> None:
        """Start from a given state, if it has the form of the method's own first one."""
        try:
            mine, usual = tree.flatten(state), tree.flatten(self.progress.state)
        except TypeError as error:
            raise PotluckError(f"The state to begin with cannot be used: {error}.") from None
        for name in sorted(mine.tensors.keys() | usual.tensors.keys()):
            found, wanted = (
                tuple(one.tensors[name].shape) if name in one.tensors else None for one in (mine, usual)
            )
            if found != wanted:
                raise PotluckError(
                    f"The state to begin with has {found} at {name!r} where {type(self.method).__name__}.init_server "
                    f"makes {wanted}; change what init_server gives, or bring a state of a run like this one."
                )
        self.progress.state = tree.unflatten(mine, self.progress.state)

    def context(self) -> Context:
        """What server functions may know now; the round is the one that the next ended job belongs to."""
        number = min(self.progress.ended // self.cohort + 1, self.schedule.rounds)
        return self._context(number, self.progress.step + 1)

    def _context(self, number: int, step: int) -> Context:
        cohort = 0 if self.schedule.synchronous else self.cohort
        return Context(
            self.task, number, self.schedule.rounds, self.task.seed, step, self.schedule.averaging, cohort
        )

    def message(self, client: ClientInfo, context: Context) -> Payload:
        """What a client gets, as a copy that no later step changes."""
        with self._seeded("broadcast"):
            message: Payload = self.method.broadcast(self.progress.state, client, context)
        return message.copy().to(CPU)

    def accept(self, arrived: Sequence[Flight], context: Context) -> Accepted:
        """Checked answers in the order of client ids, and everything that was no use, with the reason."""
        updates: list[Update[Any]] = []
        failures: list[Failure] = []
        for flight in arrived:
            result, info = flight.result, self.task.clients[flight.job.client]
            if isinstance(result, Answer):
                try:
                    payload = self._checked(result.payload, info, context)
                except PayloadError as error:
                    result = Failure(flight.job.id, info.index, str(error), "invalid")
                else:
                    updates.append(self._update(flight, payload))
                    if result.scores:
                        self.progress.scores[info.index] = result.scores
            if isinstance(result, Failure):
                failures.append(result)
        return sorted(updates, key=lambda update: update.client.index), failures

    def _update(self, flight: Flight, payload: Payload, *, fresh: bool = True) -> Update[Any]:
        job, stale = flight.job, self.progress.step - flight.step
        sent = None if job.message is None else job.message.to(self.task.device)
        weight = self.schedule.weight(stale, len(self.able))
        return Update(self.task.clients[job.client], payload, stale, weight, sent, job.number, fresh)

    def _with_latest(self, updates: list[Update[Any]]) -> list[Update[Any]]:
        """The answers that just came, and the latest of other clients up to a cohort, by client ids."""
        here, others = {update.client.index for update in updates}, list[Update[Any]]()
        for flight in reversed(self.progress.recent.values()):
            if flight.job.client not in here and len(here) + len(others) < self.cohort:
                assert isinstance(flight.result, Answer)
                assert flight.result.payload is not None
                payload = flight.result.payload.to(self.task.device)
                others.append(self._update(flight, payload, fresh=False))
        return sorted([*updates, *others], key=lambda update: update.client.index)

    def remember(self, arrived: Sequence[Flight], updates: Sequence[Update[Any]]) -> None:
        """Keep the answers that were folded in, one per client and no more than a cohort, if the method wants them."""
        if not self._keeps_latest:
            return
        recent, accepted = self.progress.recent, {update.client.index for update in updates}
        for flight in arrived:
            if flight.job.client in accepted:
                recent.pop(flight.job.client, None)
                recent[flight.job.client] = flight
        for client in list(recent)[: -self.cohort]:
            del recent[client]

    def _checked(self, payload: Payload | None, info: ClientInfo, context: Context) -> Payload:
        """An answer on the server's device, if it is what the method declares."""
        if payload is None:
            raise PayloadError(f"The answer holds no {self._answer_type.__name__}.")
        limit = int(self.schedule.max_payload_mb * 2**20)
        check_payload(payload, self._answer_type, self.task, info, max_bytes=limit)
        self.method.check_answer(payload, info, context)
        return payload.to(self.task.device)

    def learn(self, updates: list[Update[Any]], failures: list[Failure], context: Context) -> Accepted:
        """Let the server fold the answers in; if that would leave it without finite numbers, none counts."""
        now = self.progress
        if not updates:
            return updates, failures
        before = self._copy_state()
        given = self._with_latest(updates) if self._keeps_latest else updates
        with self._seeded("server"):
            now.state = self.method.server(now.state, given, context)
        if tree.is_finite(now.state):
            return updates, failures
        if before is None:
            raise PotluckError(
                f"The server's state of {type(self.method).__name__} is no longer finite after round "
                f"{context.round}, and it cannot be put back; keep tensors, modules and numbers in the state."
            )
        now.state = tree.unflatten(before, now.state)
        reason = "with this round's answers the server's state would no longer be finite"
        return [], failures + [Failure(-1, one.client.index, reason, "invalid") for one in updates]

    def _copy_state(self) -> tree.Flat | None:
        """The state before the server learns, which many do in place; None if it holds what cannot be copied."""
        try:
            return tree.flatten(self.progress.state)
        except TypeError:
            return None

    def predictor(self, context: Context) -> Predictor | None:
        """The global model, where the method has one."""
        with self._seeded("predict_server"):
            return self.method.predict_server(self.progress.state, context)

    def _seeded(self, purpose: str) -> AbstractContextManager[None]:
        return seeded(self.task.seed, "torch", purpose, self.progress.step)
