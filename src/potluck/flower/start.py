"""The start of a run on Flower: nodes become its clients, once; when it goes on, the same ones are found again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from potluck.core.method import Method
from potluck.experiment import Experiment
from potluck.flower.gather import gather, gather_again
from potluck.flower.node.assignment import Assignment
from potluck.flower.node.federation import server_federation
from potluck.flower.node.node import MEGABYTE
from potluck.flower.patient import PatientGrid
from potluck.flower.roll import Roll
from potluck.flower.roster import FirstWeights, Roster
from potluck.flower.terms import Dealt, Own
from potluck.loop.callbacks import Callback
from potluck.loop.loop import Loop
from potluck.runs.resolve import Resolved, resolve, resolve_around


@dataclass
class Start(Callback):
    """A run whose clients are found. As a callback it writes down who they are, when the run's folder is there."""

    roll: Roll
    resolved: Resolved
    out: Path
    weights: FirstWeights | None = None

    def on_start(self, loop: Loop) -> None:
        """Nodes with data of their own are known from here on; those of a dealt data set the experiment knows."""
        if self.weights is not None:
            Roster(self.roll.registrations, [one.why for one in self.roll.left_out.values()]).write(self.out)
            self.weights.write()


def start(
    grid: Grid | PatientGrid,
    experiment: Experiment,
    method: Method[Any, Any, Any],
    out: Path,
    *,
    resume: bool,
    **timing: Any,
) -> Start:
    """Find the clients, and bring everything together."""
    text = json.dumps(experiment.model_dump(mode="json", exclude_none=True))
    assignment = Assignment(text, "", str(out / "nodes"))
    limit = int(experiment.schedule.max_payload_mb * MEGABYTE)
    make = _with_own_data if experiment.engine.nodes else _with_dealt_data
    return make(Roll(grid, assignment, limit, **timing), experiment, method, out, resume)


def _with_dealt_data(
    roll: Roll, experiment: Experiment, method: Method[Any, Any, Any], out: Path, resume: bool
) -> Start:
    """All clients have to come once; after that the run goes on without those that are gone."""
    resolved = resolve(experiment)
    terms, wait = Dealt(resolved.federation.task), experiment.engine.wait
    roll.check = terms.check
    if resume:
        gather_again(roll, terms.people, wait, experiment.schedule.min_clients)
    else:
        gather(roll, len(terms.people), wait)
    return Start(roll, resolved, out)


def _with_own_data(
    roll: Roll, experiment: Experiment, method: Method[Any, Any, Any], out: Path, resume: bool
) -> Start:
    """More than half of the nodes are enough, where the others came and contradict them."""
    settings, schedule, terms = experiment.engine, experiment.schedule, Own(experiment, method)
    roll.check = terms.check
    known = Roster.read(out, roll.limit) if resume else None
    if known is not None:
        gather_again(roll, known.clients, settings.wait, schedule.min_clients)
    else:
        least = min(settings.nodes, max(settings.nodes // 2 + 1, schedule.min_clients))
        stop = schedule.on_failure == "stop"
        gather(roll, settings.nodes, settings.wait, least=least, stop=stop, misfits=terms.misfits)
    weights = FirstWeights(out, lambda client: roll.first_weights(client, settings.wait))
    federation = server_federation(experiment, method, roll.registrations, weights)
    return Start(roll, resolve_around(experiment, method, federation), out, weights)
