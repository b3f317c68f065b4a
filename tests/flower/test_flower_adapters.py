"""Adapters of unequal rank on an in-process Flower grid: the serial engine's traffic, and its losses up to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from test_flower_loop import on_flower, small

import potluck

TRAFFIC = ("floats_up", "floats_down", "bytes_up", "bytes_down", "participants")


@pytest.mark.parametrize("method", ["hetlora", "flexlora", "flora"])
def test_unequal_ranks_give_the_serial_results(tmp_path: Path, method: str) -> None:
    values = small(method, training={"train": "lora:1,lora:3"}, models={"names": ["small-cnn"]})
    serial = potluck.run({**values, "engine": {"name": "serial"}}, out=tmp_path / "serial")
    run = on_flower(values, tmp_path / "flower")
    for flower_round, serial_round in zip(run.rounds, serial.rounds, strict=True):
        assert [flower_round[key] for key in TRAFFIC] == [serial_round[key] for key in TRAFFIC]
        assert flower_round["loss"] == pytest.approx(serial_round["loss"], rel=1e-6)
    assert serial.rounds[-1]["floats_up"] > 0
