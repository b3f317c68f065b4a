"""Supervised programs leave nothing behind, and their errors are reported."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from potluck.flower.deploy import processes as process_tree
from potluck.flower.deploy.processes import Processes
from potluck.flower.node.config import TEMPLATE

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; {ignore}time.sleep(600)"], start_new_session=True)
open("child", "w").write(str(child.pid))
time.sleep(600)
"""


def child_of(processes: Processes, ignore: str = "") -> set[process_tree.ProcessId]:
    """Start a program that starts another one in a session of its own."""
    place = processes.home
    (place / "parent.py").write_text(
        PARENT.replace('"child"', repr(str(place / "child"))).format(ignore=ignore)
    )
    processes.start("parent", [sys.executable, str(place / "parent.py")])
    ends = time.monotonic() + 60
    while not (place / "child").exists() or not (place / "child").read_text():
        assert time.monotonic() < ends
        time.sleep(0.05)
    descendants = process_tree.descendants([processes.running["parent"].pid])
    assert int((place / "child").read_text()) in {process[0] for process in descendants}
    return descendants


def test_what_a_program_started_in_another_session_ends_with_it(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        child = child_of(processes)
        assert process_tree.alive(child) == child
    assert process_tree.alive(child) == set()


def test_process_that_ignores_termination_is_killed(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    child = child_of(processes, "signal.signal(signal.SIGTERM, signal.SIG_IGN); ")
    time.sleep(0.5)  # until the signal is ignored

    processes.stop(patience=1.0)

    ends = time.monotonic() + 10
    while process_tree.alive(child) and time.monotonic() < ends:
        time.sleep(0.05)
    assert process_tree.alive(child) == set()


def test_last_words_are_the_complaint_of_this_start(tmp_path: Path) -> None:
    def say(*lines: str) -> str:
        processes.start("one", [sys.executable, "-c", f"print({chr(10).join(lines)!r})"])
        processes.running["one"].wait(60)
        return processes.last_error("one")

    with Processes(tmp_path) as processes:
        assert say("\x1b[91mERROR \x1b[0m: Exit Code: 305", "no connection", "INFO: bye", "a", "b") == (
            "ERROR : Exit Code: 305 no connection INFO: bye a"
        )
        assert say("all is well", "bye") == "all is well bye"


def test_large_log_is_rotated_and_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("potluck.flower.deploy.processes.LOG_TAIL_BYTES", 100)
    monkeypatch.setattr("potluck.flower.deploy.processes.MAX_LOG_BYTES", 1000)
    with Processes(tmp_path) as processes:
        for number in range(2):
            processes.start("one", [sys.executable, "-c", f"print('x' * 3000 + ' start {number}')"])
            processes.running["one"].wait(60)
            error = processes.last_error("one")
            assert len(error) <= 100
            assert error.endswith(f"start {number}")
    assert "start 0" in (tmp_path / "one.old.log").read_text()
    assert "start 0" not in (tmp_path / "one.log").read_text()


WITHOUT_TORCH = """
import sys
from potluck.flower.deploy import serve
serve.supervise = lambda home, commands, say, **options: say(f"supervises {{sorted(commands)}}")
from potluck.cli import app
app({words!r}, standalone_mode=False)
import potluck.flower.deploy.fleet_proxy
heavy = {{"torch", "numpy", "scipy", "flwr"}} & set(sys.modules)
print("loaded:", sorted(heavy))
"""


@pytest.mark.parametrize(
    ("words", "programs"),
    [
        (["node", "start", "NODE", "--server", "127.0.0.1:1", "--insecure"], "['node', 'worker']"),
        (
            ["server", "start", "--insecure", "--host", "0.0.0.0", "--folder", "HOME"],
            "['proxy', 'runner', 'server']",
        ),
    ],
    ids=["node", "server"],
)
def test_supervisor_and_proxy_load_no_torch(tmp_path: Path, words: list[str], programs: str) -> None:
    pytest.importorskip("flwr")
    node = tmp_path / "node.toml"
    node.write_text(TEMPLATE.format(name="a", model="small-cnn", source="npz:rows.npz"))
    words = [{"NODE": str(node), "HOME": str(tmp_path / "server")}.get(word, word) for word in words]
    code = WITHOUT_TORCH.format(words=words)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert f"supervises {programs}" in ended.stdout
    assert ended.stdout.endswith("loaded: []\n")
