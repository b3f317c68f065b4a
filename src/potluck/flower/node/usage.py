"""What one run has had of this node so far, and an end for jobs that take more."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.flower.node.policy import Policy
from potluck.runs.folder import write_atomic

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
        left = self.policy.hours * HOUR - seconds
        if left <= 0:
            raise PotluckError(
                f"This node refuses the job: the run had its policy.hours = {self.policy.hours:g}."
            )
        self._write(jobs + 1, seconds)
        began = time.monotonic()
        try:
            with stopped_after(
                left, f"This node stopped the job: the run had its policy.hours = {self.policy.hours:g}."
            ):
                yield
        finally:
            self._write(jobs + 1, seconds + time.monotonic() - began)

    def _read(self) -> tuple[int, float]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return int(found["jobs"]), float(found["seconds"])
        except FileNotFoundError:
            return 0, 0.0
        except (ValueError, KeyError, TypeError):
            raise PotluckError(
                f"{str(self.path)!r} was changed; move the run's folder away to begin anew."
            ) from None

    def _write(self, jobs: int, seconds: float) -> None:
        write_atomic(self.path, json.dumps({"jobs": jobs, "seconds": round(seconds, 3)}))


@contextmanager
def stopped_after(seconds: float, sentence: str) -> Iterator[None]:
    """Raise in the middle of whatever is computed when time is over; only the main thread can be told so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise PotluckError(sentence)

    before, began = signal.signal(signal.SIGALRM, stop), time.monotonic()
    others, _ = signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e8))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if others:  # somebody else was waiting for a time of their own
            signal.setitimer(signal.ITIMER_REAL, max(0.01, others - (time.monotonic() - began)))


def limited(me: Client, most: int) -> Client:
    """The client, which ends a job that trains on more rows than the node allows, whatever loop its method has."""
    batches = me.batches

    def counted(*arguments: Any, **named: Any) -> Iterator[Any]:
        for batch in batches(*arguments, **named):
            if me.trained_samples > most:
                raise PotluckError(
                    f"This node stopped the job: it trained on more than its policy.samples = {most}."
                )
            yield batch

    me.__dict__["batches"] = counted
    return me
