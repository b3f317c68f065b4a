"""Join a finished or checkpointed run as a new client: train with its message and alone, and keep the better."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from potluck.core import tree
from potluck.core.client import Client
from potluck.core.errors import PotluckError, plain
from potluck.core.method import Predictor, payload_types
from potluck.core.payload import EmptyPayload, Payload
from potluck.core.random import one_thread, without_denormals
from potluck.core.schema import check_payload
from potluck.core.task import ClientInfo
from potluck.data import Data
from potluck.experiment import read_experiment
from potluck.federation.federation import Federation
from potluck.federation.newcomer import extended_task, newcomer_data, with_newcomer
from potluck.loop.server import Server
from potluck.runs.export import ModelSource, check_objects, write_model
from potluck.runs.folder import experiment_file, write_atomic
from potluck.runs.plan import Parts
from potluck.runs.restore import RestoredRun, restore_run, used_predictor
from potluck.runs.run import Run
from potluck.wire import encoded_size
from potluck.wire.jobs import Job
from potluck.wire.score import Comparison
from potluck.worker.safeguard import Mode, Safeguard, learn_weight, safeguarded_scores
from potluck.worker.worker import newcomer_training, train_job, train_with_message

JOINED = "join.json"
"""The file beside an exported model that says how it was chosen."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A new client of a run: what it received, both its models, and what it uses.

    `weight` is the federated model's share in what it uses, from 0 (its standalone model) to 1. Accuracies are of what
    is used, of the federated and of the standalone model; those on test samples are None where there are none.
    """

    name: str
    architecture: str
    round: int
    epochs: int
    train: int
    validation: int
    test: int
    message_bytes: int
    mode: Mode
    weight: float
    validation_gained: int
    validation_lost: int
    accuracy_validation: tuple[float, float, float]
    accuracy: tuple[float, float, float] | None
    path: Path

    def facts(self) -> dict[str, Any]:
        """Return the content of `join.json`."""
        return {name: value for name, value in asdict(self).items() if name != "path"}


def join_run(
    run: str | Path | Run,
    data: str | Data,
    model: str,
    *,
    name: str = "newcomer",
    epochs: int | None = None,
    split: str = "6:2:2",
    label: str | None = None,
    safeguard: Mode = "select",
    out: str | Path | None = None,
    onnx: bool = False,
) -> Joined:
    """Train a new client of a run with the message of the last checkpoint and alone, and export what it should use.

    `data` is a data source (`csv:rows.csv`, `folder:…`, `npz:…`) or `Data`; `model` one of the run's or of the zoo.
    Both models train `epochs` epochs (default: as many as a client of the run) on the same samples. As with a
    safeguard, validation samples decide: `select` keeps the standalone model unless the federated one is better by an
    exact test, `ensemble` mixes both. The run's folder is not changed, except for `RUN/join/NAME`.
    """
    parts = run.parts or Parts() if isinstance(run, Run) else Parts()
    path = run.path if isinstance(run, Run) else Path(run)
    _check_arguments(path, name, epochs, safeguard)
    check_objects(path, parts)
    with one_thread():
        restored = restore_run(path, parts)
        plan = restored.plan
        rows = newcomer_data(data, plan.federation, plan.experiment, label)
        larger, info = with_newcomer(
            plan.federation, plan.experiment, plan.method, rows, model=model, name=name, split=split
        )
        extended = replace(restored, plan=replace(plan, federation=larger))
        message, job = _message(restored, extended, info, epochs)
        me = _client(extended.plan.federation, info)
        federated = _train(extended, me, message, job)
        choice = Safeguard(safeguard)
        weight = learn_weight(choice, me, federated)
        place = Path(out) if out is not None else path / "join" / name
        source = ModelSource(plan.experiment, plan.method, larger, info.index)
        facts = {
            "client": info.name,
            "protocol": plan.experiment.evaluate.protocol,
            "federated_weight": weight,
        }
        write_model(source, used_predictor(me, federated, weight), place, facts, onnx=onnx)
        joined = _outcome(me, federated, weight, safeguard, job, encoded_size(message), place)
    write_atomic(place / JOINED, json.dumps(joined.facts(), indent=1) + "\n")
    return joined


def _check_arguments(run: Path, name: str, epochs: int | None, safeguard: str) -> None:
    if "nodes" in (read_experiment(experiment_file(run)).get("objects") or ()):
        raise PotluckError(
            f"The clients of {str(run)!r} are nodes with their own data; let the new one register as they did "
            "(potluck node start) and continue with potluck resume."
        )
    if not name or not all(letter.isalnum() or letter in "._-" for letter in name):
        raise PotluckError(f"--name {plain(name, 80)!r} is not valid; use letters, digits, '.', '_' and '-'.")
    if epochs is not None and epochs < 1:
        raise PotluckError(f"--epochs {epochs} is not valid; it must be at least 1.")
    if safeguard not in ("select", "ensemble"):
        raise PotluckError(f"--safeguard {plain(safeguard, 40)!r} is not valid; use select or ensemble.")


def _client(federation: Federation, info: ClientInfo) -> Client:
    me = federation.client(info.index)
    me.standalone = federation.client(info.index)
    return me


# -- message and training ---------------------------------------------------------------------------------------


def _message(
    restored: RestoredRun, extended: RestoredRun, info: ClientInfo, epochs: int | None
) -> tuple[Payload, Job]:
    """Return the message for the new client, or say why there is none that helps it."""
    method, loop = restored.plan.method, restored.loop
    down, method_name = payload_types(method)[0], type(method).__name__
    if down is EmptyPayload:
        raise PotluckError(
            f"{method_name} sends nothing, so a new client gains nothing by joining; train it alone."
        )
    architecture = extended.plan.federation.task.architectures[info.architecture]
    task = extended_task(loop.task, info, architecture)
    server = Server(method, task, loop.schedule, loop.progress)
    context, seen = server.context(), ", ".join(restored.plan.federation.task.architectures)
    nothing = (
        f"{method_name} has nothing for a new client with model {info.architecture!r}: what the run learned "
        f"belongs to its own models; choose one of {seen}."
    )
    try:
        message = server.message(info, context)
        check_payload(message, down, task, info)
        first = _message_of(server, Server(method, task, loop.schedule).initial_state(), info)
    except (LookupError, StopIteration):
        raise PotluckError(nothing) from None
    if tree.equal(tree.flatten(message), tree.flatten(first)):
        if info.architecture not in loop.task.architectures:
            raise PotluckError(nothing)
        raise PotluckError(
            f"The message of {method_name} to a new client is the one that the run began with, so it would learn "
            "nothing from it; train more rounds (potluck resume RUN --rounds N)."
        )
    epochs_in_all = epochs or loop.schedule.rounds * restored.plan.experiment.training.epochs
    return message, Job(
        0,
        "join",
        info.index,
        0,
        round=context.round,
        rounds=context.rounds,
        message=message,
        epochs=epochs_in_all,
    )


def _message_of(server: Server, state: Any, info: ClientInfo) -> Payload:
    """Return the message that another state would have given this client."""
    server.progress, present = replace(server.progress, state=state), server.progress
    try:
        return server.message(info, server.context())
    finally:
        server.progress = present


def _train(extended: RestoredRun, me: Client, message: Payload, job: Job) -> Predictor:
    """Train the federated and the standalone model, and return the federated predictor."""
    alone = me.standalone
    assert alone is not None
    me.training = alone.training = newcomer_training(me.training, job)
    sent = message.to(me.task.device)
    with without_denormals():
        federated = train_with_message(extended.plan.method, me, sent, job)
        train_job(alone, 0, job, alone.fit)
    alone.model.eval()
    return federated


def _outcome(
    me: Client, federated: Predictor, weight: float, mode: Mode, job: Job, size: int, path: Path
) -> Joined:
    samples = me.validation
    assert samples is not None
    tested = safeguarded_scores(me, federated, weight, samples)
    compared = tested.used.comparison
    assert isinstance(compared, Comparison)
    accuracy = None
    if len(me.test):
        last = safeguarded_scores(me, federated, weight, me.test)
        accuracy = (last.used.accuracy, last.federated.accuracy, last.alone.accuracy)
    return Joined(
        name=me.info.name,
        architecture=me.info.architecture,
        round=job.round,
        epochs=job.epochs,
        train=len(me.train),
        validation=len(samples),
        test=len(me.test),
        message_bytes=size,
        mode=mode,
        weight=weight,
        validation_gained=compared.federated_gained,
        validation_lost=compared.federated_lost,
        accuracy_validation=(tested.used.accuracy, tested.federated.accuracy, tested.alone.accuracy),
        accuracy=accuracy,
        path=path,
    )
