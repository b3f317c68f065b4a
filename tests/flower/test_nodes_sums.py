"""Secure sums on Flower nodes: the serial engine's result, one sum per answer, policy and audit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

import potluck
from potluck.core.errors import PotluckError
from potluck.core.tree import Flat
from potluck.experiment import Experiment
from potluck.flower.node.audit import AuditLog
from potluck.flower.node.audit_report import node_log
from potluck.flower.node.config import read_node
from potluck.flower.node.host import NodeHost
from potluck.flower.node.journal import Journal
from potluck.flower.node.registration import Assignment
from potluck.flower.server_app import serve
from potluck.kit import Head
from potluck.privacy.ciphers import SecretCiphers
from potluck.privacy.secure_aggregation import Announcement, Party, Secrets, SumGroup
from potluck.privacy.sum_stages import StageRequest
from potluck.wire import Message as WireMessage
from potluck.wire import pack_job, unpack_result
from potluck.wire.jobs import Answer, Failure, Job
from support.loopgrid import LoopGrid, dealt_nodes
from support.own_nodes import combined_federation, experiment, serial_values, three_nodes, write_node

SUMS = {"secure_sums": True}


def config(settings: Experiment, out: Path) -> dict[str, Any]:
    return {"experiment": settings.model_dump_json(exclude_none=True), "out": str(out)}


def rows(run: Any) -> list[dict[str, Any]]:
    """Every number but wall time and bytes: sealed shares and keys have one size whatever made them."""
    return [{**row, "seconds": 0} for row in run.rounds]


@pytest.mark.parametrize("method", ["fedproto", "fd"])
def test_sums_of_three_own_nodes_are_those_of_one_process(tmp_path: Path, method: str) -> None:
    settings, paths = experiment(method, privacy=SUMS), three_nodes(tmp_path)
    grid = LoopGrid({10 + i: {"node-file": str(path)} for i, path in enumerate(paths)}, {})
    run = serve(grid, config(settings, tmp_path / "run"), poll_interval=0)
    alone = potluck.run(
        serial_values(settings) | {"privacy": SUMS},
        federation=combined_federation(settings, paths),
        out=tmp_path / "serial",
    )
    assert rows(run) == rows(alone)
    assert run.rounds[0]["participants"] == [0, 1, 2]
    lines = list(AuditLog(read_node(paths[0]).audit_log()).lines())
    sums = [line["fields"].get("sums", {}) for line in lines]
    senders = [sorted(parts) for parts in sums if parts]
    assert senders == [["keys"], ["boxes"], ["masked"], ["shares"]] * 2
    assert not any(line["fields"].get("payload") for line in lines if line["kind"] in ("train", "sum"))
    assert any("masked" in line for line in node_log(paths[0], 20))


def test_sums_of_dealt_data_are_those_of_one_process(tmp_path: Path) -> None:
    values = {
        "method": {"name": "pfedafm"},
        "data": {"limit": 90},
        "partition": {"clients": 3, "rule": "iid"},
        "training": {"epochs": 1, "batch_size": 8},
        "schedule": {"rounds": 1},
        "models": {"names": "small-mlp"},
        "privacy": SUMS,
    }
    settings = potluck.Experiment.model_validate({**values, "engine": {"name": "flower"}})
    run = serve(LoopGrid(dealt_nodes(3), {}), config(settings, tmp_path / "run"), poll_interval=0)
    alone = potluck.run({**values, "engine": {"name": "serial"}}, out=tmp_path / "serial")
    assert rows(run) == rows(alone)


# -- one answer is in one sum ---------------------------------------------------------------------------------


class Server:
    """Asks one node for its answer, with two made-up clients beside it."""

    def __init__(self, folder: Path, policy: str = "") -> None:
        self.path = write_node(folder, "guarded", "mlp-1+6", 3)
        self.path.write_text(self.path.read_text() + policy)
        self.one = experiment("lg-fedavg", privacy=SUMS)
        self.ciphers, self.members = (
            SecretCiphers(),
            {1: bytes([1]) * 32, 2: bytes([2]) * 32, 3: bytes([3]) * 32},
        )
        head = {"weight": torch.zeros(3, 6), "bias": torch.zeros(3)}
        self.train = Job(1, "train", 0, 0, round=1, rounds=2, message=Head(head))

    def ask(self, job: Job) -> Answer | Failure:
        order = Assignment(self.one.model_dump_json(exclude_none=True), "ab12")
        reply = NodeHost().handle_message(order.attach_to(pack_job(job)), {"node-file": str(self.path)})
        if "refusal" in reply.facts:
            return Failure(0, 0, str(reply.facts["refusal"]))
        return unpack_result(reply, Head, job)

    def announce(self) -> Announcement:
        answer = self.ask(self.train)
        assert isinstance(answer, Answer)
        assert answer.payload is None
        assert answer.sums is not None
        data = answer.sums.tensors["keys"].numpy().tobytes()
        return Announcement(data[:32], data[32:64], data[64:])

    def request(self, stage: str, *client_indices: int, total: float = 60.0) -> Job:
        group = SumGroup("x", (0, *client_indices), len(client_indices) // 2 + 2, 4)
        public = {
            number: Party(group, number, Secrets(*[self.members[number]] * 3), self.ciphers).announce()
            for number in client_indices
        }
        sums = StageRequest(stage, (0, *client_indices), {0: self.announce(), **public}, total).flat()
        return Job(2, "sum", 0, 1, round=1, rounds=2, sums=sums)


def masked(result: Answer | Failure) -> Flat:
    assert isinstance(result, Answer), result
    assert result.sums is not None
    return result.sums


def test_answer_that_left_masked_is_given_to_no_other_sum(tmp_path: Path) -> None:
    server = Server(tmp_path / "n")
    assert isinstance(server.ask(server.request("deal", 1, 2, 3)), Answer)
    assert isinstance(server.ask(server.request("deal", 1, 2)), Answer)  # one client was lost meanwhile
    first = masked(server.ask(server.request("mask", 1, 2))).tensors["masked"]
    again = masked(server.ask(server.request("mask", 1, 2))).tensors["masked"]
    assert torch.equal(first, again)
    second_request = server.ask(server.request("mask", 1, 2, 3))
    assert isinstance(second_request, Failure)
    assert "was already given to another secure sum (mask)" in second_request.reason
    dealt = server.ask(server.request("deal", 1, 2, 3))
    assert isinstance(dealt, Failure)
    assert "another secure sum" in dealt.reason


def test_answer_is_in_the_masked_vector(tmp_path: Path) -> None:
    """Without the masks of one seed and two pairs, which the made-up clients know, the head itself is left."""
    server = Server(tmp_path / "n")
    announced = server.announce()
    vector = masked(server.ask(server.request("mask", 1, 2))).tensors["masked"]
    state = Journal(read_node(server.path).state_folder() / "ab12", 4).state()
    assert state is not None
    sum_parts = {name: tensor for name, tensor in state.tensors.items() if "secure sum" in name}
    secrets = next(tensor for name, tensor in sum_parts.items() if name.endswith("secrets"))
    group = SumGroup("x", (0, 1, 2), 3, 4)
    own = Secrets(*(bytes(row.tolist()) for row in secrets))
    party = Party(group, 0, own, server.ciphers)
    public = {0: announced}
    public |= {
        n: Party(group, n, Secrets(*[server.members[n]] * 3), server.ciphers).announce() for n in (1, 2)
    }
    import numpy as np

    from potluck.privacy.fixed_form import summation
    from potluck.privacy.secure_aggregation import reduce, signed, unpack

    masks = party.mask(public, np.zeros(21, dtype=np.uint64))
    numbers = signed(reduce(unpack(vector.numpy().tobytes(), 4) - masks, 4), 4)
    step = summation(server.one.privacy, 60.0, 3).step
    weights = next(tensor for name, tensor in sum_parts.items() if name.endswith("weights.weight"))
    assert np.allclose(numbers[:18] * step, weights.flatten().numpy(), atol=step)


def test_unknown_round_and_torn_requests_are_sentences(tmp_path: Path) -> None:
    server = Server(tmp_path / "n")
    good = server.request("mask", 1, 2)
    late = server.ask(Job(2, "sum", 0, 5, round=1, rounds=2, sums=good.sums))
    assert isinstance(late, Failure)
    assert "no answer to job 5" in late.reason
    assert good.sums is not None
    for sums in (
        None,
        Flat({}, None),
        Flat(good.sums.tensors, {"stage": "x", "members": [0]}),
        Flat({}, good.sums.layout),
    ):
        result = server.ask(Job(2, "sum", 0, 1, round=1, rounds=2, sums=sums))
        assert isinstance(result, Failure)


# -- policy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("privacy", "policy", "sentence"),
    [
        ({}, {"secure_sums": "true"}, "its policy.secure_sums = true, and privacy.secure_sums is false"),
        (
            {**SUMS, "sum_clients": 3},
            {"secure_sums": "true", "sum_clients": "5"},
            "privacy.sum_clients = 3 is below its policy.sum_clients = 5",
        ),
    ],
)
def test_node_refuses_runs_without_the_sums_that_it_demands(
    tmp_path: Path, privacy: dict[str, Any], policy: dict[str, str], sentence: str
) -> None:
    path = write_node(tmp_path / "n", "guarded", "mlp-1+6", 3)
    text = path.read_text()
    for name, value in policy.items():
        lines = [line for line in text.splitlines() if not line.startswith(f"{name} =")]
        text = "\n".join([*lines, f"{name} = {value}"]) + "\n"
    path.write_text(text)
    settings = experiment("lg-fedavg", **({"privacy": privacy} if privacy else {}))
    order = Assignment(settings.model_dump_json(exclude_none=True), "ab12")
    request = order.attach_to(WireMessage({"ask": "registration"}))
    reply = NodeHost().handle_message(request, {"node-file": str(path)})
    assert sentence in str(reply.facts["refusal"])
    node = read_node(path)
    with pytest.raises(PotluckError, match="refuses the run"):
        node.policy.check(settings)
    assert json.loads(json.dumps(node.policy.model_dump()))["secure_sums"] is True
    node.policy.check(experiment("lg-fedavg", privacy={**SUMS, "sum_clients": 5}))
