"""Processes for many runs do not outlive their parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

STARTER = """
import os, sys, time
from pathlib import Path
from potluck.runs.process_pool import run_processes
import runs_several_work as work

if __name__ == "__main__":
    with run_processes(1) as pool:
        pool.submit(work.sleep, sys.argv[1]).result()
"""
WORK = """
import os, time
from pathlib import Path

def sleep(place):
    Path(place).write_text(str(os.getpid()))
    time.sleep(600)
"""


def test_process_ends_with_its_killed_parent(tmp_path: Path):
    (tmp_path / "starter.py").write_text(STARTER)
    (tmp_path / "runs_several_work.py").write_text(WORK)
    place = tmp_path / "pid"
    starter = subprocess.Popen([sys.executable, "starter.py", str(place)], cwd=tmp_path)
    try:
        _until(lambda: place.exists() and place.read_text() != "", 120)
        worker = int(place.read_text())
        assert _alive(worker)
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    _until(lambda: not _alive(worker), 60)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has asked about does not."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def _until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)
