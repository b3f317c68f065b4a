"""Clients kept out of training, who join when it is over: what the federation is worth to one more client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Predictor
from potluck.core.payload import Payload
from potluck.core.random import generator, seeded
from potluck.core.task import ClientInfo, Task
from potluck.loop.dispatch import Dispatcher
from potluck.loop.jobs import Job, Test
from potluck.loop.schedule import Evaluation
from potluck.loop.score import Score
from potluck.loop.server import Server

Tested = Callable[[Client, Predictor], Score]
"""Tests a predictor on the client's own test samples."""


@dataclass(frozen=True)
class Newcomer:
    """How good a newcomer is after its first training with the server's message, and after as much of it alone."""

    client: ClientInfo
    score: Score
    alone: Score


def draw(evaluation: Evaluation, task: Task) -> dict[int, ClientInfo]:
    """The newcomers, by client index: a share of those who have training samples, drawn from the seed."""
    able = [info for info in task.clients if info.samples > 0]
    if not evaluation.newcomers:
        return {}
    count = max(1, int(evaluation.newcomers * len(able) + 1e-9))
    if count >= len(able):
        raise PotluckError(
            f"evaluate.newcomers = {evaluation.newcomers:g} keeps {count} of {len(able)} clients out of training and "
            "leaves nobody to train; use more clients or a smaller share."
        )
    order = torch.randperm(len(able), generator=generator(task.seed, "newcomers"))
    chosen = [able[position] for position in order[:count].tolist()]
    return {info.index: info for info in sorted(chosen, key=lambda info: info.index)}


def without(task: Task, newcomers: dict[int, ClientInfo]) -> Task:
    """The task as it stands during training: nobody knows of any sample of a newcomer."""
    clients = [
        replace(info, samples=0, validation=0) if info.index in newcomers else info for info in task.clients
    ]
    return replace(task, clients=tuple(clients)) if newcomers else task


def welcome(
    newcomers: dict[int, ClientInfo], server: Server, dispatcher: Dispatcher, evaluation: Evaluation
) -> list[Newcomer]:
    """Give each newcomer what the server would send it now, and see what it makes of it."""
    context, epochs, found = server.context(), evaluation.newcomer_epochs or 0, list[Newcomer]()
    jobs = (
        dispatcher.submit("join", info.index, context, server.message(info, context), epochs=epochs)
        for info in newcomers.values()
    )
    for job, answer in dispatcher.exchange(jobs):
        if answer is not None and {"own", "alone"} <= answer.scores.keys():
            found.append(Newcomer(newcomers[job.client], answer.scores["own"], answer.scores["alone"]))
    return found


# -- on the client ------------------------------------------------------------------------------------------


def join(
    method: Method[Any, Any, Any], me: Client, message: Payload | None, job: Job, test: Tested
) -> dict[Test, Score]:
    """Train with the message and alone, both from the client as it is, which it is again afterwards.

    Both train the job's epochs over the client's own samples, from the same random streams and at the learning rate
    of a first round. A method whose jobs are shorter than that (a few batches) does as many of them as make it up.
    """
    if not len(me.test):
        return {}
    before, training = me.state(), me.training
    me.training = replace(training, epochs=job.epochs or training.epochs, lr_decay=1.0)
    wanted = me.training.epochs * len(me.train)
    turns = max(1, round(wanted / max(1, method.workload(len(me.train), me.training))))
    try:
        for number in range(turns):
            _train(me, number, job, lambda: method.client(me, message))
        me.begin("evaluate", turns, job.round, job.rounds)
        me.model.eval()
        together = test(me, method.predict(me, None))
        me.restore(before)
        _train(me, 0, job, me.fit)
        return {"own": together, "alone": test(me, me.model.eval())}
    finally:
        me.training = training
        me.restore(before)
        me.rest()


def _train(me: Client, number: int, job: Job, train: Callable[[], object]) -> None:
    me.begin("train", number, job.round, job.rounds)
    with seeded(me.task.seed, "torch", me.info.name, "train", number):
        train()


def means(newcomers: Sequence[Newcomer]) -> dict[str, float]:
    """Mean accuracy with the federation and alone, and what the difference is."""
    together = sum(one.score.accuracy for one in newcomers) / len(newcomers)
    alone = sum(one.alone.accuracy for one in newcomers) / len(newcomers)
    return {"accuracy": together, "alone": alone, "gain": together - alone}
