"""Run several clients' jobs in turns, pausing each where it asks to train, so that equal requests train as a stack."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from potluck.core.client import Client
from potluck.core.training import FitRequest, FitResult
from potluck.engines.vectorized.stack import fit_stacked, split_into_stacks, stacking_key


class JobThreads:
    """Daemon threads that are used again: starting a thread takes longer than a small client's whole job."""

    def __init__(self) -> None:
        self._idle: list[_JobThread] = []
        self._closed = False

    def run(self, action: Callable[[], None]) -> None:
        """Run an action in a thread of its own."""
        thread = self._idle.pop() if self._idle else _JobThread(self._finished)
        thread.begin(action)

    def close(self) -> None:
        """End all threads, those at work after their action."""
        self._closed = True
        while self._idle:
            self._idle.pop().begin(None)

    def _finished(self, thread: _JobThread) -> bool:
        """Keep a thread for the next action; False where there will be none."""
        if not self._closed:
            self._idle.append(thread)
        return not self._closed


class _JobThread(threading.Thread):
    """Runs one action after another until it gets None."""

    def __init__(self, finished: Callable[[_JobThread], bool]) -> None:
        super().__init__(daemon=True)
        self._finished = finished
        self._action: Callable[[], None] | None = None
        self._go = threading.Semaphore(0)
        self.start()

    def begin(self, action: Callable[[], None] | None) -> None:
        """Run this action next; None ends the thread."""
        self._action = action
        self._go.release()

    def run(self) -> None:
        """Wait for actions and run them."""
        while True:
            self._go.acquire()
            if self._action is None:
                return
            self._action()
            self._action = None  # it holds a client
            if not self._finished(self):
                return


class PausedJob:
    """One job in a thread of its own. Threads take turns: only one of them, or the caller, runs at any time."""

    def __init__(self, me: Client, action: Callable[[], Any], threads: JobThreads) -> None:
        self.me, self.action = me, action
        self.training = me
        """Who the present request is of: the client, or its standalone model's client."""
        self.request: FitRequest | None = None
        self.result: Any = None
        self.done = False
        self._reply: FitResult | BaseException | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        threads.run(self._run)

    def advance(self, reply: FitResult | BaseException | None = None) -> None:
        """Let the job run until it asks to train (again) or ends; `reply` answers its last request."""
        self._reply, self.request = reply, None
        self._go.release()
        self._back.acquire()

    def _run(self) -> None:
        self._go.acquire()
        self._set_trainers(self._pause)
        try:
            self.result = self.action()
        except BaseException as error:
            self.result = error
        finally:
            self._set_trainers(None)
            self.done, self.request = True, None
            self._back.release()

    def _set_trainers(self, pause: Callable[[Client, FitRequest], FitResult] | None) -> None:
        for client in (self.me, self.me.standalone):
            if client is not None:
                client.trainer = None if pause is None else partial(pause, client)

    def _pause(self, client: Client, request: FitRequest) -> FitResult:
        """Hand a client's request over, from the job's thread, and wait until it is done."""
        self.training, self.request = client, request
        self._back.release()
        self._go.acquire()
        if isinstance(self._reply, BaseException):
            raise self._reply
        assert self._reply is not None
        return self._reply


def run_paused_jobs(jobs: Sequence[tuple[Client, Callable[[], Any]]], threads: JobThreads) -> list[Any]:
    """Run all jobs to their ends, training those together whose requests are alike; results or exceptions."""
    paused = [PausedJob(me, action, threads) for me, action in jobs]
    for job in paused:
        job.advance()
    while waiting := [job for job in paused if not job.done]:
        for group in _group_by_request(waiting):
            for job, reply in zip(group, _train(group), strict=True):
                job.advance(reply)
    return [job.result for job in paused]


def _group_by_request(jobs: Sequence[PausedJob]) -> list[Sequence[PausedJob]]:
    """Group jobs whose requests can be stacked, in stacks of a size that pays."""
    groups: dict[object, list[PausedJob]] = defaultdict(list)
    for number, job in enumerate(jobs):
        assert job.request is not None
        key = stacking_key(job.training, job.request)
        groups[("alone", number) if key is None else key].append(job)
    return [
        piece
        for group in groups.values()
        if (first := group[0].request) is not None
        for piece in split_into_stacks(group, first.model.parameters(), group[0].me.task.device)
    ]


def _train(group: Sequence[PausedJob]) -> list[FitResult | BaseException]:
    pairs = [(job.training, job.request) for job in group if job.request is not None]
    try:
        return list(fit_stacked(pairs))
    except Exception as error:
        if len(pairs) > 1:
            error.add_note(
                "Clients were trained stacked; with engine.vectorize = 'off' each trains by itself."
            )
        return [error] * len(pairs)
