"""Export a node's own trained model after a run; nothing of it passes through the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.core.method import Method, Predictor
from potluck.core.random import seeded
from potluck.experiment import Experiment, parse_experiment
from potluck.federation.federation import Federation
from potluck.flower.node.config import NodeFile, read_node
from potluck.flower.node.federation import node_federation
from potluck.flower.node.journal import ASSIGNMENT, Journal
from potluck.runs.export import ModelSource, write_model
from potluck.runs.restore import used_predictor
from potluck.worker.safeguard import learn_weight


def export_node(path: Path, out: Path, *, run: str | None = None, onnx: bool = False) -> Path:
    """Export the model of a node file as it is after the node's last training job of a run (default: the latest run).

    The model is what the node would be tested with right after local training (evaluation protocol `local`).
    """
    file = read_node(path)
    folder = _run_folder(file, run)
    experiment = parse_experiment(parse_json(read_text(folder / ASSIGNMENT)))
    method, federation = experiment.build_method(), node_federation(experiment, file)
    journal = Journal(folder, file.keep)
    me = _trained_client(federation, experiment, journal)
    number = journal.version()
    predictor: Predictor = _local_predictor(method, me, experiment, number)
    facts: dict[str, Any] = {"client": file.name, "run": folder.name, "protocol": "local", "jobs": number}
    if experiment.safeguard:
        weight = learn_weight(experiment.safeguard, me, predictor)
        facts["federated_weight"] = weight
        predictor = used_predictor(me, predictor, weight)
    return write_model(ModelSource(experiment, method, federation, 0), predictor, out, facts, onnx=onnx)


def _run_folder(file: NodeFile, run: str | None) -> Path:
    """Return the state folder of a run in which this node has trained: the one named, or the latest."""
    state = file.state_folder()
    folders = {
        place.parent.name: place.parent
        for place in state.glob(f"*/{ASSIGNMENT}")
        if Journal(place.parent, file.keep).version()
    }
    if not folders:
        raise PotluckError(
            f"Node {file.name!r} has no trained model in {str(state)!r}; let it take part in a run first."
        )
    if run is None:
        return max(folders.values(), key=lambda folder: Journal(folder, file.keep).changed())
    chosen = [folder for name, folder in folders.items() if name.startswith(run)]
    if len(chosen) != 1:
        raise PotluckError(
            f"--run {run!r} names {len(chosen)} runs of node {file.name!r}; it trained in "
            f"{', '.join(sorted(folders))}."
        )
    return chosen[0]


def _trained_client(federation: Federation, experiment: Experiment, journal: Journal) -> Client:
    me, state = federation.client(0), journal.state()
    assert state is not None
    if experiment.safeguard:
        me.standalone = federation.client(0)
    me.restore(state)
    return me


def _local_predictor(
    method: Method[Any, Any, Any], me: Client, experiment: Experiment, number: int
) -> Predictor:
    rounds = experiment.schedule.rounds
    with seeded(me.task.seed, "torch", me.info.name, "evaluate", number):
        me.begin("evaluate", number, rounds, rounds)
        me.model.eval()
        return method.predict(me, None)
