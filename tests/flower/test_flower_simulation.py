"""Flower's simulation in Ray workers: the serial engine's bits, and nothing left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from support.real_processes import commands_in, rows

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]

SMALL = ["--clients", "3", "--rounds", "2", "--set", "data.limit=90", "--set", "training.epochs=1", "--quiet"]


def test_a_simulation_has_the_bits_of_the_serial_engine_and_takes_ray_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="p") as short, commands_in(tmp_path) as commands:
        monkeypatch.setenv("TMPDIR", short)
        commands.run("sim", "run", "fedgh", "--engine", "flower", "--simulation", "--out", "sim", *SMALL)
        commands.run("serial", "run", "fedgh", "--engine", "serial", "--out", "serial", *SMALL)

        assert rows(tmp_path / "sim") == rows(tmp_path / "serial")
        assert [path for path in Path(short).rglob("*") if "ray" in path.name or "potluck" in path.name] == []
