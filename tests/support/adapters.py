"""Small federations whose clients have adapters of unequal rank on one network, and answers with known products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from potluck.core.method import Method, Update
from potluck.core.payload import Tensors
from potluck.core.random import generator
from potluck.core.training import Training
from potluck.engines.pool.engine import PoolEngine
from potluck.federation.federation import Federation
from potluck.federation.members import Member, federate
from potluck.testing import conformance
from support.tiny import Recorder, make_loop, points, seeded_net

LAYER = "body.0"  # 4 inputs, 5 outputs


def ranked(ranks: tuple[int, ...] = (1, 2, 4), *, alpha: float | None = None, **more: Any) -> Federation:
    """Clients with one network and adapters of these ranks, and 4, 8, 12, … samples."""
    net = seeded_net(hidden=5)
    members = [
        Member(
            net,
            points(4 * (index + 1), 10 + index),
            points(6, 90 + index),
            validation=points(4, 50 + index),
            architecture=f"net#lora:{rank}",
        )
        for index, rank in enumerate(ranks)
    ]
    rules = ",".join(f"lora:{rank}" for rank in dict.fromkeys(reversed(ranks)))  # the order of architectures
    training = Training(train=rules, lora_alpha=alpha, epochs=1, batch_size=4, lr=0.1)
    return federate(members, training=training, num_classes=3, seed=0, **more)


def random_tensors(fed: Federation, index: int) -> Tensors:
    """What client `index` might send: its trained tensors, drawn at random."""
    architecture = fed.task.architectures[fed.task.clients[index].architecture]
    rng = generator("adapters", index)
    return {
        name: torch.randn(shape, generator=rng, dtype=torch.float64)
        for name, shape in architecture.shapes.items()
        if not name.endswith("lora_scaling")
    }


def updates(fed: Federation, payload: Any) -> list[Update[Any]]:
    """One update of each client, with `payload` made of its random tensors."""
    return [Update(info, payload(random_tensors(fed, info.index))) for info in fed.task.clients]


def change(fed: Federation, index: int, tensors: Tensors, layer: str = LAYER) -> Tensor:
    """scaling · B A of a client's tensors."""
    initial = fed.task.architectures[fed.task.clients[index].architecture].initial
    product: Tensor = tensors[f"{layer}.lora_b.weight"] @ tensors[f"{layer}.lora_a.weight"]
    return initial[f"{layer}.lora_scaling"] * product


def mean_change(fed: Federation, sent: list[Update[Any]], layer: str = LAYER) -> Tensor:
    """Σ n_k/n · scaling_k · B_k A_k, worked out term by term."""
    total = sum(update.client.samples for update in sent)
    return torch.stack(
        [
            update.client.samples / total * change(fed, update.client.index, update.payload.tensors, layer)
            for update in sent
        ]
    ).sum(0)


def check_with_adapters(method: Method[Any, Any, Any]) -> None:
    """The method contract on adapters of unequal rank, on both engines, and training that lowers the loss.

    Left out is the check for raw data in messages, which takes an adapter for the input layer for a batch of rows.
    """
    for check in (
        conformance.check_runs_and_repeats,
        conformance.check_payloads_are_copies,
        conformance.check_predict_leaves_the_client_alone,
        conformance.check_state_survives_saving,
        conformance.check_global_random_state,
    ):
        check(method, ranked)
    conformance.check_engine(method, ranked, lambda worker: PoolEngine(lambda: worker, workers=2))
    recorder = Recorder()
    make_loop(method, ranked(), rounds=8, callbacks=[recorder]).run()
    losses = [step.record.loss for step in recorder.steps]
    assert losses[-1] < losses[0]
    make_loop(method, ranked(), rounds=2, buffer=1, concurrency=2, mode="async").run()
