"""Operations of a method's jobs, against hand counts on networks of three linear layers.

A client's network is 4→5→3→3: forward 2·(20 + 15 + 9) = 88 operations per sample, 70 of them for the features. Backward it
needs the gradients of all weights (88) and of the inputs of the last two layers (48). The shared network is 4→2→3→3:
28 + 18 forward, 46 + 30 backward. A multiplication and its addition are two operations.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import potluck
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.payload import EmptyPayload
from potluck.core.training import Training
from potluck.federation.flops import JobFlops, MethodFlops
from potluck.methods.fedcgs import FedCGS
from potluck.methods.fedgh import FedGH
from potluck.methods.fedkd import FedKD
from potluck.methods.fedl2g import FedL2GFeatures
from potluck.methods.fml import FML
from potluck.methods.moon import Moon
from potluck.methods.pfedafm import PFedAFM
from potluck.methods.standalone import Standalone
from support.tiny import tiny, weights

OWN, SHARED = 88 + 88 + 48, 46 + 46 + 30


def flops(method: Method[Any, Any, Any], **population: Any) -> JobFlops:
    (cost,) = MethodFlops(method, tiny(2, hidden=(5,), **population), rounds=3).by_architecture.values()
    return cost


@pytest.mark.parametrize(
    ("method", "per_sample", "per_sample_epoch"),
    [
        (Standalone(), 0, OWN),
        (FedGH(), 70, OWN),  # features once more, for the class means
        (FML(), 0, OWN + SHARED),
        # Both networks, and a 3→3 map that is applied twice: forward and weights 4·18, its input once 18.
        (FedKD(), 0, OWN + SHARED + 5 * 18),
        (Moon(), 0, OWN + 2 * 70),  # features of the received and of the previous network
        # Small features without gradient (28); then the small network in front of the frozen head:
        # forward 28 + 18, backward 28 for weights, 18 through the head, 12 through the second layer.
        (PFedAFM(), 0, OWN + 28 + 28 + 18 + 28 + 18 + 12),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else None,
)
def test_job_flops_match_count_by_hand(
    method: Method[Any, Any, Any], per_sample: int, per_sample_epoch: int
) -> None:
    assert flops(method) == JobFlops(0, per_sample, per_sample_epoch)


def test_fedl2g_counts_guidance_and_the_derivative_along_a_direction() -> None:
    """Of 4 samples one is the quiz and 3 are studied; of 8 it is 7, of which the meta step takes a batch of 4.

    Meta step of b samples: a gradient step (224·b), the quiz sample's gradient (224), a product in forward mode: the
    values (88·b) and their derivatives (2·88·b: of each layer's weights and of its input, zeros at the first layer).
    """
    four, eight = 3 * OWN + (3 * OWN + OWN + 3 * 264), 7 * OWN + (4 * OWN + OWN + 4 * 264)
    counted = flops(FedL2GFeatures())
    assert counted.total(4, 1) == four
    assert counted.total(8, 1) == eight
    assert counted.total(8, 2) == eight + 7 * OWN


def test_a_single_pass_is_spread_over_the_jobs() -> None:
    """FedCGS computes in a client's first job alone: features (70) and the products of three features with each other
    (2·9 a sample), and in the first round a classifier of its own sums; a client has 12 samples."""
    fed = tiny(2, hidden=(5,))
    costs = MethodFlops(FedCGS(), fed, rounds=4)
    (cost,) = costs.by_architecture.values()
    assert cost.total(12, 5) == 0
    assert cost.first is not None
    assert (cost.first.per_sample, cost.first.per_sample_epoch) == (70 + 18, 0)
    expected = cost.first.per_job + 12 * 88
    assert costs.facts(jobs=4) == {"flops_per_client_round": expected / 4}
    assert costs.of(fed.task.clients[0]) == 0  # what the virtual clock goes by: any later job


def test_flops_grow_with_samples_and_epochs() -> None:
    assert JobFlops(5, 10, 100).total(samples=3, epochs=2) == 5 + 3 * (10 + 200)
    fed = tiny(2, hidden=(5,), sizes=(12, 20), training=Training(epochs=3, batch_size=4))
    costs = MethodFlops(FedGH(), fed, rounds=1)
    assert [costs.of(info) for info in fed.task.clients] == [12 * (70 + 3 * OWN), 20 * (70 + 3 * OWN)]
    assert costs.facts() == {"flops_per_client_round": 16 * (70 + 3 * OWN)}
    assert costs.facts(absent=[0]) == {"flops_per_client_round": 20 * (70 + 3 * OWN)}


def test_clients_with_fewer_samples_than_a_batch_are_counted() -> None:
    assert flops(FedGH(), sizes=(3,), training=Training(epochs=1, batch_size=64)) == JobFlops(0, 70, OWN)
    assert flops(FedGH(), sizes=(1,), training=Training(epochs=1, batch_size=0)) == JobFlops(0, 70, OWN)


def test_counting_changes_neither_clients_nor_random_numbers() -> None:
    fed = tiny(2)
    before, state = weights(fed.client(0)), torch.random.get_rng_state()
    MethodFlops(PFedAFM(), fed, rounds=2).facts()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(fed.client(0)).items())


class FailsOnFew(Standalone):
    """Needs more samples than the count uses."""

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        if len(me.train) < 12:
            raise ValueError("too few samples")
        return super().client(me, message)


def test_a_method_that_cannot_be_counted_has_no_flops_and_no_clock(caplog: pytest.LogCaptureFixture) -> None:
    costs = MethodFlops(FailsOnFew(), tiny(2), rounds=1)
    assert costs.facts() == {}
    assert "FailsOnFew cannot be counted on a few samples (ValueError: too few samples)" in caplog.text
    with pytest.raises(PotluckError, match="devices.fleet needs that count"):
        costs.of(tiny(2).task.clients[0])


def test_a_slower_method_has_a_later_virtual_clock(tmp_path: Any) -> None:
    """On one device of 1 MFLOP/s the second model of FML takes time that Standalone does not need."""
    (tmp_path / "slow.csv").write_text("kind,speed,down,up,latency\nslow,1e6,1e12,1e12,0\n")
    settings = {
        "clients": 2,
        "rounds": 1,
        "models": "small-mlp",
        "data": {"limit": 60},
        "training": {"epochs": 1},
    }
    runs = {
        name: potluck.run(
            name, **settings, devices={"fleet": str(tmp_path / "slow.csv")}, out=tmp_path / name
        )
        for name in ("standalone", "fml")
    }
    for run in runs.values():
        assert run.rounds[0]["virtual_seconds"] == pytest.approx(
            run.summary["flops_per_client_round"] / 1e6, rel=0.2
        )
    assert runs["fml"].rounds[0]["virtual_seconds"] > 1.5 * runs["standalone"].rounds[0]["virtual_seconds"]
