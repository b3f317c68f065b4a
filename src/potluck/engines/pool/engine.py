"""The engine that keeps every core busy."""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from potluck.core.errors import PotluckError
from potluck.core.method import payload_types
from potluck.engines.memory import SpillFolder, default_budget
from potluck.engines.pool.agenda import Agenda
from potluck.engines.pool.anew import Blueprint, Post, await_ready, start_anew
from potluck.engines.pool.costs import Costs, Guess
from potluck.engines.pool.process import Process, check_possible, start
from potluck.engines.pool.standstill import LOOK, be_impatient, is_stopped
from potluck.engines.pool.wire import Order, Report, Wire
from potluck.engines.vectorized.teams import Team, Teams
from potluck.loop.jobs import Answer, Failure, Job
from potluck.loop.worker import Worker

ATTEMPTS = 3
"""How often jobs are given out before the death of their workers counts as the clients' own failure."""

NO_JOB = 0
"""Stands for the job of workers that die without one."""


class PoolEngine:
    """Worker processes, each on one thread, that share the clients among them.

    A worker keeps the clients it has worked on. After every change it also writes the client down, so that a
    client can be dropped from memory, taken up by another worker, or outlive its worker's death: whoever gets
    a job is told which version of the client it builds on. Results are those of the serial engine, bit by bit.

    `memory` is the number of bytes that clients may hold in all workers together (half of what is free unless
    told), `spill_dir` the place for a temporary folder, `cost` a first guess at the relative cost of a client.

    Without `blueprint` workers are forked and compute on the CPU. With it they are started anew, `workers` on each of
    `places`, and make their clients there; `memory` then is what clients may hold on each device.

    With `teams` clients train together as they do in the vectorized engine, whose bits these then are.
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
        cost: Guess | None = None,
        blueprint: Blueprint | None = None,
        places: Sequence[str] = ("",),
        teams: Teams | None = None,
    ) -> None:
        check_possible(anew=blueprint is not None)
        count = workers or len(os.sched_getaffinity(0))
        self._worker = worker_factory()
        self._wire = Wire(*payload_types(self._worker.method))
        self._folder = SpillFolder(spill_dir)
        self._post = None if blueprint is None else Post(blueprint, self._folder, memory, count)
        self._budget = (default_budget() if memory is None else memory) // count if blueprint is None else 0
        processes: list[Process] = []
        self._costs = Costs(cost)
        self._agenda = Agenda(self._costs, place=lambda number: processes[number].place)
        self._versions: dict[int, int] = {}
        self._outdated: list[tuple[int, int]] = []
        self._attempts: Counter[int] = Counter()
        self._outstanding = 0
        self._teams = teams
        self._gathered: list[Job] = []
        self._ready: deque[Answer | Failure] = deque()
        self._processes = processes
        self._end = weakref.finalize(self, _end, os.getpid(), self._processes, self._folder)
        self._folder.make()
        for place in [*places] * count:  # in turn, so that the first jobs go to all devices
            self._processes.append(self._start(place))
        for process in self._processes:
            self._settle(process)

    def submit(self, job: Job) -> None:
        """Queue a job. A test starts at once, others only beside others: the first waits to be compared with them."""
        if not self._end.alive:
            raise RuntimeError("this engine is closed")
        self._outstanding += 1
        if self._teams is None:
            self._agenda.add([job])
        else:
            self._gathered.append(job)
            if job.kind != "train":
                self._team_up()
        if self._working() or job.kind == "evaluate":  # short jobs, whose messages often take longer to make
            self.feed()

    def feed(self) -> None:
        """Take in what workers have to say by now, and give the idle ones work."""
        self._listen(0.0)
        self._give_out()

    def results(self) -> Iterator[Answer | Failure]:
        """Answers as they come; those of different clients in any order."""
        self._team_up()
        while self._outstanding:
            self._give_out()
            while not self._ready:
                if not self._listen(LOOK):
                    self._end_stopped()
                self._give_out()
            self._outstanding -= 1
            yield self._ready.popleft()

    def keep(self, client: int, path: Path) -> bool:
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

    def _team_up(self) -> None:
        """A step's jobs are all there once their sender waits for answers, or sends jobs of another kind."""
        if self._teams is not None:
            for team in self._teams.cut(self._gathered):
                self._agenda.add(team)
            self._gathered.clear()

    def _start(self, place: str) -> Process:
        if self._post is None:
            return start(self._worker, self._wire, self._folder, self._budget)
        return start_anew(place, self._post)

    def _settle(self, process: Process) -> None:
        """Wait until a new process is of use; from then on it may die or stand still at any moment."""
        if self._post is not None:
            await_ready(process)
        be_impatient(process.socket)

    def _working(self) -> list[Process]:
        return [process for process in self._processes if process.team]

    def _give_out(self) -> None:
        """A job for every idle worker, as far as there are any."""
        for number, process in enumerate(self._processes):
            while not process.team and self._agenda:
                if (taken := self._agenda.take(number, self._busy())) is None:
                    break
                process = self._hand_over(number, *taken)

    def _busy(self) -> dict[int, float]:
        """Seconds that each worker still needs for what it does now, as far as can be told."""
        now = time.perf_counter()
        return {
            number: max(0.0, self._costs.of_team(process.team, process.place) - (now - process.since))
            for number, process in enumerate(self._processes)
            if process.team
        }

    def _hand_over(self, number: int, team: Team, moved: list[tuple[int, int]]) -> Process:
        for client, left in moved:
            self._processes[left].forget.append(client)
        if is_stopped(self._processes[number].handle.pid):
            self._renew(number)  # it could not take them
        process = self._processes[number]
        process.team, process.since = team, time.perf_counter()
        order = Order(team, [self._versions.get(job.client, 0) for job in team], process.forget)
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
                self._give_out()  # whoever is done waits for nothing else
        while self._outdated:
            self._folder.drop(*self._outdated.pop())
        return bool(heard)

    def _end_stopped(self) -> None:
        """Replace workers that were stopped in the middle of a job and still are at the second look."""
        for number, process in enumerate(self._processes):
            before, process.stopped = process.stopped, is_stopped(process.handle.pid)
            if process.team and before and process.stopped:
                self._replace(number)

    def _finish(self, process: Process, reports: Sequence[Report]) -> None:
        team, process.team = process.team, ()
        for job, report in zip(team, reports, strict=True):
            self._note(job, report, process.place)
            self._ready.append(report.result)
        for over in (team[0].id, NO_JOB):
            self._attempts.pop(over, None)
        self._agenda.done(team)

    def _note(self, job: Job, report: Report, place: str) -> None:
        before = self._versions.get(job.client, 0)
        if report.version != before:
            self._versions[job.client] = report.version
            if before:
                self._outdated.append((job.client, before))
        if isinstance(report.result, Answer):
            self._costs.note(job, report.result.seconds - report.loading, place)
        if report.loading:
            self._agenda.moving = (self._agenda.moving + report.loading) / 2

    def _replace(self, number: int) -> None:
        """Start a new worker for a dead one. Its clients come back from the folder, its jobs are repeated."""
        process = self._processes[number]
        how = process.end()
        if not process.team:
            self._attempts[NO_JOB] += 1
            if self._attempts[NO_JOB] >= ATTEMPTS:
                raise PotluckError(
                    f"Idle worker processes of the pool keep dying ({how}); use engine=serial."
                )
        else:
            self._repeat(process.team, how)
        self._renew(number)

    def _renew(self, number: int) -> None:
        """Another process in the place of one, which is ended."""
        self._processes[number].end()
        self._processes[number] = self._start(self._processes[number].place)
        self._settle(self._processes[number])

    def _repeat(self, team: Team, how: str) -> None:
        first = team[0]
        self._attempts[first.id] += 1
        if self._attempts[first.id] < ATTEMPTS:
            self._agenda.again(team)
            return
        if len(team) > 1:  # perhaps they are too many, or one of them is to blame: each by itself then
            del self._attempts[first.id]
            for job in team:
                self._agenda.again([job])
            return
        reason = (
            f"{first.kind} in round {first.round}: its worker process died {ATTEMPTS} times ({how}); if memory is "
            "short, use fewer engine.workers"
        )
        self._agenda.done(team)
        self._ready.extend(Failure(job.id, job.client, reason) for job in team)


def _end(owner: int, processes: list[Process], folder: SpillFolder) -> None:
    """End all processes and the folder; a forked copy of the engine ends nothing."""
    if os.getpid() != owner:
        return
    for process in processes:
        process.handle.kill()
    for process in processes:
        process.end()
    folder.remove()
