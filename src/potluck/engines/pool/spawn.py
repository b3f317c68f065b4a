"""Spawn worker processes: on accelerators, which do not survive a fork, and on Pythons where forks are unsafe.

Each makes its clients by itself, on a device of its own; data are brought there once per process. What it is made from
crosses once, at its start, over a socket that only the two processes can reach: the only place where
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
from potluck.engines.pool import process as worker_process
from potluck.engines.pool.channel import JobChannel
from potluck.engines.pool.process import Process, serve, socket_pair
from potluck.engines.tuning import fit_in_stacks, time_training
from potluck.wire import Message, receive, send
from potluck.worker.hardware import fork_is_unsafe, isolate_device, peak_memory, synchronize
from potluck.worker.memory import SpillFolder, default_budget
from potluck.worker.worker import Worker

TRIAL_SECONDS = 1.0


class Blueprint(Protocol):
    """From what a process that knows nothing yet can make its worker."""

    def worker(self, device: str) -> Worker:
        """Return a worker whose clients live on this device."""


@dataclass(frozen=True)
class SpawnSpec:
    """What a spawned worker process receives first; `memory` in bytes is all workers' of its device, None: half of it.

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
        if isinstance(value, type | FunctionType):
            if value.__module__ == "__main__":
                raise pickle.PicklingError(f"{value.__qualname__} is defined in the main program")
            if not _can_be_imported(value.__module__):
                raise pickle.PicklingError(
                    f"{value.__qualname__} is defined in no module that can be imported"
                )
        return NotImplemented


def _can_be_imported(name: str) -> bool:
    """Return whether a new process finds a module; one that was made by hand has neither specification nor file."""
    module = sys.modules.get(name)
    return module is None or getattr(module, "__spec__", None) is not None or hasattr(module, "__file__")


def _packed(content: object) -> bytes:
    buffer = io.BytesIO()
    _Portable(buffer).dump(content)
    return buffer.getvalue()


def pickling_error(blueprint: Blueprint) -> str | None:
    """Explain why a blueprint cannot be pickled; None if it can."""
    try:
        _packed(blueprint)
    except Exception as error:  # whatever users' objects raise when they are taken apart
        return str(error).rstrip(".")
    return None


def prefers_spawn(blueprint: Blueprint | None) -> bool:
    """Return whether to spawn CPU workers: where forks are unsafe and the specification can be pickled."""
    unsafe = fork_is_unsafe() or worker_process.FORKS_ARE_RISKY
    return unsafe and blueprint is not None and pickling_error(blueprint) is None


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


def spawn_worker(device: str, spec: SpawnSpec) -> Process:
    """Start a worker process on a device; it is of use once `wait_until_ready` came back."""
    own_end, worker_end = socket_pair()
    inside, environment = isolate_device(device, os.environ)
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    number = worker_end.fileno()
    program = subprocess.Popen(
        [sys.executable, "-c", f"from potluck.engines.pool.spawn import main; main({number})"],
        stdin=subprocess.DEVNULL,
        pass_fds=[number],
        env={**environment, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    worker_end.close()
    process = Process(Handle(program), own_end, device)
    try:
        content = torch.frombuffer(bytearray(_packed(spec)), dtype=torch.uint8)
        send(own_end, Message({"device": inside, "parent": os.getpid()}, state=Flat({"post": content})))
    except OSError as error:
        raise _unstarted(process, str(error)) from None
    return process


def wait_until_ready(process: Process) -> None:
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
        f"A worker process on engine.device = {process.device!r} could not start ({trouble}); use --engine serial."
    )


# -- in the new process -----------------------------------------------------------------------------------------


def main(number: int) -> None:
    """Run a new worker process; `number` is its end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    connection = socket.socket(fileno=number)
    torch.set_num_threads(1)
    try:
        first = receive(connection)
        assert first.state is not None
        facts, content = first.facts, first.state.tensors["post"].numpy()
        spec: SpawnSpec = pickle.loads(content.data)  # nosec B301 - from our own parent
        device = torch.device(facts["device"])
        worker = spec.blueprint.worker(facts["device"])
        budget = (default_budget(device) if spec.memory is None else spec.memory) // spec.sharers
        if spec.trial:
            _train(worker, spec.trial)  # the first time is slow everywhere
    except Exception as error:
        send(connection, Message({"trouble": f"{type(error).__name__}: {error}".rstrip(".")}))
        return
    send(connection, Message({"trouble": ""}))
    if spec.trial:
        _try(worker, spec.trial, connection, device)
    assert spec.folder is not None
    serve(worker, JobChannel(*payload_types(worker.method)), spec.folder, budget, connection, facts["parent"])


def _try(worker: Worker, clients: Sequence[int], connection: socket.socket, device: torch.device) -> None:
    """Train clients again and again for a moment, as often as we are asked; the asker ends this process."""
    while connection.recv(1):
        started, samples = time.perf_counter(), 0
        while (spent := time.perf_counter() - started) < TRIAL_SECONDS:
            samples += _train(worker, clients)
        synchronize(device)
        send(connection, Message({"rate": samples / spent, "memory": peak_memory(device)}))
    os._exit(0)


def _train(worker: Worker, clients: Sequence[int]) -> int:
    """Return a few batches of each, as a stack if there are several; how many samples that was."""
    them = [worker.client(client) for client in clients]
    time_training(them, fit_in_stacks if len(them) > 1 else None)
    return sum(len(me.train) for me in them)
