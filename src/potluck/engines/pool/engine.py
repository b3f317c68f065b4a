"""The pool engine: worker processes that keep every core busy."""

from __future__ import annotations

import os
import socket
import struct
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from potluck.core.errors import PotluckError
from potluck.core.files import process_status
from potluck.core.method import payload_types
from potluck.engines.pool.channel import BatchOrder, JobChannel, JobReport
from potluck.engines.pool.process import Process, check_can_start, fork_worker
from potluck.engines.pool.scheduling import DurationEstimates, JobQueue, RelativeCost
from potluck.engines.pool.spawn import Blueprint, SpawnSpec, spawn_worker, wait_until_ready
from potluck.engines.vectorized.engine import JobBatch, JobBatcher
from potluck.wire.jobs import Answer, Failure, Job
from potluck.worker.memory import SpillFolder, default_budget
from potluck.worker.worker import Worker

CHECK_INTERVAL = 5.0
"""Seconds without news after which the parent looks at its workers; one found stopped twice is replaced."""
STALL_TIMEOUT = 60
"""Seconds in which a worker that reads or writes a message moves at least one byte of it."""


def is_stopped(pid: int | None) -> bool:
    """Return whether a process was stopped by a signal (not by a debugger); False where the system does not say."""
    status = None if pid is None else process_status(pid)
    return status is not None and status[0] == "T"


def set_socket_timeout(end: socket.socket) -> None:
    """Make our end of a socket give up a message that makes no progress, as if the other side were gone."""
    patience = struct.pack("ll", STALL_TIMEOUT, 0)
    for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        end.setsockopt(socket.SOL_SOCKET, direction, patience)


MAX_ATTEMPTS = 3
"""How often jobs are given out before the death of their workers counts as the clients' own failure."""

NO_JOB = 0
"""Stands for the job of workers that die without one."""


class PoolEngine:
    """Worker processes, each on one thread, that share the clients among them.

    A worker keeps the clients it has worked on. After every change it also writes the client down, so that a
    client can be dropped from memory, taken up by another worker, or outlive its worker's death: every
    job names the version of the client that it builds on. Results are those of the serial engine, bit by bit.

    `memory` is the number of bytes that clients may hold in all workers together (default: half of what
    is free), `spill_dir` the place for a temporary folder, `cost` a first guess at the relative cost of a client.

    Without `blueprint` workers are forked and compute on the CPU. With it they are spawned, `workers` on each of
    `places`, and make their clients there; `memory` then is what clients may hold on each device.

    With `batcher` clients train together as they do in the vectorized engine, whose bits these then are.
    """

    name = "pool"
    realtime = False
    remote = False

    def __init__(
        self,
        worker_factory: Callable[[], Worker],
        workers: int | None = None,
        memory: int | None = None,
        spill_dir: Path | str | None = None,
        *,
        cost: RelativeCost | None = None,
        blueprint: Blueprint | None = None,
        devices: Sequence[str] = ("",),
        batcher: JobBatcher | None = None,
    ) -> None:
        check_can_start(spawned=blueprint is not None)
        count = workers or len(os.sched_getaffinity(0))
        self._worker = worker_factory()
        self._wire = JobChannel(*payload_types(self._worker.method))
        self._folder = SpillFolder(spill_dir)
        self._spawn_spec = None if blueprint is None else SpawnSpec(blueprint, self._folder, memory, count)
        self._budget = (default_budget() if memory is None else memory) // count if blueprint is None else 0
        processes: list[Process] = []
        self._costs = DurationEstimates(cost)
        self._agenda = JobQueue(self._costs, device=lambda number: processes[number].device)
        self._versions: dict[int, int] = {}
        self._outdated: list[tuple[int, int]] = []
        self._attempts: Counter[int] = Counter()
        self._outstanding = 0
        self._batcher = batcher
        self._gathered: list[Job] = []
        self._ready: deque[Answer | Failure] = deque()
        self._processes = processes
        self._end = weakref.finalize(self, _end, os.getpid(), self._processes, self._folder)
        self._folder.make()
        for device in [*devices] * count:  # in turn, so that the first jobs go to all devices
            self._processes.append(self._start(device))
        for process in self._processes:
            self._settle(process)

    def submit(self, job: Job) -> None:
        """Queue a job. A test starts at once, others only beside others: the first waits to be compared with them."""
        if not self._end.alive:
            raise RuntimeError("this engine is closed")
        self._outstanding += 1
        if self._batcher is None:
            self._agenda.add([job])
        else:
            self._gathered.append(job)
            if job.kind != "train":
                self._submit_gathered()
        if self._working() or job.kind == "evaluate":  # short jobs, whose messages often take longer to make
            self.refill()

    def refill(self) -> None:
        """Take in what workers have to say by now, and give the idle ones work."""
        self._listen(0.0)
        self._give_out()

    def results(self) -> Iterator[Answer | Failure]:
        """Yield answers as they come; those of different clients in any order."""
        self._submit_gathered()
        while self._outstanding:
            self._give_out()
            while not self._ready:
                if not self._listen(CHECK_INTERVAL):
                    self._end_stopped()
                self._give_out()
            self._outstanding -= 1
            yield self._ready.popleft()

    def link_state(self, client: int, path: Path) -> bool:
        """Give the file of a client's state a second name: no copy is made, and what follows does not change it."""
        version = self._versions.get(client, 0)
        return version > 0 and self._folder.link(client, version, path)

    def close(self) -> None:
        """Kill the workers, which hold nothing that is needed any more, and delete the folder."""
        self._end()

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.handle.pid for process in self._processes if process.handle.pid is not None]

    # -- giving out ---------------------------------------------------------------------------------------

    def _submit_gathered(self) -> None:
        """Submit the gathered jobs: a step's are complete once their sender waits, or sends another kind."""
        if self._batcher is not None:
            for batch in self._batcher.split(self._gathered):
                self._agenda.add(batch)
            self._gathered.clear()

    def _start(self, device: str) -> Process:
        if self._spawn_spec is None:
            return fork_worker(self._worker, self._wire, self._folder, self._budget)
        return spawn_worker(device, self._spawn_spec)

    def _settle(self, process: Process) -> None:
        """Wait until a new process is of use; from then on it may die or stand still at any moment."""
        if self._spawn_spec is not None:
            wait_until_ready(process)
        set_socket_timeout(process.socket)

    def _working(self) -> list[Process]:
        return [process for process in self._processes if process.batch]

    def _give_out(self) -> None:
        """Give every idle worker a job, as far as there are any."""
        for number, process in enumerate(self._processes):
            while not process.batch and self._agenda:
                if (assignment := self._agenda.take(number, self._busy())) is None:
                    break
                process = self._hand_over(number, *assignment)

    def _busy(self) -> dict[int, float]:
        """Estimate the seconds that each worker still needs for its present batch."""
        now = time.perf_counter()
        return {
            number: max(0.0, self._costs.of_batch(process.batch, process.device) - (now - process.since))
            for number, process in enumerate(self._processes)
            if process.batch
        }

    def _hand_over(self, number: int, batch: JobBatch, moved: list[tuple[int, int]]) -> Process:
        for client, origin in moved:
            self._processes[origin].forget.append(client)
        if is_stopped(self._processes[number].handle.pid):
            self._renew(number)  # it could not take them
        process = self._processes[number]
        process.batch, process.since = batch, time.perf_counter()
        order = BatchOrder(batch, [self._versions.get(job.client, 0) for job in batch], process.forget)
        process.forget = []
        try:
            self._wire.send_order(process.socket, order)
        except OSError:
            self._replace(number)
        return self._processes[number]

    # -- taking in ----------------------------------------------------------------------------------------

    def _listen(self, timeout: float) -> bool:
        """Take in what workers have to say, waiting for the first; one that hung up is replaced. Was there news?"""
        heard = wait([process.socket for process in self._processes], timeout)
        for number, process in enumerate(self._processes):
            if process.socket not in heard:
                continue
            try:
                reports = self._wire.receive_reports(process.socket)
            except OSError:
                self._replace(number)
            else:
                self._finish(process, reports)
                self._give_out()  # an idle worker gets its next job at once
        while self._outdated:
            self._folder.drop(*self._outdated.pop())
        return bool(heard)

    def _end_stopped(self) -> None:
        """Replace workers that were stopped in the middle of a job and still are at the second look."""
        for number, process in enumerate(self._processes):
            before, process.stopped = process.stopped, is_stopped(process.handle.pid)
            if process.batch and before and process.stopped:
                self._replace(number)

    def _finish(self, process: Process, reports: Sequence[JobReport]) -> None:
        batch, process.batch = process.batch, ()
        for job, report in zip(batch, reports, strict=True):
            self._note(job, report, process.device)
            self._ready.append(report.result)
        for over in (batch[0].id, NO_JOB):
            self._attempts.pop(over, None)
        self._agenda.done(batch)

    def _note(self, job: Job, report: JobReport, device: str) -> None:
        before = self._versions.get(job.client, 0)
        if report.version != before:
            self._versions[job.client] = report.version
            if before:
                self._outdated.append((job.client, before))
        if isinstance(report.result, Answer):
            self._costs.record(job, report.result.seconds - report.loading, device)
        if report.loading:
            self._agenda.move_cost = (self._agenda.move_cost + report.loading) / 2

    def _replace(self, number: int) -> None:
        """Start a new worker for a dead one. Its clients come back from the folder, its jobs are repeated."""
        process = self._processes[number]
        outcome = process.end()
        if not process.batch:
            self._attempts[NO_JOB] += 1
            if self._attempts[NO_JOB] >= MAX_ATTEMPTS:
                raise PotluckError(
                    f"Idle worker processes of the pool keep dying ({outcome}); use --engine serial (in Python "
                    "engine='serial')."
                )
        else:
            self._repeat(process.batch, outcome)
        self._renew(number)

    def _renew(self, number: int) -> None:
        """Replace a worker process, which is ended."""
        self._processes[number].end()
        self._processes[number] = self._start(self._processes[number].device)
        self._settle(self._processes[number])

    def _repeat(self, batch: JobBatch, how: str) -> None:
        first = batch[0]
        self._attempts[first.id] += 1
        if self._attempts[first.id] < MAX_ATTEMPTS:
            self._agenda.requeue(batch)
            return
        if len(batch) > 1:  # perhaps they are too many, or one of them is to blame: each by itself then
            del self._attempts[first.id]
            for job in batch:
                self._agenda.requeue([job])
            return
        reason = (
            f"{first.kind} in round {first.round}: its worker process died {MAX_ATTEMPTS} times ({how}); if memory is "
            "short, use fewer engine.workers"
        )
        self._agenda.done(batch)
        self._ready.extend(Failure(job.id, job.client, reason) for job in batch)


def _end(owner: int, processes: list[Process], folder: SpillFolder) -> None:
    """End all processes and the folder; a forked copy of the engine ends nothing."""
    if os.getpid() != owner:
        return
    for process in processes:
        process.handle.kill()
    for process in processes:
        process.end()
    folder.remove()
