"""Start Flower's programs, watch them, and stop all their processes."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

from potluck.core.errors import PotluckError
from potluck.core.files import process_status

ProcessId = tuple[int, int]
"""A process: its number and when it began, for numbers are used again."""


def descendants(roots: Iterable[int]) -> set[ProcessId]:
    """Children, their children and so on, of these processes; none where there is no /proc."""
    children: dict[int, list[ProcessId]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if (status := _read(int(entry.name))) is not None:
            children.setdefault(status[0], []).append((int(entry.name), status[1]))
    family: set[ProcessId] = set()
    ahead = list(roots)
    while ahead:
        for child in children.get(ahead.pop(), ()):
            family.add(child)
            ahead.append(child[0])
    return family


def wait_or_kill(family: Iterable[ProcessId], ends: float) -> None:
    """Wait for processes that were asked to end; at `ends` (monotonic) those that are left are made to."""
    remaining = alive(family)
    while remaining and time.monotonic() < ends:
        time.sleep(0.1)
        remaining = alive(remaining)
    send_signal(remaining, signal.SIGKILL)


def send_signal(family: Iterable[ProcessId], number: int) -> None:
    """Send a signal to each."""
    for process in alive(family):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process[0], number)


def alive(family: Iterable[ProcessId]) -> set[ProcessId]:
    """Return those that are still there, and are who they were."""
    return {
        process for process in family if (status := _read(process[0])) is not None and status[1] == process[1]
    }


def _read(process: int) -> ProcessId | None:
    """Return the parent of a process and when the process began; None if it is gone, or only its exit code is left."""
    fields = process_status(process)
    return None if fields is None or fields[0] in "ZX" else (int(fields[1]), int(fields[19]))


FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}

MAX_LOG_BYTES, LOG_TAIL_BYTES = 64 << 20, 64 << 10
"""Bytes of a log above which a new one is begun when its program is started, and of its end that is looked at."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def require_flower() -> None:
    """Say how to install what is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise PotluckError("The flower engine needs Flower; install it with: pip install 'potluck[flower]'")


def program_path(name: str) -> str:
    """Return one of Flower's programs, beside this Python."""
    require_flower()
    return str(Path(sys.executable).parent / name)


def free_ports(count: int) -> list[int]:
    """Return unused ports of this machine."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


@dataclass
class Processes:
    """Programs in groups of their own, so that what they start ends with them. Use it as a context."""

    home: Path
    extra_environment: dict[str, str] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _logs: list[IO[bytes]] = field(default_factory=list)
    _began: dict[str, int] = field(default_factory=dict)
    _before: Any = None

    def environment(self) -> dict[str, str]:
        """Flower without telemetry, with a home of its own; modules are found as they are found here."""
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {
            **os.environ,
            **FLOWER_ENVIRONMENT,
            "FLWR_HOME": str(self.home),
            "PYTHONPATH": paths,
            "PATH": path,
            **self.extra_environment,
        }

    def start(self, name: str, command: Sequence[str], *, show: bool = False) -> None:
        """Start a program; what it prints goes to `NAME.log` in the home, or is shown."""
        output: IO[bytes] | None = None
        if not show:
            _rotate_log(self.home / f"{name}.log")
            output = open(self.home / f"{name}.log", "ab")  # noqa: SIM115 - open as long as the program runs
            self._logs.append(output)
            self._began[name] = output.tell()
        self.running[name] = subprocess.Popen(
            list(command), env=self.environment(), stdout=output, stderr=output, start_new_session=True
        )

    def dead(self) -> dict[str, str]:
        """Return the programs that have ended by themselves, each with its last words."""
        return {
            name: f"{name} ended with code {process.returncode}: {self.last_error(name)}"
            for name, process in self.running.items()
            if process.poll() is not None
        }

    def last_error(self, name: str) -> str:
        """Return what a program complained of since it was started, or else the end of its log."""
        data = _tail(self.home / f"{name}.log", self._began.get(name, 0))
        text = COLOUR.sub("", data.decode(errors="replace"))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [index for index, line in enumerate(lines) if line.startswith("ERROR")]
        shown = lines[errors[-1] :][:4] if errors else lines[-3:]
        return " ".join(shown) or "no output"

    def stop(self, *names: str, patience: float = 10.0) -> None:
        """Ask programs (all, if none is named) to end, then make them, with everything they started."""
        chosen = [self.running.pop(name) for name in names or tuple(self.running)]
        children = descendants(process.pid for process in chosen)
        for process in chosen:
            _signal(process, signal.SIGTERM)
        send_signal(children, signal.SIGTERM)
        ends = time.monotonic() + patience
        for process in chosen:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, ends - time.monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()
        wait_or_kill(children, ends)

    def __enter__(self) -> Self:
        """From here on, a request to end (as systemd sends it) stops everything as Ctrl-C does."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for log in self._logs:
            log.close()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)


def _rotate_log(path: Path) -> None:
    """Put a long log aside, in the place of the one that was put aside before."""
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".old.log"))


def _tail(path: Path, since: int) -> bytes:
    """Return the end of what was written to a log since then, as much as anybody looks at."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(since, size - LOG_TAIL_BYTES))
        return file.read(LOG_TAIL_BYTES)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


PATIENCE = 900.0
"""Seconds that a server may take to start: one that ends is seen at once, so a loaded machine is given time."""


def wait_until_up(processes: Processes, address: str, ca: str = "", patience: float = PATIENCE) -> None:
    """Wait until the server's health page answers."""
    import ssl

    context = ssl.create_default_context(cafile=ca) if ca else None
    url = f"{'https' if ca else 'http'}://{address}/health"
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        for error_file in processes.dead().values():
            raise PotluckError(f"The Flower server did not start: {error_file}")
        try:
            with urllib.request.urlopen(url, timeout=5, context=context):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise PotluckError(f"The Flower server at {address} did not answer within {patience:g} seconds.")
