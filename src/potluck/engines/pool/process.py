"""A worker process: fork it, serve jobs in it, end it.

Before Python 3.12 workers on the CPU are forked. They see the data without a copy, and models, methods and closures
need not be pickled. That is safe because a worker computes on one thread only: a process that was forked after its
parent used several torch threads hangs as soon as it asks for several itself, and not otherwise. Later Pythons warn of
forking a process that has threads; there, as on accelerators, workers are new processes (`spawn.py`).
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from potluck.core.errors import PotluckError
from potluck.engines.pool.channel import BatchOrder, JobChannel, JobReport
from potluck.engines.vectorized.engine import JobBatch, run_batch
from potluck.engines.vectorized.rendezvous import JobThreads
from potluck.worker.memory import SpillFolder, retain_freed_memory
from potluck.worker.worker import Worker

_PARENT_CHECK_SECONDS = 0.5


class Handle(Protocol):
    """A process that was started, however."""

    @property
    def pid(self) -> int | None:
        """Its process id."""

    @property
    def exitcode(self) -> int | None:
        """How it ended; negative for a signal."""

    def kill(self) -> None:
        """End it at once."""

    def join(self) -> None:
        """Wait until it is gone."""


@dataclass
class Process:
    """A worker process as its parent sees it, and its device; `batch` is its work since `since`, if it has any."""

    handle: Handle
    socket: socket.socket
    device: str = ""
    batch: JobBatch = ()
    since: float = 0.0
    stopped: bool = False
    forget: list[int] = field(default_factory=list)

    def end(self) -> str:
        """Kill it if it still lives, wait until it is gone, and say how it ended."""
        self.handle.kill()
        self.handle.join()
        self.socket.close()
        code = self.handle.exitcode or 0
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


FORKS_ARE_RISKY = sys.version_info >= (3, 12)
"""Whether this Python warns of forking a process that has threads."""


def fork_problem() -> str | None:
    """Why this process cannot be forked safely, or None: another thread may hold a lock that a copy never gets."""
    threads = threading.active_count() - 1
    if not FORKS_ARE_RISKY or not threads:
        return None
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"Python {python} cannot safely fork a process with other threads, of which this one has {threads}"


def check_can_start(*, spawned: bool = False) -> None:
    """Raise `PotluckError` where worker processes cannot be forked, or `spawned`."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise PotluckError(f"engine.name = 'pool' cannot fork processes on {sys.platform}; use serial.")
    if multiprocessing.current_process().daemon:
        raise PotluckError(
            "engine.name = 'pool' cannot start processes inside a worker of multiprocessing.Pool or another "
            "daemonic process; use engine='serial' there."
        )
    if not spawned and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise PotluckError(
            "engine.name = 'pool' cannot share a GPU with worker processes that are forked; use serial."
        )


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that are wide enough for tensors."""
    pair = socket.socketpair()
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return pair


def fork_worker(worker: Worker, wire: JobChannel, folder: SpillFolder, budget: int) -> Process:
    """Fork a worker process that serves one end of a new socket pair."""
    own_end, worker_end = socket_pair()
    handle = multiprocessing.get_context("fork").Process(
        target=_main, args=(worker, wire, folder, budget, own_end, worker_end, os.getpid()), daemon=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads; see above
        handle.start()
    worker_end.close()
    return Process(handle, own_end)


def _main(
    worker: Worker,
    wire: JobChannel,
    folder: SpillFolder,
    budget: int,
    own_end: socket.socket,
    worker_end: socket.socket,
    parent: int,
) -> None:
    own_end.close()
    serve(worker, wire, folder, budget, worker_end, parent)


def serve(
    worker: Worker, wire: JobChannel, folder: SpillFolder, budget: int, connection: socket.socket, parent: int
) -> None:
    """Do jobs as they come, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    retain_freed_memory()
    threading.Thread(target=_end_with, args=(parent, folder.make()), daemon=True).start()
    worker.cache.set_budget(folder, budget, at_once=True)
    threads = JobThreads()
    try:
        while True:
            wire.send_reports(connection, _do(worker, wire.receive_order(connection), threads))
    except OSError:  # the parent hung up
        _leave(folder.make())


def _do(worker: Worker, order: BatchOrder, threads: JobThreads) -> list[JobReport]:
    batch, cache = order.batch, worker.cache
    for client in order.forget:
        cache.discard(client)
    for job, version in zip(batch, order.versions, strict=True):
        cache.set_version(job.client, version)
    before = cache.loading_seconds
    results = run_batch(worker, batch, threads)
    loading = (cache.loading_seconds - before) / len(batch)
    return [
        JobReport(result, cache.stored_version(job.client), loading)
        for job, result in zip(batch, results, strict=True)
    ]


def _end_with(parent: int, folder: Path) -> None:
    """End this process soon after its parent, whatever killed that, and leave no folder behind."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    _leave(folder)


def _leave(folder: Path) -> None:
    for _ in range(3):  # others may still write while we delete
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
