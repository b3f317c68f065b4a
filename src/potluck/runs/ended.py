"""A run brought back from its last checkpoint: its clients, and what each of them predicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Predictor
from potluck.core.model import norms_at_rest
from potluck.core.random import seeded
from potluck.core.samples import prepare
from potluck.engines.serial import SerialEngine
from potluck.experiment import parse_experiment, read_experiment
from potluck.loop.loop import Loop
from potluck.loop.worker import Worker
from potluck.runs import folder
from potluck.runs.checkpoint import last_checkpoint
from potluck.runs.fingerprint import fingerprint
from potluck.runs.resolve import Parts, Resolved, resolve


@dataclass(frozen=True)
class Ended:
    """A run as its last checkpoint left it."""

    resolved: Resolved
    loop: Loop
    worker: Worker

    def client(self, index: int) -> Client:
        """One of its clients, as training left it."""
        count = len(self.resolved.federation.members)
        if not 0 <= index < count:
            raise PotluckError(f"There is no client {index}; the run has clients 0 to {count - 1}.")
        if index in self.loop.newcomers:
            raise PotluckError(
                f"Client {index} was kept out of training (evaluate.newcomers); choose a client that took part."
            )
        return self.worker.client(index)

    def scores(self, index: int, x: Tensor) -> Tensor:
        """The class scores of that predictor for a batch of inputs."""
        predictor = self.predictor(index)
        with torch.no_grad(), norms_at_rest(*([self.client(index).model] if len(x) == 1 else [])):
            return predictor(prepare(x, torch.zeros(len(x)), self.resolved.federation.task)[0])

    def predictor(self, index: int) -> Predictor:
        """What the last evaluation tested of a client, made the same way."""
        me, server = self.client(index), self.loop.server
        context, message = server.context(), None
        if self.loop.evaluation.protocol != "local":
            message = server.message(me.info, context)
        number = self.loop.progress.numbers.get(index, 0)
        with seeded(me.task.seed, "torch", me.info.name, "evaluate", number):
            me.begin("evaluate", number, context.round, context.rounds)
            me.model.eval()
            return self.resolved.method.predict(me, message)


def bring_back(run: Path, parts: Parts = Parts()) -> Ended:
    """Rebuild a run from its own file and its last checkpoint; parts that were objects are given again."""
    experiment = parse_experiment(read_experiment(run / folder.EXPERIMENT))
    others = tuple(
        name for name in experiment.objects or () if name != "state"
    )  # the checkpoint has a newer one
    experiment = experiment.changed({"objects": others or None})
    resolved = resolve(experiment, parts)
    checkpoint = last_checkpoint(run)
    if checkpoint is None:
        raise PotluckError(
            f"{str(run)!r} has no checkpoint, so its clients' models are gone; "
            "repeat the run with --checkpoint-every 1."
        )
    federation = resolved.federation.laid_out(experiment.engine.channels_last)
    checkpoint.check_population(fingerprint(federation))
    worker = Worker(resolved.method, federation.client, checkpoint.client)
    loop = Loop(
        resolved.method,
        federation.task,
        SerialEngine(worker),
        resolved.experiment.schedule,
        resolved.experiment.evaluate,
        shared_test=federation.shared_test,
    )
    checkpoint.restore(loop)
    return Ended(replace(resolved, federation=federation), loop, worker)
