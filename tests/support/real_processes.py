"""Run Potluck commands as processes that end with the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from potluck.runs import folder

POTLUCK = [sys.executable, "-c", "from potluck.cli import main; main()"]
PATIENCE = 600.0


class Commands:
    """Potluck commands that run beside the test, each with its output in a file."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, "POTLUCK_TEST": str(self.place)}
        with open(self.place / f"{name}.out", "wb") as output:
            self.running[name] = subprocess.Popen(
                [*POTLUCK, *arguments],
                cwd=self.place,
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=_hear_interrupts,
            )
        return self.running[name]

    def up(self, name: str, word: str) -> None:
        """Wait until a command has said a word."""
        wait_for(lambda: word in self.said(name) or self.running[name].poll() is not None, name)
        assert word in self.said(name), self.said(name)

    def said(self, name: str) -> str:
        return (self.place / f"{name}.out").read_text(errors="replace")

    def run(self, name: str, *arguments: str) -> str:
        code = self.start(name, *arguments).wait(PATIENCE)
        assert code == 0, self.said(name)
        return self.said(name)

    def end(self, name: str) -> int:
        process = self.running[name]
        process.send_signal(signal.SIGTERM)
        return process.wait(60)


def _hear_interrupts() -> None:
    """A background shell hands the signal down ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def commands_in(place: Path) -> Iterator[Commands]:
    """Commands with this folder as theirs; all have ended, with what they started, when the block is left."""
    with no_processes_left(place):
        commands = Commands(place)
        try:
            yield commands
        finally:
            for process in commands.running.values():
                process.terminate()
            for process in commands.running.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(60)
                process.kill()


@contextmanager
def no_processes_left(place: Path) -> Iterator[None]:
    """Everything started by a test carries its folder in the environment; nothing of it may outlive the test."""
    try:
        yield
    finally:
        ends = time.monotonic() + 5  # a child of a killed program sees within a second that it is alone
        while (processes := started_in(place)) and time.monotonic() < ends:
            time.sleep(0.2)
        for process in processes:
            os.kill(process, signal.SIGKILL)
    assert processes == []


def started_in(place: Path) -> list[int]:
    """The processes that a test's commands, or what they started, have started."""
    mark, numbers = f"POTLUCK_TEST={place}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                numbers.append(int(entry.name))
    return numbers


def started_with(place: Path, *words: str) -> list[int]:
    """Those of a test's processes whose command line holds all these words."""
    chosen = []
    for process in started_in(place):
        with suppress(OSError):
            line = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
            if all(word in line for word in words):
                chosen.append(process)
    return chosen


def kill(place: Path, *words: str) -> None:
    """End, as a crash would, those of a test's processes whose command line holds all these words."""
    chosen = started_with(place, *words)
    assert chosen, f"no process with {words}"
    for process in chosen:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def wait_for(condition: Callable[[], Any], why: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, why
        time.sleep(0.5)


def rows(path: Path) -> list[dict[str, Any]]:
    """A run's rounds, without the wall time."""
    return [{**row, "seconds": 0} for row in folder.read_lines(path / folder.ROUNDS)]
