"""Following a run: which deaths end it, and which it survives."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from potluck.core.errors import PotluckError
from potluck.flower.deploy.processes import Processes
from potluck.flower.deploy.submit import follow
from potluck.runs import folder

LIVES, DIES = "import time; time.sleep(600)", "raise SystemExit('out of memory')"


def followed(place: Path, *, patient: bool, rounds: int = 1, **programs: str) -> None:
    """Follow a run of some rounds whose programs live or die, and which is finished two seconds later."""
    run = place / "run"
    run.mkdir()
    (run / folder.ROUNDS).write_text("{}\n" * rounds)
    with Processes(place) as processes:
        for name, code in programs.items():
            processes.start(name, [sys.executable, "-c", code])
        for name in (name for name, code in programs.items() if code is DIES):
            processes.running[name].wait(60)
        finish = threading.Timer(2.0, (run / folder.SUMMARY).write_text, ["{}"])
        finish.start()
        try:
            follow(processes, "1", run, (), patient=patient)
        finally:
            finish.cancel()


def test_a_patient_run_goes_on_without_a_node_that_died(tmp_path: Path) -> None:
    followed(tmp_path, patient=True, server=LIVES, a=LIVES, b=DIES)


@pytest.mark.parametrize(
    ("patient", "rounds", "server", "a"),
    [(False, 1, LIVES, LIVES), (True, 0, LIVES, LIVES), (True, 1, DIES, LIVES), (True, 1, LIVES, DIES)],
    ids=["told to stop", "before its first round", "the server", "the last node"],
)
def test_other_deaths_end_the_run_with_last_words(
    tmp_path: Path, patient: bool, rounds: int, server: str, a: str
) -> None:
    with pytest.raises(PotluckError, match="A Flower process died: .* ended with code 1: out of memory"):
        followed(tmp_path, patient=patient, rounds=rounds, server=server, a=a, b=DIES)
