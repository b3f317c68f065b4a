"""A safeguard on Flower nodes: the serial engine's bits on partitions; with own data, choice and model stay on the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

import potluck
from potluck.core.tree import flatten
from potluck.experiment import parse_experiment
from potluck.flower.node.node import CHOICE
from potluck.flower.server_app import serve
from potluck.wire import decode_state
from support.loopgrid import LoopGrid, dealt_nodes
from support.own_nodes import combined_federation, experiment, serial_values, three_nodes

PARTITIONED: dict[str, Any] = {
    "method": {"name": "fedgh"},
    "data": {"limit": 90, "split": "6:2:2"},
    "partition": {"clients": 3, "rule": "iid"},
    "training": {"epochs": 1, "batch_size": 8},
    "schedule": {"rounds": 2},
    "safeguard": {"mode": "ensemble"},
}


def on_flower(values: dict[str, Any], out: Path, grid: LoopGrid) -> potluck.Run:
    experiment = parse_experiment({**values, "engine": {"name": "flower", **values.get("engine", {})}})
    configuration = {"experiment": experiment.model_dump_json(exclude_none=True), "out": str(out)}
    return serve(grid, configuration, poll_interval=0)


class States(potluck.Callback):
    """Keep all clients' tensors at the end of a serial run."""

    def on_end(self, end: potluck.End) -> None:
        self.states = [flatten(end.fetch(client)).tensors for client in range(3)]


def test_partitions_on_nodes_have_the_bits_of_the_serial_engine(tmp_path: Path) -> None:
    values, weights = PARTITIONED, States()
    serial = potluck.run(
        {**values, "engine": {"name": "serial"}}, out=tmp_path / "serial", callbacks=[weights]
    )
    flower = on_flower(values, tmp_path / "flower", LoopGrid(dealt_nodes(3), {}))

    assert flower.clients == serial.clients
    assert flower.summary["safeguard"] == serial.summary["safeguard"]
    files = sorted((tmp_path / "flower" / "nodes").glob("*/*/state-2.safetensors"))
    for file, expected in zip(files, weights.states, strict=True):
        tensors = decode_state(file.read_bytes()).tensors
        assert tensors.keys() == expected.keys()
        assert any(name.startswith("/standalone/") for name in tensors)
        assert all(torch.equal(tensors[name], expected[name]) for name in tensors)


def test_nodes_with_own_data_keep_their_choice_and_send_only_its_score(tmp_path: Path) -> None:
    paths = three_nodes(tmp_path)
    for path in paths:
        path.write_text(path.read_text().replace('split = "75:25"', 'split = "6:3:3"'))
    settings = experiment("fedgh", safeguard={"mode": "ensemble"})
    own = {200 + index: {"node-file": str(path)} for index, path in enumerate(paths)}

    flower = on_flower(settings.model_dump(exclude_none=True), tmp_path / "flower", LoopGrid(own, {}))
    serial = potluck.run(
        serial_values(settings) | {"safeguard": {"mode": "ensemble"}},
        federation=combined_federation(settings, paths),
        out=tmp_path / "serial",
    )

    hidden = {"confusion", "calibration", "accuracy_federated", "accuracy_alone", "loss_federated", "loss_alone",
              "federated_weight", "gained", "lost", "federated_gained", "federated_lost",
              "validation_gained", "validation_lost", "accuracy_validation_federated", "accuracy_validation_alone",
              }  # fmt: skip
    expected = [{name: value for name, value in row.items() if name not in hidden} for row in serial.clients]
    assert list(flower.clients) == expected
    assert flower.summary["safeguard"] == {"mode": "ensemble", "flops_per_client_round": None, "clients": 0}
    choice_files = sorted(tmp_path.glob(f"n*/**/{CHOICE}"))
    weights = [json.loads(file.read_text())["weight"] for file in choice_files]
    assert weights == [row["federated_weight"] for row in serial.clients if row["final"]]
