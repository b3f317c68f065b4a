"""A run as other processes can build it again: what the pool's workers on accelerators are made from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from potluck.core.method import Method
from potluck.experiment import Experiment
from potluck.federation.population import build_federation
from potluck.loop import attack
from potluck.loop.cache import Saved
from potluck.loop.newcomers import draw
from potluck.loop.worker import Worker
from potluck.runs.resolve import Parts, Resolved


@dataclass(frozen=True)
class RunBlueprint:
    """The decided experiment, what was brought as objects, and where clients begin that a checkpoint holds."""

    experiment: Experiment
    method: Method[Any, Any, Any]
    parts: Parts
    saved: Saved | None = None

    def worker(self, device: str) -> Worker:
        """A worker whose clients live on this device; data are read and dealt again, with the same result."""
        experiment, parts = self.experiment.changed({"engine.device": device}), self.parts
        federation = build_federation(
            experiment, self.method, data=parts.data, models=parts.models, partition=parts.partition
        )
        federation = federation.laid_out(experiment.engine.channels_last)
        attackers = attack.draw(
            experiment.attack, federation.task, draw(experiment.evaluate, federation.task)
        )
        return Worker(self.method, federation.client, self.saved, experiment.privacy, attackers)


def blueprint(resolved: Resolved, saved: Saved | None = None) -> RunBlueprint | None:
    """The blueprint of a run; None where its population is an object, which is not built but there.

    The server's state stays with the server.
    """
    if resolved.experiment.objects and {"federation", "nodes"} & set(resolved.experiment.objects):
        return None
    parts = replace(resolved.parts, method=None, state=None)
    return RunBlueprint(resolved.experiment, resolved.method, parts, saved)
