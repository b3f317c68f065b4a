"""`potluck doctor` reports the installation, problems and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from potluck import doctor
from potluck.cli import app
from potluck.core.errors import PotluckError
from potluck.doctor import Check

ONE_KIND = {"changed gradients": "scaffold"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "KINDS", ONE_KIND)
    monkeypatch.setattr(doctor, "DISK_TEST_BYTES", 1 << 16)
    monkeypatch.setattr(
        doctor, "best_worker_count", lambda plan, places, clients, teams: (2, {1: 2.0 * len(clients), 2: 3.0})
    )


def test_the_table_has_machine_methods_and_workers_and_the_command_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert f"| data | found in {tmp_path} | digits, mnist |  |" in result.stdout
    assert "| cpu | changed gradients (scaffold) | works, " in result.stdout
    assert result.output.count("changed gradients (scaffold)") == 1
    assert "| cpu | pool | the serial engine's numbers, bit for bit |  |" in result.stdout
    assert "| cpu | workers | 2 (cnn-1 images per second, by workers: 1: 2, 2: 3) |  |" in result.stdout
    assert "| cpu | stacks | 4.00 × as fast as one client at a time (4 × cnn-1) |  |" in result.stdout
    assert "| accelerators | found | none |  |" in result.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "mnist"]


def test_a_device_that_is_not_there_is_not_well(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "check_machine", lambda folder: [])
    monkeypatch.setattr(doctor, "check_cpu", lambda: ({}, []))
    monkeypatch.setattr(doctor, "check_speed", lambda name: iter([Check(name, "workers", "1")]))
    result = CliRunner().invoke(app, ["doctor", "--device", "cuda"])
    assert result.exit_code == 1
    assert "| cuda | device | is not available here | NOT WELL |" in result.stdout


def test_losses_that_are_too_far_from_the_cpus_are_not_well(monkeypatch: pytest.MonkeyPatch):
    """Of 2.0 and 4.0, 2.02 and 4.12 are 1 % and 3 % away: more than rounding does."""
    monkeypatch.setattr(doctor, "_losses", lambda method, engine, amp="off": [2.02, 4.12])
    reference = {"changed gradients": [2.0, 4.0], "a loss over the model": [2.0, 4.0]}
    kind = next(line for line in doctor.check_device("cpu", reference) if "scaffold" in line.subject)
    assert kind.result.startswith("differs by 3.0e-02 from the CPU")
    assert not kind.ok


def test_worker_and_disk_problems_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def failing(*arguments: object) -> None:
        raise PotluckError("no process could start")

    monkeypatch.setattr(doctor, "best_worker_count", failing)
    assert list(doctor.check_speed("cpu")) == [
        Check("cpu", "workers", "fails: no process could start", ok=False)
    ]
    disk = doctor._disk(tmp_path / "nowhere")
    assert not disk.ok
    assert "cannot be written" in disk.result
