"""Stacked training agrees with the serial engine for realistic networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from potluck.core.client import Client
from potluck.core.model import ClientModel
from potluck.core.payload import EmptyPayload
from potluck.core.random import seeded
from potluck.core.training import Training
from potluck.engines.serial import SerialEngine
from potluck.engines.tuning import is_stacking_faster, plain_request
from potluck.engines.vectorized import JobBatcher, VectorizedEngine, stack
from potluck.engines.vectorized.rendezvous import JobThreads, run_paused_jobs
from potluck.engines.vectorized.stack import Stack, model_structure, stacking_key
from potluck.federation.federation import Federation
from potluck.federation.members import Member, federate
from potluck.methods.standalone import Standalone
from potluck.models import split
from potluck.wire.jobs import Answer, Failure, Job
from potluck.worker.worker import Worker
from support.tiny import make_loop, points, same, tiny

DECAY = Training(epochs=2, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.1)


class Plain(nn.Module):
    """4-6-3 with an activation between."""

    def __init__(self, act: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


class Tied(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.d = nn.Linear(6, 6), nn.Linear(6, 6)
        self.d.weight = self.c.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.d(torch.relu(self.c(self.a(x))))))


class Masked(Plain):
    """A non-persistent buffer that is each client's own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.randn(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x * self.mask)))


class Spare(Plain):
    """A layer that no loss uses, BatchNorm, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.norm = nn.Linear(6, 2), nn.BatchNorm1d(6)
        self.c = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.c(self.norm(self.a(x)))))


def frozen() -> nn.Module:
    net = Plain()
    net.a.weight.requires_grad_(False)
    return net


def own(
    builders: Sequence[Callable[[], nn.Module]], training: Training = DECAY, clients: int = 4
) -> Federation:
    """Clients with the user's own networks, all of one class: `SplitModel`."""
    members = []
    for index in range(clients):
        with seeded("own", index):
            model: ClientModel = split(builders[index % len(builders)]().double(), head="b")
        members.append(Member(model, points(7 + index, 10 + index), points(5, 90 + index)))
    return federate(members, training=training, num_classes=3)


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all stacks that are trained."""
    sizes: list[int] = []

    def watched(pairs: Any) -> Any:
        sizes.append(len(pairs))
        return Stack(pairs)

    monkeypatch.setattr(stack, "Stack", watched)
    return sizes


def trained(fed: Federation, *, stacked: bool) -> list[Any]:
    """Every client's final tensors after two rounds."""
    loop, worker = make_loop(Standalone(), fed, rounds=2), Worker(Standalone(), fed.client)
    loop.dispatcher.engine = (
        VectorizedEngine(worker, JobBatcher(fed.task)) if stacked else SerialEngine(worker)
    )
    loop.run()
    states = [loop.fetch(info.index)["model"] for info in fed.task.clients]
    loop.dispatcher.engine.close()
    return states


def assert_agree(make: Callable[[], Federation]) -> list[Any]:
    serial, stacked = trained(make(), stacked=False), trained(make(), stacked=True)
    for serial_result, stacked_result in zip(serial, stacked, strict=True):
        assert serial_result.keys() == stacked_result.keys()
        for name in serial_result:
            assert torch.allclose(serial_result[name], stacked_result[name], atol=1e-10), name
    return stacked


@pytest.mark.parametrize(
    ("builders", "together"),
    [
        ([Plain, lambda: Plain(torch.tanh)], [2, 2]),  # equal shapes and class, other wiring
        ([Plain, frozen], [2, 2]),  # equal wiring, other parameters to learn
        ([frozen], [4]),
        ([Tied], [4]),
        ([Masked], [4]),
        ([Spare], [4]),
        ([lambda: Plain(lambda x: x.relu())], []),  # functions that cannot be compared
    ],
)  # fmt: skip
def test_own_networks_learn_as_on_the_serial_engine(
    builders: Sequence[Callable[[], nn.Module]], together: list[int], stacks: list[int]
) -> None:
    assert_agree(lambda: own(builders))
    assert stacks == 2 * together


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_unused_and_frozen_parameters_stay_as_they_were(name: Any) -> None:
    training = Training(epochs=1, batch_size=4, lr=0.01, optimizer=name, weight_decay=0.1)
    before = own([Spare], training).client(0).model.state_dict()
    after = assert_agree(lambda: own([Spare], training))[0]
    for part in ("rest.spare.weight", "rest.spare.bias", "rest.c.weight", "rest.c.bias"):
        assert torch.equal(before[part], after[part]), part
    assert not torch.equal(before["rest.a.weight"], after["rest.a.weight"])


def test_a_network_with_nothing_to_learn_fails_as_it_does_alone() -> None:
    def nothing() -> nn.Module:
        return Plain().requires_grad_(False)

    for stacked in (False, True):
        with pytest.raises(Exception, match="does not require grad"):
            trained(own([nothing]), stacked=stacked)


def test_values_with_equal_hashes_are_distinguished() -> None:
    """hash(-1) == hash(-2) in Python: a key must be compared, not its hash."""

    def loss(model: Any, x: Tensor, y: Tensor, power: int) -> Tensor:
        return nn.functional.cross_entropy(model(x), y) * power

    def fitted(together: bool) -> list[Any]:
        clients = [tiny(2, hidden=(5,)).client(index) for index in range(2)]
        if together:
            run_paused_jobs(
                [(me, lambda me=me, power=power: me.fit(loss, power))
                 for me, power in zip(clients, (-1, -2), strict=True)],
                JobThreads(),
            )  # fmt: skip
        else:
            for me, power in zip(clients, (-1, -2), strict=True):
                me.fit(loss, power)
        return [me.model.state_dict() for me in clients]

    for alone, stacked in zip(fitted(False), fitted(True), strict=True):
        assert all(torch.allclose(alone[name], stacked[name], atol=1e-10) for name in alone)


def test_model_structure_depends_on_modules_not_on_weights() -> None:
    def shape(model: nn.Module) -> object:
        return model_structure(model)

    with seeded("structure"):
        assert shape(Plain()) == shape(Plain())
        assert shape(Plain()) != shape(Plain(torch.tanh))
        assert shape(nn.Dropout(0.1)) != shape(nn.Dropout(0.2))
        assert shape(nn.GRU(3, 4)) == shape(nn.GRU(3, 4)) != shape(nn.GRU(3, 4, batch_first=True))
        assert shape(Tied()) == shape(Tied())
        hooked = Plain()
        hooked.a.register_forward_hook(lambda *_: None)
        assert shape(hooked) != shape(Plain())
        cut = [split(Plain(), head="b", stages=["a"]) for _ in range(2)]
        assert shape(cut[0]) == shape(cut[1])


def test_models_that_training_cannot_stack_are_not_measured() -> None:
    fed = own([Plain, lambda: Plain(torch.tanh)])
    assert len({info.architecture for info in fed.task.clients}) == 1
    assert is_stacking_faster(fed.task, fed.client, 2) is False
    assert stacking_key(fed.client(0), plain_request(fed.client(0))) is not None


class Builder:
    """Makes clients, all but one of which succeed."""

    def __init__(self, fed: Federation, broken: int) -> None:
        self.fed, self.broken = fed, broken

    def __call__(self, index: int) -> Client:
        if index == self.broken:
            raise ValueError("no such model")
        return self.fed.client(index)


@pytest.mark.parametrize("broken", [0, 2])
def test_a_client_that_cannot_be_made_fails_alone_and_as_on_the_serial_engine(broken: int) -> None:
    fed = tiny(3, hidden=(5,))
    failures = []
    workers = [Worker(Standalone(), Builder(fed, broken)) for _ in range(2)]
    for engine in (SerialEngine(workers[0]), VectorizedEngine(workers[1], JobBatcher(fed.task))):
        for index in range(3):
            engine.submit(Job(index + 1, "train", index, 0, round=1, rounds=1, message=EmptyPayload()))
        results = list(engine.results())
        assert [isinstance(result, Failure) for result in results] == [i == broken for i in range(3)]
        assert all(isinstance(r, Answer) and r.seconds > 0 for i, r in enumerate(results) if i != broken)
        failures.append(results[broken].reason)
        engine.close()
    assert failures[0] == failures[1] == "set-up in round 1: ValueError: no such model"


def test_clients_beyond_the_budget_are_put_away_between_cohorts_and_lose_nothing(tmp_path: Any) -> None:
    plenty = trained(tiny(4, hidden=(5,)), stacked=True)
    fed = tiny(4, hidden=(5,))
    worker = Worker(Standalone(), fed.client)
    loop = make_loop(Standalone(), fed, rounds=2)
    loop.dispatcher.engine = VectorizedEngine(worker, JobBatcher(fed.task), memory=1, spill_dir=tmp_path)
    loop.run()
    assert sum(index in worker.cache for index in range(4)) == 1
    assert len(list(tmp_path.rglob("*.safetensors"))) >= 3
    scarce = [loop.fetch(index)["model"] for index in range(4)]
    assert all(same(roomy, small) for roomy, small in zip(plenty, scarce, strict=True))
    loop.dispatcher.engine.close()
    assert list(tmp_path.iterdir()) == []
