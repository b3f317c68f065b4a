"""Clipping and noise on messages, and the accountant's figures."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import potluck
from potluck.core.errors import PotluckError
from potluck.core.payload import EmptyPayload, Payload, Tensors
from potluck.core.schema import check_payload
from potluck.kit import ClassMeans, Weights
from potluck.methods.fedgen import HeadAndCounts
from potluck.methods.fedproto import Prototypes
from potluck.privacy.accounting import epsilon
from potluck.privacy.messages import PAIRS, privatize, secret_normal
from potluck.privacy.settings import Privacy
from support.tiny import tiny


def client() -> Any:
    me = tiny(1).client(0)
    me.begin("train", 0, 1, 1)
    return me


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_an_answer_is_clipped_as_one_vector_and_its_ids_are_left_alone():
    answer = ClassMeans(row(3.0, 4.0, 0.0), torch.tensor([2]))
    clipped = privatize(Privacy(clip=1.0, noise_multiplier=0.0), client(), EmptyPayload(), answer)
    assert clipped.means.tolist() == [[pytest.approx(0.6), pytest.approx(0.8), 0.0]]
    assert clipped.labels.tolist() == [2]
    short = privatize(Privacy(clip=10.0, noise_multiplier=0.0), client(), EmptyPayload(), answer)
    assert torch.equal(short.means, answer.means)


def test_weights_are_clipped_as_changes_over_all_tensors():
    got = Weights({"a": torch.tensor([10.0]), "b": torch.tensor([20.0])})
    sent = Weights({"a": torch.tensor([13.0]), "b": torch.tensor([24.0])})  # a change of length 5
    clipped = privatize(Privacy(clip=2.5, noise_multiplier=0.0), client(), got, sent)
    assert clipped.tensors["a"].item() == pytest.approx(11.5)
    assert clipped.tensors["b"].item() == pytest.approx(22.0)


def test_noise_has_the_promised_size_and_the_clients_own_stream():
    answer = ClassMeans(torch.zeros(100, 100, dtype=torch.float64), torch.arange(100))
    protect = partial(privatize, Privacy(clip=2.0, noise_multiplier=1.5))
    noisy = protect(client(), EmptyPayload(), answer)
    assert noisy.means.std().item() == pytest.approx(3.0, rel=0.05)  # 10,000 draws: a standard error of 0.7 %
    assert torch.equal(noisy.means, protect(client(), EmptyPayload(), answer).means)
    secret = partial(privatize, Privacy(clip=2.0, noise_multiplier=1.5, reproducible=False))
    assert not torch.equal(
        secret(client(), EmptyPayload(), answer).means, secret(client(), EmptyPayload(), answer).means
    )


def test_secret_noise_comes_from_the_operating_system_alone(monkeypatch: pytest.MonkeyPatch):
    """Torch's generator starts from 32 bits of its seed, so any use of it could be found out by trying."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a torch generator was used")

    sizes: list[int] = []

    def counted(count: int, urandom: Any = os.urandom) -> bytes:
        sizes.append(count)
        return urandom(count)

    me, answer = client(), ClassMeans(torch.zeros(401, 501, dtype=torch.float64), torch.arange(401))
    for name in ("Generator", "randn", "rand", "normal", "manual_seed"):
        monkeypatch.setattr(torch, name, refuse)
    monkeypatch.setattr(os, "urandom", counted)
    protect = partial(privatize, Privacy(clip=2.0, noise_multiplier=1.5, reproducible=False))
    first_noise, second_noise = (protect(me, EmptyPayload(), answer).means.flatten() / 3.0 for _ in range(2))
    assert sum(sizes) >= 2 * 8 * 401 * 501  # 64 random bits for every number
    both = torch.stack([first_noise, second_noise])
    # 200,901 draws each; every limit is at least ten standard errors wide.
    assert both.mean(dim=1).abs().max() < 0.025
    assert (both.var(dim=1) - 1).abs().max() < 0.035
    assert (both.pow(4).mean(dim=1) - 3).abs().max() < 0.25
    assert ((both.abs() < 1).double().mean(dim=1) - 0.6827).abs().max() < 0.012
    assert (first_noise * second_noise).mean().abs() < 0.025
    assert (first_noise[1:] * first_noise[:-1]).mean().abs() < 0.025
    assert not torch.equal(first_noise, second_noise)
    assert len(torch.unique(first_noise)) > 200_000


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2 * PAIRS + 3,)])
def test_secret_noise_has_any_shape(shape: tuple[int, ...]):
    noise = secret_normal(torch.Size(shape))
    assert noise.shape == shape
    assert noise.dtype == torch.float64
    assert bool(noise.isfinite().all())
    assert bool((noise != 0).all())


def test_reproducible_noise_is_the_clients_seeded_stream_in_the_order_of_the_tensors():
    """Numbers of earlier runs stay what they were."""
    sent = Weights({"a": torch.zeros(3, 5), "b": torch.zeros(17)})
    noisy = privatize(Privacy(1.0, 2.0), client(), EmptyPayload(), sent).tensors
    rng = client().rng("privacy")
    for name in ("a", "b"):
        drawn = torch.randn(sent.tensors[name].shape, generator=rng, dtype=torch.float64).float()
        assert torch.equal(noisy[name], 2.0 * drawn)


def test_noise_keeps_variances_usable():
    got = Weights({"running_var": torch.zeros(1000)})
    assert privatize(Privacy(1.0, 1.0), client(), got, got).tensors["running_var"].min() == 0


def test_a_message_without_real_numbers_passes():
    @dataclass(frozen=True)
    class Ids(Payload):
        ids: Tensor
        empty: Tensors

    assert privatize(
        Privacy(1.0, 1.0), client(), EmptyPayload(), Ids(torch.tensor([1]), {})
    ).ids.tolist() == [1]


def test_epsilon_of_one_release_lies_below_the_classic_bound_and_grows_with_releases():
    pytest.importorskip("opacus")
    # Replacing a client's data moves the answer by up to 2C: z = 20 counts as 10. The classic Gaussian
    # mechanism gives ε = sqrt(2 ln(1.25/δ)) / 10 = 0.4845 at δ = 1e-5; Rényi accounting is at most as large.
    classic = math.sqrt(2 * math.log(1.25e5)) / 10
    assert 0.3 < epsilon(20.0, 1, 1e-5) < classic
    assert epsilon(20.0, 1, 1e-5) < epsilon(20.0, 10, 1e-5) < epsilon(2.0, 10, 1e-5)
    assert epsilon(0.0, 1, 1e-5) == math.inf
    assert epsilon(1.0, 0, 1e-5) == 0.0


def test_run_reports_the_spent_privacy_budget(tmp_path: Any):
    pytest.importorskip("opacus")
    federation = tiny(3)
    run = potluck.run(
        "fedgh", federation=federation, rounds=2, out=tmp_path / "run", engine="serial",
        privacy={"clip": 1.0, "noise_multiplier": 4.0},
    )  # fmt: skip
    assert run.summary["privacy"]["releases"] == 2
    assert run.summary["privacy"]["epsilon"] == pytest.approx(epsilon(4.0, 2, 1e-5))


def test_noise_without_a_length_to_clip_to_is_refused(tmp_path: Any):
    with pytest.raises(
        PotluckError, match=r"privacy.noise_multiplier = 1.0 has no effect: it is in units of privacy.clip"
    ):
        potluck.run(
            "fedgh", federation=tiny(2), rounds=1, out=tmp_path / "x", privacy={"noise_multiplier": 1.0}
        )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_does_not_switch_clipping_off(bad: float):
    """A norm of not-a-number once meant a scale of 1: everything else left unclipped."""
    answer = ClassMeans(row(bad, 300.0, 400.0), torch.tensor([1]))
    clipped = privatize(Privacy(clip=1.0, noise_multiplier=0.0), client(), EmptyPayload(), answer)
    assert clipped.means.tolist() == [[0.0, pytest.approx(0.6), pytest.approx(0.8)]]


def test_a_change_too_long_to_measure_is_no_change():
    got, sent = (
        Weights({"a": torch.tensor([7.0])}),
        Weights({"a": torch.tensor([1e308], dtype=torch.float64)}),
    )
    assert privatize(Privacy(1.0), client(), got, sent).tensors["a"].tolist() == [7.0]


def test_hidden_classes_leave_a_row_for_every_class_and_equal_counts():
    me = client()
    answer = Prototypes(torch.ones(2, 3, dtype=torch.float64), torch.tensor([2, 0]), torch.tensor([1, 5]))
    hidden = privatize(Privacy(100.0, 1e-9, hide_classes=True), me, EmptyPayload(), answer)
    assert hidden.labels.tolist() == [0, 1, 2]
    assert hidden.means.round(decimals=3).tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    assert hidden.counts.tolist() == [me.info.samples // 3] * 3
    check_payload(hidden, Prototypes, me.task, me.info)


def test_two_clients_of_different_classes_say_the_same_but_for_noise():
    private = Privacy(1.0, 1.0, hide_classes=True)
    first_client, second_client = (
        privatize(
            private, client(), EmptyPayload(), ClassMeans(torch.zeros(len(labels), 3), torch.tensor(labels))
        )
        for labels in ([0], [1, 2])
    )
    assert torch.equal(first_client.labels, second_client.labels)
    assert torch.equal(first_client.means, second_client.means)  # the same stream: nothing but noise


def test_counts_that_cannot_be_hidden_are_refused():
    me = client()
    me.info = replace(me.info, samples=2)
    answer = Prototypes(torch.ones(1, 3), torch.tensor([0]), torch.tensor([2]))
    with pytest.raises(PotluckError, match="privacy.hide_classes needs at least 3 training samples"):
        privatize(Privacy(1.0, 1.0, hide_classes=True), me, EmptyPayload(), answer)


def test_counts_can_be_hidden_by_as_many_samples_as_they_need():
    """One sample for each of three classes is enough for counts of at least one; counts from zero need none."""
    private, me = Privacy(1.0, 1.0, hide_classes=True), client()
    me.info = replace(me.info, samples=3)
    means = Prototypes(torch.ones(1, 3), torch.tensor([0]), torch.tensor([3]))
    assert privatize(private, me, EmptyPayload(), means).counts.tolist() == [1, 1, 1]
    me.info = replace(me.info, samples=2)
    head = HeadAndCounts({"weight": torch.ones(3, 3)}, torch.tensor([2, 0, 0]))
    assert privatize(private, me, EmptyPayload(), head).counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("method", ["fedgh", "fedproto", "fd", "heterofl", "fedgen", "fedl2g-l"])
def test_methods_work_with_hidden_classes(method: str, tmp_path: Any):
    pytest.importorskip("opacus")
    run = potluck.run(
        method, data="digits", clients=3, rounds=2, engine="serial", out=tmp_path / "run",
        privacy={"clip": 1.0, "noise_multiplier": 0.1, "hide_classes": True},
        **{"data.limit": 240, "partition.rule": "pathological:3"},
    )  # fmt: skip
    assert run.summary["failures"] == 0
    assert run.summary["final_accuracy"] is not None


@pytest.mark.parametrize("protocol", ["local", "received"])
def test_without_scores_no_private_row_counts_are_sent(protocol: str, tmp_path: Any):
    run = potluck.run(
        "fedproto", federation=tiny(3), rounds=2, engine="serial", out=tmp_path / "run",
        privacy={"scores": False}, **{"evaluate.protocol": protocol},
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert [row["train_loss"] for row in rows] == [None, None]
    assert [row["accuracy"] for row in rows] == [None, None]
    assert [row["participants"] for row in rows] == [[0, 1, 2], [0, 1, 2]]
    assert all(row["notes"] == row["client_notes"] == {} for row in rows)
    assert (tmp_path / "run/clients.jsonl").read_text() == ""
    assert run.summary["client_accuracy"] == [None, None, None]


def test_settings_that_could_not_hide_anything_are_refused(tmp_path: Any):
    with pytest.raises(PotluckError, match=r"privacy.hide_classes = True has no effect: without noise"):
        potluck.run("fedgh", federation=tiny(2), rounds=1, out=tmp_path / "x",
                    privacy={"clip": 1.0, "hide_classes": True})  # fmt: skip
    with pytest.raises(PotluckError, match=r"FedAvg sends neither class ids nor counts"):
        potluck.run("fedavg", federation=tiny(2), rounds=1, out=tmp_path / "x",
                    privacy={"clip": 1.0, "noise_multiplier": 1.0, "hide_classes": True})  # fmt: skip
    with pytest.raises(
        PotluckError, match=r"evaluate.newcomers = 0.5 has no effect: privacy.scores is false"
    ):
        potluck.run("fedgh", federation=tiny(2), rounds=1, out=tmp_path / "x",
                    privacy={"scores": False}, evaluate={"newcomers": 0.5})  # fmt: skip
