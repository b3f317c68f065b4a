"""Clients of one data set are built on demand and equal those built at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import potluck
from potluck.core.samples import Samples
from potluck.core.task import ClientInfo
from potluck.data import Data, as_data, match_shares, parse_partition, split_in_three
from potluck.data.partitions.rules import Iid
from potluck.experiment import parse_experiment
from potluck.federation import allocation
from potluck.federation import federation as federation_module
from potluck.federation.federation import Federation, LazySequence, Member
from potluck.federation.members import federate
from potluck.federation.population import build_federation
from potluck.runs import digests as fingerprint_module
from potluck.runs.digests import fingerprint
from support.tiny import Net, points


def rows_of_data(rows: int = 300, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 1, 8, 8, generator=rng), torch.randint(0, 10, (rows,), generator=rng)


def data(rows: int = 300, tests: int = 0) -> Data:
    x, y = rows_of_data(rows + tests)
    samples = as_data((x, y))
    return (
        samples if not tests else replace(samples, x=x[:rows], y=y[:rows], test_x=x[rows:], test_y=y[rows:])
    )


def dealt(source: Data, clients: int = 7, rule: Any = None, **sections: Any) -> Federation:
    values: dict[str, Any] = {
        "method": {"name": "fedavg"},
        "partition": {"rule": "iid", "clients": clients},
        "models": {"names": ["small-mlp", "small-cnn"]},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    experiment = parse_experiment(values)
    return build_federation(experiment, experiment.build_method(), data=source, partition=rule)


def rows(samples: Samples) -> list[int]:
    return list(range(len(samples.y))) if samples.index is None else samples.index.tolist()


@pytest.mark.parametrize("rule", ["iid", "contiguous", "dirichlet:5,min_size=2", "pathological:3"])
@pytest.mark.parametrize("split", ["75:25", "8:1:1", "2:1:1"])
@pytest.mark.parametrize("tests", [0, 80])
def test_lazy_partition_equals_partition_of_all_clients(rule: str, split: str, tests: int):
    source = data(tests=tests)
    pool = {"pool": "train"} if tests else {}
    federation = dealt(source, partition={"rule": rule}, data={"split": split, **pool})
    labels = source.y.numpy()
    parts = parse_partition(rule).assign(labels, 7, 0)
    shares = match_shares(parts, labels, source.test_y.numpy(), 0) if source.test_y is not None else None
    assert len(federation.members) == len(federation.task.clients) == 7
    for index, member in enumerate(federation.members):
        train, validation, test = split_in_three(
            parts[index], split, seed=0, client=f"client-{index}", test_apart=bool(tests)
        )
        test = test if shares is None else shares[index]
        assert [rows(part) for part in (member.train, member.validation, member.test)] == [
            part.tolist() for part in (train, validation, test)
        ]
        kind = ("small-mlp", "small-cnn")[index % 2]
        expected = ClientInfo(index, f"client-{index}", len(train), kind, "default", len(validation))
        assert federation.task.clients[index] == expected
        assert (member.name, member.architecture) == (f"client-{index}", kind)


def test_rule_that_transforms_samples_gets_all_clients():
    class Halved(Iid):
        def transform_samples(
            self, samples: list[Samples], seed: int, input_shape: tuple[int, ...]
        ) -> list[Samples]:
            return [part.select(torch.arange(len(part) // 2)) for part in samples]

    full, half = dealt(data()), dealt(data(), rule=Halved())
    for half_member, full_member in zip(half.members, full.members, strict=True):
        assert rows(half_member.train) == rows(full_member.train)[: len(full_member.train) // 2]
    assert [info.samples for info in half.task.clients] == [info.samples // 2 for info in full.task.clients]


def test_the_same_client_is_made_each_time():
    """Its rows, and the first weights of its own network."""
    fed = dealt(data())
    first_state, second_state = fed.members[3].build().state_dict(), fed.members[3].build().state_dict()
    assert all(torch.equal(first_state[name], second_state[name]) for name in first_state)
    neighbour = fed.members[5].build().state_dict()
    assert not torch.equal(first_state["head.weight"], neighbour["head.weight"])


def test_a_lazy_sequence_is_a_sequence():
    squares = LazySequence(4, lambda place: place**2)
    assert list(squares) == [0, 1, 4, 9]
    assert (squares[-1], squares[1:3], len(squares)) == (9, [1, 4], 4)
    with pytest.raises(IndexError):
        squares[4]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every client that is made, or whose rows are cut, from now on."""
    objects: list[object] = []
    member, split = Member.__init__, split_in_three

    def init(self: Member, *args: Any, **more: Any) -> None:
        objects.append("member")
        member(self, *args, **more)

    def cut(*args: Any, **more: Any) -> Any:
        objects.append("cut")
        return split(*args, **more)

    monkeypatch.setattr(federation_module.Member, "__init__", init)
    monkeypatch.setattr(allocation, "split_in_three", cut)
    return objects


class Enough(Exception):
    """Somebody has seen what there was to see."""


class Stop(potluck.Callback):
    """Ends a run at its first step, and notes what had been made before the first message."""

    def __init__(self, made: list[object]) -> None:
        self.made, self.before, self.after = made, -1, -1

    def on_send(self, *about: Any) -> None:
        self.before = len(self.made) if self.before < 0 else self.before

    def on_step(self, step: Any) -> None:
        if step.record.round == 2:
            self.after = len(self.made)
            raise Enough


@pytest.mark.parametrize("plan", [{}, {"mode": "async", "concurrency": 3}], ids=["sync", "async"])
def test_only_participating_clients_are_built(
    plan: dict[str, Any], made: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Start-up, two rounds of four clients and a checkpoint, in a population of a thousand."""
    monkeypatch.setattr(fingerprint_module, "MAX_SAMPLED_CLIENTS", 5)
    stop = Stop(made)
    with pytest.raises(Enough):
        potluck.run(
            "fedavg",
            data=rows_of_data(3000),
            partition="iid",
            models="small-mlp",
            clients=1000,
            participation=0.004,
            rounds=50,
            schedule=plan,
            engine="serial",
            out=tmp_path / "run",
            callbacks=[stop],
        )
    assert stop.before <= 10  # one size of part, one example of the data
    assert stop.before < stop.after <= stop.before + 2 * (2 * 4 + 5 + 10)


@pytest.mark.parametrize("change", ["a row", "a label", "a seed", "a split", "a rule", "the models"])
def test_large_partitions_have_different_digests(change: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fingerprint_module, "MAX_SAMPLED_CLIENTS", 5)
    x, y = rows_of_data()
    before = fingerprint(dealt(as_data((x, y)), clients=60))
    assert fingerprint(dealt(as_data((x.clone(), y.clone())), clients=60)) == before
    sections: dict[str, Any] = {}
    if change == "a row":
        x[177, 0, 2, 2] += 1
    elif change == "a label":
        y[177] = (y[177] + 1) % 10
    else:
        sections = {
            "a split": {"data": {"split": "6:4"}},
            "a rule": {"partition": {"rule": "contiguous"}},
            "the models": {"models": {"names": ["small-mlp"]}},
        }.get(change, {})
    changed = as_data((x, y))
    if change == "a seed":
        experiment = parse_experiment(
            {
                "partition": {"rule": "iid", "clients": 60},
                "models": {"names": ["small-mlp", "small-cnn"]},
                "seed": 1,
            }
        )
        digest = fingerprint(build_federation(experiment, experiment.build_method(), data=changed))
    else:
        digest = fingerprint(dealt(changed, clients=60, **sections))
    assert digest["clients"] != before["clients"]


def test_two_clients_that_change_places_are_another_population(monkeypatch: pytest.MonkeyPatch):
    """Though neither is among those that are looked at one by one."""
    monkeypatch.setattr(fingerprint_module, "MAX_SAMPLED_CLIENTS", 3)

    class Swapped(Iid):
        def deal(self, *about: Any) -> list[Any]:
            parts = super().deal(*about)
            parts[11], parts[12] = parts[12], parts[11]
            return parts

    assert np.diff([0, 30, 59]).min() > 1  # the three that are looked at: neither is 11 or 12
    assert fingerprint(dealt(data(), clients=60, rule=Swapped())) != fingerprint(dealt(data(), clients=60))


def test_shared_network_is_inspected_once(monkeypatch: pytest.MonkeyPatch):
    built, build = [], Member.build
    monkeypatch.setattr(Member, "build", lambda self: built.append(1) or build(self))
    wide, narrow = Net(hidden=7), Net(hidden=5)
    few, many = (
        federate([Member((wide, narrow)[n % 3 == 0], points(4, n)) for n in range(clients)], num_classes=3)
        for clients in (3, 30)
    )
    assert list(many.task.architectures) == list(few.task.architectures) == ["Net", "Net-2"][::-1]
    assert [info.architecture for info in many.task.clients[:4]] == ["Net", "Net-2", "Net-2", "Net"]
    assert len(built) == 2 * (2 + 2)  # each network once, and each architecture's first weights
