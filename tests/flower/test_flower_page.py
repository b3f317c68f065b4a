"""The commands of the page for Flower users work as written: Flower's own programs and the app of examples/."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from potluck.flower.deploy.processes import free_ports
from support.real_processes import no_processes_left, wait_for

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "flower.md").read_text()


def block(first: str) -> str:
    """Return the indented block of the page that begins with these words."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.MULTILINE)
    (chosen,) = [text for text in blocks if text.strip().startswith(first)]
    return "\n".join(line[4:] for line in chosen.strip("\n").splitlines())


def with_free_ports(*texts: str) -> list[str]:
    """Replace the ports of the page by free ones."""
    free = dict(zip(("8000", "9094", "9095"), map(str, free_ports(3)), strict=True))
    return [re.sub(r"\b(8000|9094|9095)\b", lambda port: free[port[0]], text) for text in texts]


def test_the_page_keeps_flower_from_installing_dependencies():
    server, *_ = block("flower-superlink").splitlines()
    assert "--disable-runtime-dependency-installation" in server


@contextmanager
def started(commands: list[str], place: Path, environment: dict[str, str]) -> Iterator[dict[str, Path]]:
    """Start programs, each with its output in a file; they have ended when the block is left."""
    running, logs = [], {}
    with no_processes_left(place):
        try:
            for number, command in enumerate(commands):
                logs[command] = place / f"{number}.out"
                with logs[command].open("wb") as output:
                    running.append(
                        subprocess.Popen(
                            _words(command),
                            cwd=place,
                            env=environment,
                            stdout=output,
                            stderr=output,
                            start_new_session=True,
                        )
                    )
            yield logs
        finally:
            for process in reversed(running):
                os.killpg(process.pid, signal.SIGTERM)
            for process in running:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def _words(command: str) -> list[str]:
    program, *words = shlex.split(command)
    return [str(Path(sys.executable).with_name(program)), *words]


@pytest.mark.flower
@pytest.mark.timeout(900)
def test_the_app_runs_with_flowers_own_programs(tmp_path: Path):
    shutil.copytree(ROOT / "examples" / "flower-app", tmp_path / "app")
    commands, connection = with_free_ports(block("flower-superlink"), block("[superlink.local]"))
    *programs, run = commands.splitlines()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(connection)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FLWR_")},
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "POTLUCK_TEST": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    with started(programs, tmp_path, environment) as logs:
        server = logs[programs[0]]
        address = re.search(r"127\.0\.0\.1:\d+", connection)
        assert address is not None
        wait_for(lambda: "SuperLink" in server.read_text(errors="replace"), "the server")
        call: dict[str, Any] = {
            "cwd": tmp_path / "app",
            "env": environment,
            "capture_output": True,
            "timeout": 300,
        }
        wait_for(lambda: subprocess.run(_words(run), **call).returncode == 0, "flwr run")
        summary = tmp_path / "runs" / "fedgh-flower" / "summary.json"
        wait_for(lambda: summary.exists() or "Exit Code" in server.read_text(errors="replace"), "the run")
        assert summary.exists(), server.read_text(errors="replace")[-3000:]
        assert json.loads(summary.read_text())["rounds"] == 2
