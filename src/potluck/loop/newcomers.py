"""Newcomers: clients kept out of training that join when it is over, to measure the federation's worth to one more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from potluck.core.errors import PotluckError
from potluck.core.random import add_up, generator
from potluck.core.task import ClientInfo, Task
from potluck.loop.dispatch import Dispatcher
from potluck.loop.schedule import Evaluation
from potluck.loop.server import Server
from potluck.wire.score import Score


@dataclass(frozen=True)
class Newcomer:
    """A newcomer's score after its first training with the server's message, and after as much training alone."""

    client: ClientInfo
    score: Score
    alone: Score


def draw_newcomers(evaluation: Evaluation, task: Task) -> dict[int, ClientInfo]:
    """Draw newcomers, by client index: a share of the clients with training samples."""
    eligible = [info for info in task.clients if info.samples > 0]
    if not evaluation.newcomers:
        return {}
    count = max(1, int(evaluation.newcomers * len(eligible) + 1e-9))
    if count >= len(eligible):
        raise PotluckError(
            f"evaluate.newcomers = {evaluation.newcomers:g} keeps {count} of {len(eligible)} clients out of training "
            "and leaves no client to train; use more clients or a smaller share."
        )
    order = torch.randperm(len(eligible), generator=generator(task.seed, "newcomers"))
    chosen = [eligible[position] for position in order[:count].tolist()]
    return {info.index: info for info in sorted(chosen, key=lambda info: info.index)}


def hide_samples(task: Task, newcomers: dict[int, ClientInfo]) -> Task:
    """Return the task of the training: newcomers have no samples in it."""
    if not newcomers:
        return task
    clients = [
        replace(info, samples=0, validation=0) if info.index in newcomers else info for info in task.clients
    ]
    return replace(task, clients=tuple(clients))


def evaluate_newcomers(
    newcomers: dict[int, ClientInfo], server: Server, dispatcher: Dispatcher, evaluation: Evaluation
) -> list[Newcomer]:
    """Send each newcomer the message of the last state, and evaluate it after one training with it and one alone."""
    context, epochs, evaluated = server.context(), evaluation.newcomer_epochs or 0, list[Newcomer]()
    jobs = (
        dispatcher.submit("join", info.index, context, server.message(info, context), epochs=epochs)
        for info in newcomers.values()
    )
    for job, answer in dispatcher.exchange(jobs):
        if answer is not None and {"own", "alone"} <= answer.scores.keys():
            evaluated.append(Newcomer(newcomers[job.client], answer.scores["own"], answer.scores["alone"]))
    return evaluated


def means(newcomers: Sequence[Newcomer]) -> dict[str, float]:
    """Mean accuracy with the federation and alone, and what the difference is."""
    together = add_up(newcomer.score.accuracy for newcomer in newcomers) / len(newcomers)
    alone = add_up(newcomer.alone.accuracy for newcomer in newcomers) / len(newcomers)
    return {"accuracy": together, "alone": alone, "gain": together - alone}
