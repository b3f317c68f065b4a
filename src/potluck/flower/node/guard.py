"""Enforce a node's policy: limits per run, privacy budget and the audit record."""

from __future__ import annotations

import functools
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, payload_types
from potluck.experiment import Experiment
from potluck.flower.node.audit import AuditLog, Entry
from potluck.flower.node.config import Policy
from potluck.flower.node.space import write_with_space
from potluck.privacy.accounting import epsilon, record_mechanisms, tightest
from potluck.privacy.classes import reveals_classes
from potluck.privacy.settings import Privacy
from potluck.runs.folder import write_atomic
from potluck.wire import Message
from potluck.wire.jobs import Job


def privacy_cost(privacy: Privacy) -> float:
    """Return an answer's cost 1/z²: it adds up over answers of any noise multipliers z, as Rényi divergences do."""
    noisy = privacy and privacy.unit == "client" and privacy.noise_multiplier
    return privacy.noise_multiplier**-2 if noisy else 0.0


def spent_epsilon(totals: dict[str, Any], delta: float) -> float:
    """ε of everything that has left; infinite where a training answer left without noise."""
    if totals["bare"]:
        return math.inf
    return _epsilon(totals["spent"], delta)


def _epsilon(total: float, delta: float) -> float:
    return epsilon(total**-0.5, 1, delta) if total else 0.0


def check_budget(policy: Policy, totals: dict[str, Any], privacy: Privacy) -> None:
    """Refuse the answer that would take this node beyond its own limit.

    Answers that left before a limit was set, and without noise, are no part of it: nothing can be promised for them.
    """
    if not policy.epsilon:
        return
    after = _epsilon(totals["spent"] + privacy_cost(privacy), policy.delta)
    if after > policy.epsilon:
        before = _epsilon(totals["spent"], policy.delta)
        raise PotluckError(
            f"This node refuses the job: with it, ε would be {after:.3g} over all its runs, above its policy.epsilon = "
            f"{policy.epsilon:g} ({before:.3g} is spent)."
        )


def check_row_budget(
    policy: Policy, experiment: Experiment, method: Method[Any, Any, Any], rows: int
) -> None:
    """Refuse a run whose rounds would take a single row beyond the node's limit, if the client is in all of them."""
    if not policy.row_epsilon:
        return
    rounds, noise = experiment.schedule.rounds, experiment.privacy.noise_multiplier
    mechanisms = record_mechanisms(
        noise,
        rows,
        experiment.training,
        rounds,
        vectors=reveals_classes(payload_types(method)[1]),
        fits=method.supports.fits,
    )
    spent = _row_epsilon(tuple(mechanisms), policy.delta)
    if spent > policy.row_epsilon:
        raise PotluckError(
            f"This node refuses the run: in {rounds} rounds with privacy.noise_multiplier = {noise:g}, ε of each of "
            f"its {rows} rows would be {spent:.3g} at δ = {policy.delta:g}, above its policy.row_epsilon = "
            f"{policy.row_epsilon:g}; lower schedule.rounds or raise the noise."
        )


@functools.lru_cache(maxsize=64)
def _row_epsilon(mechanisms: tuple[tuple[float, float, int], ...], delta: float) -> float:
    return tightest(list(mechanisms), delta)


HOUR = 3600.0


class Usage:
    """`usage.json` in a run's folder: the jobs that were begun, and the seconds that they took."""

    def __init__(self, path: Path, policy: Policy) -> None:
        self.path, self.policy = path, policy

    @contextmanager
    def job(self) -> Iterator[None]:
        """Count a job, and stop it where the run's hours end."""
        jobs, seconds = self._read()
        if jobs >= self.policy.jobs:
            raise PotluckError(
                f"This node refuses the job: the run had its policy.jobs = {self.policy.jobs}."
            )
        seconds_left = self.policy.hours * HOUR - seconds
        if seconds_left <= 0:
            raise PotluckError(
                f"This node refuses the job: the run had its policy.hours = {self.policy.hours:g}."
            )
        self._write(jobs + 1, seconds)
        began = time.monotonic()
        try:
            with time_limit(
                seconds_left,
                f"This node stopped the job: the run had its policy.hours = {self.policy.hours:g}.",
            ):
                yield
        finally:
            self._write(jobs + 1, seconds + time.monotonic() - began)

    def _read(self) -> tuple[int, float]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return int(content["jobs"]), float(content["seconds"])
        except FileNotFoundError:
            return 0, 0.0
        except (ValueError, KeyError, TypeError):
            raise PotluckError(
                f"{str(self.path)!r} was changed; move the run's folder away to start again."
            ) from None

    def _write(self, jobs: int, seconds: float) -> None:
        text = json.dumps({"jobs": jobs, "seconds": round(seconds, 3)})
        write_with_space(lambda: write_atomic(self.path, text), self.path)


@contextmanager
def time_limit(seconds: float, sentence: str) -> Iterator[None]:
    """Raise in the middle of whatever is computed when time is over; only the main thread can be told so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise PotluckError(sentence)

    before, began = signal.signal(signal.SIGALRM, stop), time.monotonic()
    outer_timer, _ = signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e8))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer_timer:  # somebody else was waiting for a time of their own
            signal.setitimer(signal.ITIMER_REAL, max(0.01, outer_timer - (time.monotonic() - began)))


def limit_samples(me: Client, most: int) -> Client:
    """Return the client, made to end a job that trains on more rows than the node allows."""
    clients = [client for client in (me, me.standalone) if client is not None]
    for client in clients:
        client.__dict__["batches"] = _counted(client.batches, clients, most)
    return me


def _counted(batches: Callable[..., Iterator[Any]], clients: list[Client], most: int) -> Callable[..., Any]:
    def counted(*arguments: Any, **named: Any) -> Iterator[Any]:
        for batch in batches(*arguments, **named):
            if sum(client.trained_samples for client in clients) > most:
                raise PotluckError(
                    f"This node stopped the job: it trained on more than its policy.samples = {most}."
                )
            yield batch

    return counted


@dataclass(frozen=True)
class Guard:
    """One run's permission to work with a node's own data."""

    policy: Policy
    log: AuditLog
    usage: Usage
    privacy: Privacy
    run: str
    method: str
    rounds: int = 0

    def allow(self, job: Job, rows: int) -> None:
        """Refuse a job that goes beyond the policy, before anything is computed for it."""
        self.policy.check_job(job, rows)
        if job.kind == "train":
            check_budget(self.policy, self.log.last(), self.privacy)
        if self.policy.row_epsilon and (
            job.kind == "join" or (job.kind == "train" and job.number >= self.rounds)
        ):
            raise PotluckError(
                f"This node refuses the job: its policy.row_epsilon = {self.policy.row_epsilon:g} allows one training "
                f"job in each of the run's {self.rounds} rounds."
            )

    def log_answer(self, kind: str, message: Message, *, job: int = 0, repeated: bool = False) -> None:
        """Write down what is about to leave, if the budget still allows it."""
        spent_epsilon = privacy_cost(self.privacy) if kind == "train" else 0.0
        without_noise = kind == "train" and not spent_epsilon
        entry = Entry(self.run, kind, self.method, job, spent_epsilon, without_noise, repeated)
        self.log.append(
            entry, message, self._within_budget if kind == "train" and not repeated else _no_check
        )

    def _within_budget(self, totals: dict[str, Any]) -> None:
        check_budget(self.policy, totals, self.privacy)


def _no_check(totals: dict[str, Any]) -> None:
    """Nothing is spent."""
