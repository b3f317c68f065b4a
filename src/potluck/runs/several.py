"""Processes that do one whole run after another, for whoever has many runs to do."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process


def run_processes(count: int) -> ProcessPoolExecutor:
    """So many processes at a time; they end with the one that started them, whatever ended that."""
    return ProcessPoolExecutor(count, mp_context=get_context("forkserver"), initializer=_follow)


def _follow() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Who is left alone would work on for nobody, and then wait for work for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
