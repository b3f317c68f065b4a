"""The Python interface: first weights, participants, predictions, time estimates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck.core.errors import PotluckError
from potluck.federation.devices import Device
from support.tiny import Recorder, tiny


def run(tmp_path: Path, name: str, **more: Any) -> tuple[potluck.Run, Recorder]:
    recorder = Recorder()
    settings = {"method": "fedavg", "federation": tiny(3, hidden=(5,)), "rounds": 2, **more}
    method = settings.pop("method")
    return potluck.run(
        method, engine="serial", callbacks=[recorder], out=tmp_path / name, **settings
    ), recorder


def test_the_servers_state_to_begin_with(tmp_path: Path):
    """Two rounds, or one and then another from where it ended: the first message of the second is that state."""
    _, first = run(tmp_path, "first", rounds=1)
    _, second = run(tmp_path, "second", rounds=1, state=first.end.state)
    _, both = run(tmp_path, "both")
    sent = second.sent[0][2].tensors
    third = next(message.tensors for number, _, message in both.sent if number == 2)
    assert all(torch.equal(sent[name], third[name]) for name in sent)
    first.end.state["Net"]["head.bias"] += 1.0  # what was brought is not touched, nor is the run by it
    assert torch.equal(second.sent[0][2].tensors["head.bias"], third["head.bias"])


def test_a_run_that_began_with_a_state_predicts_without_it(tmp_path: Path):
    federation, x = tiny(3, hidden=(5,)), tiny(3, hidden=(5,)).client(0).test.take(slice(None))[0]
    _, first = run(tmp_path, "first", rounds=1, federation=federation)
    result, _ = run(tmp_path, "second", rounds=1, federation=federation, state=first.end.state)
    again = potluck.read_run(result.path).predict(0, x, federation=federation)
    assert torch.equal(again, result.predict(0, x))


def test_a_state_of_another_form_is_refused(tmp_path: Path):
    odd = {"Net": {"head.bias": torch.zeros(7)}}
    with pytest.raises(
        PotluckError, match=r"The state to begin with has None at '/Net/body.0.bias' where FedAvg"
    ):
        run(tmp_path, "odd", state=odd)


def test_participants_may_be_listed_instead_of_drawn(tmp_path: Path):
    order = [[2, 0], [1, 0], [2, 1]]
    result, _ = run(tmp_path, "order", rounds=4, participation=0.67, schedule={"order": order})
    assert [row["participants"] for row in result.rounds] == [[0, 2], [0, 1], [1, 2], [0, 2]]
    one_by_one, _ = run(tmp_path, "async", rounds=1, schedule={"mode": "async", "order": [[2], [2], [0]]})
    assert [row["participants"] for row in one_by_one.rounds] == [[2], [2], [0]]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ([[0, 3]], r"schedule.order names client 3; clients with data are 0 to 2"),
        ([[0, 0]], r"each must name 2 different clients"),
        ([[0]], r"schedule.order has the entry \[0\]; each must name 2"),
    ],
)
def test_a_list_that_makes_no_rounds_is_refused(order: list[list[int]], says: str, tmp_path: Path):
    with pytest.raises(PotluckError, match=says):
        run(tmp_path, "odd", participation=0.67, schedule={"order": order})


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "pfedafm", "heterofl"])
def test_client_predictions_equal_the_tested_ones(method: str, tmp_path: Path):
    if method == "heterofl":
        result = potluck.run(
            method, rounds=1, clients=3, data={"limit": 90}, engine="serial", out=tmp_path / "run"
        )
        x, y = potluck.read_run(result.path), None
        scores = result.predict(1, torch.zeros(2, 1, 8, 8))
        assert scores.shape == (2, 10)
        assert torch.equal(scores, x.predict(1, torch.zeros(2, 1, 8, 8)))  # named data need nothing else
        return
    federation = tiny(3)
    result, _ = run(tmp_path, "run", method=method, federation=federation)
    for client in range(3):
        x, y = federation.client(client).test.take(slice(None))
        right = (result.predict(client, x).argmax(dim=1) == y).double().mean()
        assert float(right) == result.client_accuracy[client]
    again = potluck.read_run(result.path)
    x, _ = federation.client(0).test.take(slice(None))
    assert torch.equal(again.predict(0, x, federation=federation), result.predict(0, x))
    with pytest.raises(PotluckError, match=r"made with Python objects \(federation\)"):
        again.predict(0, x)
    with pytest.raises(PotluckError, match=r"There is no client 7"):
        result.predict(7, x)


def test_devices_of_a_user_federation_advance_the_clock(tmp_path: Path):
    slow = [Device("slow", latency=float(10 * (index + 1))) for index in range(3)]
    members = tiny(3).members
    federation = potluck.federate(members, num_classes=3, devices=slow)
    result, _ = run(tmp_path, "slow", federation=federation, rounds=1)
    assert result.rounds[0]["virtual_seconds"] > 60  # twice the latency of the slowest
    assert 'fleet = "own"' in (result.path / "experiment.toml").read_text()
    named = potluck.federate(members, num_classes=3, devices="long-tail")
    assert len(named.devices) == 3
    with pytest.raises(PotluckError, match=r"devices lists 2 devices for 3 clients"):
        potluck.federate(members, num_classes=3, devices=slow[:2])


def test_methods_are_importable_by_name():
    from potluck.methods import FedGH, FedL2GLogits, PFedAFM

    assert (FedGH.name, PFedAFM.name, FedL2GLogits.name) == ("fedgh", "pfedafm", "fedl2g-l")
