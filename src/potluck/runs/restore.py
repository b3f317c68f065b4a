"""Restore a run from its last checkpoint: clients, predictions, and the state to continue from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Predictor
from potluck.core.model import batch_norm_in_eval_mode
from potluck.core.random import seeded
from potluck.core.samples import prepare
from potluck.engines.serial import SerialEngine
from potluck.experiment import Experiment, parse_experiment, read_experiment
from potluck.kit import Ensemble
from potluck.loop.loop import Loop
from potluck.runs import folder
from potluck.runs.checkpoint import last_checkpoint
from potluck.runs.digests import fingerprint
from potluck.runs.first_weights import with_first_weights
from potluck.runs.plan import Parts, RunPlan
from potluck.runs.resolve import resolve
from potluck.worker.safeguard import combine, learn_weight
from potluck.worker.worker import Worker


@dataclass(frozen=True)
class RestoredRun:
    """A run in the state of its last checkpoint."""

    plan: RunPlan
    loop: Loop
    worker: Worker
    removed: frozenset[int] = frozenset()
    """The clients whose models this copy of a run does not have any more."""

    def client(self, index: int) -> Client:
        """Return a client in its trained state."""
        count = len(self.plan.federation.members)
        if not 0 <= index < count:
            raise PotluckError(f"There is no client {index}; the run has clients 0 to {count - 1}.")
        if index in self.loop.absent:
            setting = "evaluate.newcomers" if index in self.loop.newcomers else "schedule.exclude"
            raise PotluckError(
                f"Client {index} was excluded from training ({setting}); choose a client that took part."
            )
        if index in self.removed:
            raise PotluckError(
                f"Client {index} was removed from this copy of the run; choose another client."
            )
        return self.worker.client(index)

    def scores(self, index: int, x: Tensor) -> Tensor:
        """Return a client's class scores for a batch of inputs, by the predictor of the last evaluation."""
        predictor = self.predictor(index)
        with torch.no_grad(), batch_norm_in_eval_mode(*([self.client(index).model] if len(x) == 1 else [])):
            return predictor(prepare(x, torch.zeros(len(x)), self.plan.federation.task)[0])

    def predictor(self, index: int) -> Predictor:
        """Build the predictor that the last evaluation tested of a client: with a safeguard, what it chose."""
        return used_predictor(
            self.client(index), self.federated_predictor(index), self.federated_weight(index)
        )

    def federated_predictor(self, index: int) -> Predictor:
        """Build the predictor of a client's federated model."""
        me, server = self.client(index), self.loop.server
        context, message = server.context(), None
        if self.loop.evaluation.protocol != "local":
            message = server.message(me.info, context)
        number = self.loop.progress.job_counts.get(index, 0)
        with seeded(me.task.seed, "torch", me.info.name, "evaluate", number):
            me.begin("evaluate", number, context.round, context.rounds)
            me.model.eval()
            return self.plan.method.predict(me, message)

    def federated_weight(self, index: int) -> float:
        """Return the share of a client's federated model in what it uses, from its validation samples."""
        safeguard, me = self.plan.experiment.safeguard, self.client(index)
        return learn_weight(safeguard, me, self.federated_predictor(index)) if safeguard else 1.0


def used_predictor(me: Client, federated: Predictor, weight: float) -> Predictor:
    """Return what a client uses: its federated model, its standalone model, or both mixed."""
    if weight == 1 or me.standalone is None:
        return federated
    alone = me.standalone.model.eval()
    if weight == 0:
        return alone
    if isinstance(federated, nn.Module):
        share = torch.tensor(weight, dtype=me.task.dtype, device=me.task.device)
        return Ensemble({"federated": federated, "alone": alone}, {"weight": share})
    return lambda x: combine(federated(x), alone(x), weight)


def restore_run(run: Path, parts: Parts = Parts()) -> RestoredRun:
    """Rebuild a run from its file and its last checkpoint; parts that were Python objects must be given again."""
    experiment = parse_experiment(read_experiment(folder.experiment_file(run)))
    object_names = tuple(
        name for name in experiment.objects or () if name != "state"
    )  # the checkpoint has a newer one
    experiment = experiment.with_settings({"objects": object_names or None})
    plan = resolve(experiment, with_first_weights(run, parts), measure=False)
    checkpoint = last_checkpoint(run)
    if checkpoint is None:
        raise _no_checkpoint(run, experiment)
    federation = plan.federation
    checkpoint.check_population(fingerprint(federation))
    safeguard = plan.experiment.safeguard or None
    worker = Worker(plan.method, federation.client, checkpoint.client, safeguard=safeguard)
    loop = Loop(
        plan.method,
        federation.task,
        SerialEngine(worker),
        plan.experiment.schedule,
        plan.experiment.evaluate,
        shared_test=federation.shared_test,
        newcomers=plan.newcomers,
    )
    checkpoint.restore(loop)
    return RestoredRun(plan, loop, worker, folder.removed_clients(run))


def _no_checkpoint(run: Path, experiment: Experiment) -> PotluckError:
    """Return the error for a run without checkpoint; a finished run that saved some has lost it since."""
    if experiment.engine.checkpoint_every and (run / folder.SUMMARY).exists():
        return PotluckError(
            f"{str(run)!r} has no checkpoint any more, and with it the clients' models are gone: potluck clean "
            f"--checkpoint removes it; train again: potluck run {folder.experiment_file(run)} --out FOLDER."
        )
    return PotluckError(
        f"{str(run)!r} has no checkpoint, so its clients' models were not saved; "
        "repeat the run with --checkpoint-every 1."
    )
