"""Worker processes that are started anew instead of forked: an accelerator does not survive a fork.

Each makes its clients by itself, on a device of its own; data are brought there once per process. What it is made from
crosses once, at its start, over a socket between the two processes that nobody else can reach: the only place where
anything is pickled.
"""

from __future__ import annotations

import io
import os
import pickle  # nosec B403 - between a process and its own child, see above
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

import torch

from potluck.core.errors import PotluckError
from potluck.core.method import payload_types
from potluck.core.tree import Flat
from potluck.engines.hardware import alone_with, forks_break, held_memory, settle
from potluck.engines.memory import SpillFolder, default_budget
from potluck.engines.pool.process import Process, connected, serve
from potluck.engines.pool.wire import Wire
from potluck.engines.trial import time_training
from potluck.engines.vectorized.decide import stacked
from potluck.loop.letter import Letter, receive, send
from potluck.loop.worker import Worker

TRIAL_SECONDS = 1.0


class Blueprint(Protocol):
    """From what a process that knows nothing yet can make its worker."""

    def worker(self, device: str) -> Worker:
        """A worker whose clients live on this device."""


@dataclass(frozen=True)
class Post:
    """What a new worker process is told first; `memory` in bytes is all workers' of its device, None: half of it.

    With `trial` it does no jobs: it trains those clients, several as a stack, whenever it is asked to, and says how
    fast.
    """

    blueprint: Blueprint
    folder: SpillFolder | None = None
    memory: int | None = None
    sharers: int = 1
    trial: tuple[int, ...] = ()


class _Portable(pickle.Pickler):
    """Refuses by name what a new process could not find again."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the main program")
        return NotImplemented


def _packed(content: object) -> bytes:
    buffer = io.BytesIO()
    _Portable(buffer).dump(content)
    return buffer.getvalue()


def hindrance(blueprint: Blueprint) -> str | None:
    """Why other processes cannot be told what to make, in words; None where they can."""
    try:
        _packed(blueprint)
    except Exception as error:  # whatever users' objects raise when they are taken apart
        return str(error).rstrip(".")
    return None


def preferred(blueprint: Blueprint | None) -> bool:
    """Whether workers on the CPU are better started anew than forked, and can be."""
    return forks_break() and blueprint is not None and hindrance(blueprint) is None


# -- in the parent ----------------------------------------------------------------------------------------------


@dataclass
class Handle:
    """A started program in the words of `multiprocessing`."""

    program: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.program.pid

    @property
    def exitcode(self) -> int | None:
        """How it ended; negative for a signal."""
        return self.program.poll()

    def kill(self) -> None:
        """End it at once."""
        self.program.kill()

    def join(self) -> None:
        """Wait until it is gone."""
        self.program.wait()


def start_anew(place: str, post: Post) -> Process:
    """Start a worker process on a device; it is of use once `await_ready` came back."""
    ours, theirs = connected()
    inside, environment = alone_with(place, os.environ)
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    number = theirs.fileno()
    program = subprocess.Popen(
        [sys.executable, "-c", f"from potluck.engines.pool.anew import main; main({number})"],
        stdin=subprocess.DEVNULL,
        pass_fds=[number],
        env={**environment, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    theirs.close()
    process = Process(Handle(program), ours, place)
    try:
        content = torch.frombuffer(bytearray(_packed(post)), dtype=torch.uint8)
        send(ours, Letter({"device": inside, "parent": os.getpid()}, state=Flat({"post": content})))
    except OSError as error:
        raise _unstarted(process, str(error)) from None
    return process


def await_ready(process: Process) -> None:
    """Wait until a new process has made its worker; a sentence with its reason if it could not."""
    try:
        trouble = receive(process.socket).facts["trouble"]
    except OSError:
        trouble = "it died"
    if trouble:
        raise _unstarted(process, str(trouble))


def _unstarted(process: Process, trouble: str) -> PotluckError:
    process.end()
    return PotluckError(
        f"A worker process on engine.device = {process.place!r} could not start ({trouble}); use --engine serial."
    )


# -- in the new process -----------------------------------------------------------------------------------------


def main(number: int) -> None:
    """What a new worker process runs; `number` is its end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    theirs = socket.socket(fileno=number)
    torch.set_num_threads(1)
    try:
        first = receive(theirs)
        assert first.state is not None
        facts, content = first.facts, first.state.tensors["post"].numpy()
        post: Post = pickle.loads(content.data)  # nosec B301 - from our own parent
        device = torch.device(facts["device"])
        worker = post.blueprint.worker(facts["device"])
        budget = (default_budget(device) if post.memory is None else post.memory) // post.sharers
        if post.trial:
            _train(worker, post.trial)  # the first time is slow everywhere
    except Exception as error:
        send(theirs, Letter({"trouble": f"{type(error).__name__}: {error}".rstrip(".")}))
        return
    send(theirs, Letter({"trouble": ""}))
    if post.trial:
        _try(worker, post.trial, theirs, device)
    assert post.folder is not None
    serve(worker, Wire(*payload_types(worker.method)), post.folder, budget, theirs, facts["parent"])


def _try(worker: Worker, clients: Sequence[int], theirs: socket.socket, device: torch.device) -> None:
    """Train clients again and again for a moment, as often as we are asked; the asker ends this process."""
    while theirs.recv(1):
        started, samples = time.perf_counter(), 0
        while (spent := time.perf_counter() - started) < TRIAL_SECONDS:
            samples += _train(worker, clients)
        settle(device)
        send(theirs, Letter({"rate": samples / spent, "memory": held_memory(device)}))
    os._exit(0)


def _train(worker: Worker, clients: Sequence[int]) -> int:
    """A few batches of each, as a stack if there are several; how many samples that was."""
    them = [worker.client(client) for client in clients]
    time_training(them, stacked if len(them) > 1 else None)
    return sum(len(me.train) for me in them)
