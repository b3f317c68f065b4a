"""Attacks: what each kind sends, computed by hand, and what runs record of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck.attacks import Attack, Attackers, draw_attackers
from potluck.attacks.answers import next_class
from potluck.attacks.attackers import add_trigger
from potluck.core.errors import PotluckError
from potluck.core.payload import EmptyPayload
from potluck.core.samples import Samples
from potluck.experiment import parse_experiment
from potluck.kit import ClassLogits, ClassMeans, Weights
from potluck.methods.fedgh import FedGH
from potluck.privacy.settings import Privacy
from potluck.testing import small_federation
from potluck.wire.jobs import Job
from potluck.worker.worker import Worker
from support.tiny import tiny

GOT = Weights({"w": torch.tensor([10.0, 20.0]), "running_var": torch.tensor([1.0])})
SENT = Weights({"w": torch.tensor([11.0, 17.0]), "running_var": torch.tensor([3.0])})


def client(index: int = 0) -> Any:
    me = tiny(4).client(index)
    me.begin("train", 0, 1, 1)
    return me


def lie(kind: Any, strength: float, message: Any = GOT, answer: Any = SENT) -> Any:
    return Attackers(Attack(kind, 0.2, strength), frozenset({0})).corrupt(client(), message, answer)


def test_weights_are_moved_from_the_received_ones():
    flip_labels = lie("sign-flip", 2.0).tensors
    assert flip_labels["w"].tolist() == [8.0, 26.0]  # the change was (1, −3)
    assert flip_labels["running_var"].tolist() == [0.0]  # 1 − 2·2, which no variance can be
    assert lie("scale", 3.0).tensors["w"].tolist() == [13.0, 11.0]
    # The change (1, −3) has the spread 2 around its mean −1: half of it against each number's own direction.
    assert lie("little-is-enough", 0.5).tensors["w"].tolist() == [10.0, 18.0]


def test_noise_is_as_large_as_the_answer_times_the_strength():
    answer = ClassMeans(torch.full((100, 100), 2.0, dtype=torch.float64), torch.arange(100))
    noisy = lie("noise", 3.0, EmptyPayload(), answer)
    assert (noisy.means - 2).std().item() == pytest.approx(6.0, rel=0.05)  # 10,000 draws: 0.7 % of error
    assert torch.equal(noisy.labels, answer.labels)
    assert torch.equal(noisy.means, lie("noise", 3.0, EmptyPayload(), answer).means)


def test_class_means_change_places():
    answer = ClassMeans(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 1, 2]))
    assert lie("prototype-swap", 1.0, EmptyPayload(), answer).means.flatten().tolist() == [4.0, 1.0, 2.0]
    assert lie("prototype-swap", 0.5, EmptyPayload(), answer).means.flatten().tolist() == [2.5, 1.5, 3.0]


def test_logit_shuffle_uses_one_permutation_for_all_attackers():
    answer = ClassLogits(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1]))
    lie_result = lie("logit-shuffle", 1.0, EmptyPayload(), answer)
    assert sorted(lie_result.rows.flatten().tolist()) == [1.0, 2.0, 3.0]
    for seed in range(5):
        following = next_class(seed, 10)
        assert sorted(following.tolist()) == list(range(10))
        assert not (following == torch.arange(10)).any()  # no class keeps its place


def test_honest_clients_send_unchanged_updates():
    attackers = Attackers(Attack("sign-flip"), frozenset({1}))
    assert attackers.corrupt(client(0), GOT, SENT) is SENT


def test_labels_are_counted_from_the_other_end():
    before = client().train.labels
    everything = Attackers(Attack("label-flip"), frozenset({0})).poison_client(client())
    assert torch.equal(everything.train.labels, 2 - before)
    half = Attackers(Attack("label-flip", strength=0.5), frozenset({0})).poison_client(client())
    changed_labels = before != 1  # the middle one of three classes stays what it is
    assert 0 < (half.train.labels != before)[changed_labels].sum() < changed_labels.sum()
    assert torch.equal(half.test.labels, client().test.labels)
    assert torch.equal(Attackers(Attack("label-flip"), frozenset({0})).poison_client(client(1)).train.labels,
                       client(1).train.labels)  # fmt: skip


def test_the_trigger_is_a_bright_corner_and_its_success_is_counted_on_other_classes():
    x = torch.rand(6, 1, 8, 8)
    shown = add_trigger(x)
    assert (shown[:, :, -2:, -2:] == x.max()).all()
    assert torch.equal(shown[:, :, :6], x[:, :, :6])
    samples = Samples(x, torch.tensor([0, 1, 2, 0, 1, 2]))
    targeted_samples = Attackers(Attack("backdoor"), frozenset({0})).targeted_samples(samples, tiny().task)
    assert targeted_samples is not None
    assert targeted_samples.labels.tolist() == [0, 0, 0, 0]
    assert torch.equal(targeted_samples.x, shown[[1, 2, 4, 5]])
    flip_labels = Attackers(Attack("label-flip"), frozenset({0})).targeted_samples(samples, tiny().task)
    assert flip_labels is not None
    assert flip_labels.labels.tolist() == [2, 0, 2, 0]  # class 1 is its own opposite
    assert Attackers(Attack("scale"), frozenset({0})).targeted_samples(samples, tiny().task) is None


def test_attackers_are_drawn_by_seed_from_the_training_clients():
    task = tiny(10).task
    three = draw_attackers(Attack("scale", 0.3), task)
    assert len(three.clients) == 3
    assert draw_attackers(Attack("sign-flip", 0.3), task).clients == three.clients
    assert draw_attackers(Attack("scale", 0.3), tiny(10, seed=1).task).clients != three.clients
    assert not draw_attackers(Attack("scale", 0.3), task, absent=three.clients).clients & three.clients
    assert len(draw_attackers(Attack("scale", 0.01), task).clients) == 1
    assert not draw_attackers(Attack(), task)


def test_an_attacker_does_not_obey_clipping():
    """What leaves an attacker is the lie itself, however long."""
    method = FedGH()
    fed = small_federation(method, clients=2, samples=6)
    attackers = Attackers(Attack("scale", 0.5, 100.0), frozenset({0}))
    worker = Worker(method, fed.client, privacy=Privacy(clip=1.0), attackers=attackers)
    from potluck.wire.jobs import Job

    state = method.init_server(potluck.core.Context(fed.task, 1, 1, 0, 1))
    message = method.broadcast(state, fed.task.clients[0], potluck.core.Context(fed.task, 1, 1, 0, 1))
    lengths = [
        worker.run(Job(index, "train", index, 0, round=1, rounds=1, message=message))
        .payload.means.norm()
        .item()
        for index in (0, 1)
    ]
    assert lengths == [pytest.approx(100.0), pytest.approx(1.0)]


def test_an_attacker_adds_no_noise_where_rows_are_protected():
    """A lie times 1 is the answer itself: an attacker's is that of a client without privacy, an honest one's is not."""
    method, fed = FedGH(), tiny(2)
    ctx = potluck.core.Context(fed.task, 1, 1, 0, 1)
    attackers = Attackers(Attack("scale", 0.5, 1.0), frozenset({0}))
    privacy = Privacy(clip=0.5, noise_multiplier=0.01, unit="record")
    free = Worker(method, fed.client)
    private = Worker(method, fed.client, privacy=privacy, attackers=attackers)
    state = method.init_server(ctx)
    for index, alike in ((0, True), (1, False)):
        job = Job(
            index,
            "train",
            index,
            0,
            round=1,
            rounds=1,
            message=method.broadcast(state, fed.task.clients[index], ctx),
        )
        expected, sent = free.run(job).payload, private.run(job).payload
        assert torch.equal(sent.labels, expected.labels)
        assert torch.equal(sent.means, expected.means) == alike


def attacked(tmp_path: Path, name: str, method: str = "fedproto", **more: Any) -> potluck.Run:
    settings = {"kind": "sign-flip", "share": 0.4, **more.pop("attack", {})}
    return potluck.run(
        method, data={"limit": 300}, clients=5, rounds=2, training={"epochs": 1}, attack=settings,
        out=tmp_path / name, **{"engine": "serial", "models": "small-mlp", **more},
    )  # fmt: skip


def test_runs_record_honest_accuracy_and_success_apart(tmp_path: Path):
    run = attacked(tmp_path, "run")
    attack = run.summary["attack"]
    assert len(attack["clients"]) == 2
    assert attack["strength"] == 10.0
    honest = [accuracy for index, accuracy in enumerate(run.summary["client_accuracy"])
              if index not in attack["clients"]]  # fmt: skip
    assert attack["honest_accuracy"] == pytest.approx(sum(honest) / 3)
    assert attack["success"] == pytest.approx(1 - sum(honest) / 3)
    rows = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    first = [row["accuracy"] for row in rows
             if row["round"] == 1 and not row["final"] and row["client"] not in attack["clients"]]  # fmt: skip
    assert run.rounds[0]["notes"]["honest_accuracy"] == pytest.approx(sum(first) / 3)
    assert "strength = 10.0" in (tmp_path / "run" / "experiment.toml").read_text()


@pytest.mark.parametrize("kind", ["backdoor", "label-flip"])
@pytest.mark.parametrize("protocol", ["local", "shared", "global"])
def test_aimed_attacks_are_measured_by_every_protocol(tmp_path: Path, kind: str, protocol: str):
    run = attacked(
        tmp_path, "run", "fedavg", attack={"kind": kind}, evaluate={"protocol": protocol}, models="small-cnn"
    )
    assert 0 <= run.rounds[-1]["notes"]["attack_success"] <= 1
    assert 0 <= run.summary["attack"]["success"] <= 1
    assert run.rounds[-1]["notes"]["attack_success"] != 1 - run.rounds[-1]["notes"]["honest_accuracy"]


def test_backdoor_reaches_averaged_weights(tmp_path: Path):
    """Twelve rounds of plain averaging: the trigger works on clients that never saw it."""
    more = {"evaluate": {"protocol": "shared"}, "models": "small-cnn", "rounds": 12}
    settings = {"kind": "backdoor", "share": 0.4, "strength": 0.5}
    run = potluck.run("fedavg", data={"limit": 800}, clients=5, partition="iid", attack=settings,
                      engine="serial", out=tmp_path / "run", **more)  # fmt: skip
    assert run.summary["attack"]["success"] > 0.5
    assert run.summary["attack"]["honest_accuracy"] > 0.7


@pytest.mark.parametrize("kind", ["noise", "backdoor"])
def test_every_engine_plays_the_same_attackers(tmp_path: Path, kind: str):
    serial = attacked(tmp_path, "serial", attack={"kind": kind})
    pool = attacked(tmp_path, "pool", attack={"kind": kind}, engine={"name": "pool", "workers": 2})
    assert serial.summary["attack"] == pool.summary["attack"]
    assert [row["accuracy"] for row in serial.rounds] == [row["accuracy"] for row in pool.rounds]
    assert [row["notes"] for row in serial.rounds] == [row["notes"] for row in pool.rounds]


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("standalone", {"kind": "scale"}, "clients of Standalone do not send real numbers"),
        ("fedavg", {"kind": "logit-shuffle"}, "clients of FedAvg do not send logits"),
        ("fedavg", {"kind": "prototype-swap"}, "clients of FedAvg do not send a vector for each class"),
        ("fedgh", {"kind": "logit-shuffle"}, "clients of FedGH do not send logits"),
        ("fedgh", {"share": 0.3}, "attack.share = 0.3 has no effect: attack.kind is 'none'"),
        ("fedgh", {"kind": "scale", "share": 0.99}, "leaves no client honest"),
    ],
)
def test_an_attack_that_cannot_act_is_refused(method: str, settings: dict[str, Any], says: str):
    with pytest.raises(PotluckError, match=says):
        potluck.run(method, clients=1 if settings.get("share") == 0.99 else 3, rounds=1, attack=settings)


def test_a_share_of_samples_is_at_most_all_of_them():
    with pytest.raises(PotluckError, match="strength = 2 is a share of samples for label-flip"):
        parse_experiment({"attack": {"kind": "label-flip", "strength": 2}})


def test_a_trigger_needs_pictures(tmp_path: Path):
    table = tmp_path / "points.csv"
    table.write_text("a,b,label\n" + "\n".join(f"{i},{i % 3},{i % 2}" for i in range(60)))
    with pytest.raises(PotluckError, match="'backdoor' puts a trigger on images"):
        potluck.run("fedgh", data=f"csv:{table}", clients=3, rounds=1, attack={"kind": "backdoor"})
