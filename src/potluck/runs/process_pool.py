"""A pool of processes that each do whole runs, one after another."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process


def run_processes(count: int) -> ProcessPoolExecutor:
    """Return a pool of `count` processes; they end with the process that started them."""
    return ProcessPoolExecutor(count, mp_context=get_context("forkserver"), initializer=_watch_parent)


def _watch_parent() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent has ended; it would otherwise wait for work for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
