"""How much memory processes really hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from potluck.core.random import one_thread
from potluck.worker.memory import retain_freed_memory


def resident(pids: list[int]) -> int:
    """Bytes that these processes hold together; pages they share count once."""
    return sum(_share(pid) for pid in pids)


def _share(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def call_in_new_process(function: Callable[..., int], *given: Any) -> int:
    """What a function gives in a new process, so that nothing of what came before counts."""
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(writer, function, *given))
    process.start()
    writer.close()
    result: int = reader.recv()
    process.join()
    return result


def _tell(writer: Connection, function: Callable[..., int], *given: Any) -> None:
    retain_freed_memory()
    with one_thread():
        writer.send(function(*given))


class Peak:
    """Watches processes while a block runs and keeps the most that they held together."""

    def __init__(self, pids: Callable[[], list[int]], every: float = 0.2) -> None:
        self.bytes = 0
        self._pids, self._every = pids, every
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.bytes = max(self.bytes, resident(self._pids()))

    def _watch(self) -> None:
        while not self._done.wait(self._every):
            self.bytes = max(self.bytes, resident(self._pids()))
