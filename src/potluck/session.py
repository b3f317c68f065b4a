"""From an experiment to a finished run: the few lines behind `potluck run` and `potluck.run(...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from potluck.assembly import check_evaluation, make_engine, make_evaluation, make_schedule, working
from potluck.core.callback import Callback
from potluck.core.errors import PotluckError
from potluck.core.job import Engine
from potluck.core.loop import Loop
from potluck.core.method import Method
from potluck.core.needs import check_needs
from potluck.core.threads import one_thread
from potluck.data import Data, Partition, as_data
from potluck.experiment import Experiment, parse_experiment, put, read_experiment
from potluck.federation import Federation
from potluck.flops import flops_by_architecture
from potluck.population import ModelSource, build_federation, experiment_data
from potluck.privacy import PrivacyLedger, check_privacy
from potluck.runs import folder
from potluck.runs.checkpointer import Checkpointer
from potluck.runs.lock import locked
from potluck.runs.rebuildable import Rebuildable
from potluck.runs.writer import RunWriter
from potluck.settle import settle_engine, settle_models
from potluck.trackers import find_trackers
from potluck.trackers.base import Tracker


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, and what stands in it."""

    path: Path
    summary: dict[str, Any]
    was_finished: bool = False

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """One object per server step."""
        return folder.read_lines(self.path / folder.ROUNDS)

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One object per client and evaluation."""
        return folder.read_lines(self.path / folder.CLIENTS)

    def __repr__(self) -> str:
        accuracy = self.summary["final_accuracy"]
        text = "untested" if accuracy is None else f"{accuracy:.1%}"
        return f"Run({self.summary['method']} on {self.summary['dataset']}: {text}, {str(self.path)!r})"


def run(
    what: str | Method[Any, Any, Any] | Experiment | Mapping[str, Any] = "fedgh",
    /,
    *,
    data: str | Data | Mapping[str, Any] | Any | None = None,
    partition: str | Partition | Mapping[str, Any] | None = None,
    models: str | Sequence[ModelSource] | Mapping[str, Any] | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    participation: float | None = None,
    seed: int | None = None,
    engine: str | Mapping[str, Any] | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    federation: Federation | None = None,
    callbacks: Sequence[Callback] = (),
    track: str | Sequence[str] = (),
    **sections: Any,
) -> Run:
    """Run a method, an experiment file or an experiment, and return the finished run.

    `what` is a method's name, a method object, an experiment file or an experiment. Every other setting is reached by
    its section: `method={"server_lr": 0.1}`, `training={"lr": 0.1}`, `engine={"name": "serial", "device": "cuda"}`.
    `data` may be tensors `(x, y)` or a torch data set, `models` a list of modules or factories, `federation` a
    population of your own (see `potluck.federate`).
    """
    if "method" in sections and not isinstance(sections["method"], Mapping):
        what = sections.pop("method")
    values, instance = _start(what)
    if isinstance(data, Mapping):
        sections["data"], data = data, None
    if isinstance(partition, Mapping):
        sections["partition"], partition = partition, None
    if isinstance(models, Mapping):
        sections["models"], models = models, None
    if isinstance(engine, Mapping):
        sections["engine"], engine = engine, None
    own_data = None if data is None or isinstance(data, str) else as_data(data)
    own_models = None if models is None or isinstance(models, str) else list(models)
    if own_models is not None and all(isinstance(model, str) for model in own_models):
        models, own_models = ",".join(str(model) for model in own_models), None
    for name, section in sections.items():
        if not isinstance(section, Mapping):
            values[name] = section  # which the experiment refuses, unless it is a field of its own
            continue
        for key, value in section.items():
            put(values, (name, key), value)
    settings = {
        "data.name": data if isinstance(data, str) else (own_data.name if own_data else None),
        "partition.rule": None if partition is None else str(partition),
        "partition.clients": clients,
        "models.names": models.split(",") if isinstance(models, str) else _labels(own_models),
        "schedule.rounds": rounds,
        "schedule.participation": participation,
        "engine.name": engine,
        "engine.workers": workers,
        "engine.checkpoint_every": checkpoint_every,
    }
    for key, value in settings.items():
        if value is not None:
            put(values, key.split("."), value)
    if seed is not None:
        values["seed"] = seed
    experiment = parse_experiment(values)
    return execute(
        experiment,
        method=instance,
        federation=federation,
        data=own_data,
        models=own_models,
        out=None if out is None else Path(out),
        resume=resume,
        callbacks=callbacks,
        track=[track] if isinstance(track, str) else track,
    )


def _start(method: Any) -> tuple[dict[str, Any], Method[Any, Any, Any] | None]:
    if isinstance(method, Experiment):
        return method.model_dump(exclude_none=True), None
    if isinstance(method, Mapping):
        return dict(method), None
    if isinstance(method, Method):
        name = (
            method.name if _is_built_in(method) else f"{type(method).__module__}:{type(method).__qualname__}"
        )
        return {"method": {"name": name}}, method
    if str(method).endswith(".toml"):
        return read_experiment(Path(method)), None
    return {"method": {"name": str(method)}}, None


def _is_built_in(method: Method[Any, Any, Any]) -> bool:
    return type(method).__module__.startswith("potluck.methods.")


def _labels(models: Sequence[Any] | None) -> list[str] | None:
    if models is None:
        return None
    return [
        model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)
        for model in models
    ]


def execute(
    experiment: Experiment,
    *,
    method: Method[Any, Any, Any] | None = None,
    federation: Federation | None = None,
    data: Data | None = None,
    models: Sequence[ModelSource] | None = None,
    out: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    track: Sequence[str] = (),
    command: str = "",
    engine: Engine | None = None,
) -> Run:
    """Check everything, then train, writing the run down as it goes; `engine` is one that is at work already."""
    if experiment.engine.simulation and engine is None:
        from potluck.deploy.simulation import check_simulation

        check_simulation(experiment)
    if experiment.engine.name == "flower" and engine is None:
        if method is not None or federation is not None or data is not None or models is not None:
            raise PotluckError(
                "engine.name = 'flower' works with names, not with Python objects: nodes are other processes; "
                "write the method as module:Class, or bring data and models with potluck node init."
            )
        if track:
            raise PotluckError("--track works on the serial and pool engines; a Flower run has its folder.")
        return _elsewhere(experiment, out, resume, callbacks, command)
    wanted = find_trackers(track)
    if engine is None:
        experiment = experiment.with_objects(federation=federation, data=data, models=models)
    method = method or experiment.build_method()
    experiment = experiment.with_method(method, experiment.method.name)
    if federation is None:
        data = data or experiment_data(experiment)
        experiment = settle_models(experiment, method, data)
        federation = build_federation(experiment, method, data=data, models=models)
    check_needs(method, federation.task)
    check_evaluation(experiment, federation)
    check_privacy(experiment.privacy)
    label = f"{experiment.method.name.split(':')[-1].lower()}-{federation.label}-seed{experiment.seed}"
    with ExitStack() as held:
        path = held.enter_context(folder.chosen_folder(out, label))
        experiment = settle_engine(experiment, federation, path)
        federation = replace(federation, channels_last=frozenset(experiment.engine.channels_last))
        held.enter_context(locked(path))
        there = folder.open_folder(path, experiment.to_toml(), resume=resume)
        if there and (path / folder.SUMMARY).exists():
            return Run(path, folder.read_summary(path), was_finished=True)
        trackers = [tracker(path, path.name) for tracker in wanted]
        summary = _train(experiment, method, federation, path, trackers, callbacks, command, engine)
    return Run(path, summary)


def _train(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    federation: Federation,
    path: Path,
    trackers: Sequence[Tracker],
    callbacks: Sequence[Callback],
    command: str,
    engine: Engine | None,
) -> dict[str, Any]:
    """The loop with everything that watches it, from the start or from the folder's last checkpoint; the summary."""
    settings = experiment.engine
    told = {**facts(experiment, federation, command), **computing(method, federation)}
    writer = RunWriter(path, told, federation.class_counts())
    checks = [Rebuildable()] if settings.checkpoint_every else []
    ledger = [PrivacyLedger(experiment.privacy, writer.facts)] if experiment.privacy.clip else []
    stacked = settings.vectorize == "on"
    with (
        ExitStack() as watching,
        Checkpointer(writer, federation, every=settings.checkpoint_every, settle=stacked) as keeper,
        one_thread(),
        working(
            make_engine(
                experiment, method, federation, keeper.client_state, engine, work_folder=path / folder.WORK
            )
        ) as working_engine,
    ):
        for tracker in trackers:
            watching.enter_context(tracker)
        loop = Loop(
            method,
            federation.task,
            working_engine,
            make_schedule(experiment, method, federation),
            make_evaluation(experiment, federation),
            [*ledger, writer, *trackers, *callbacks, *checks, keeper],
        )
        keeper.restore(loop)
        loop.run()
    return writer.summary


def _elsewhere(
    experiment: Experiment, out: Path | None, resume: bool, callbacks: Sequence[Callback], command: str
) -> Run:
    """A run whose loop is in a Flower server's process; its folder is on this machine."""
    from potluck.deploy.submit import run_on_flower

    if experiment.engine.ca:  # the run's file has to hold from whichever folder it is resumed
        settings = experiment.engine.model_copy(update={"ca": str(Path(experiment.engine.ca).resolve())})
        experiment = experiment.model_copy(update={"engine": settings})
    what = "own-nodes" if experiment.engine.nodes else experiment.data.name
    name = experiment.method.name.split(":")[-1].lower()
    with folder.chosen_folder(out, f"{name}-{what}-seed{experiment.seed}") as path:
        was_finished = resume and (path / folder.SUMMARY).exists()
        if not was_finished:
            run_on_flower(experiment, path, resume=resume, command=command, callbacks=callbacks)
    return Run(path, folder.read_summary(path), was_finished=was_finished)


def facts(experiment: Experiment, federation: Federation, command: str) -> dict[str, Any]:
    """What a reader of the summary must know of the experiment."""
    return {
        "method": experiment.method.name,
        "dataset": federation.label,
        "clients": len(federation.participants),
        "rounds": experiment.schedule.rounds,
        "seed": experiment.seed,
        "engine": "vectorized" if experiment.engine.vectorize == "on" else experiment.engine.name,
        "protocol": experiment.evaluate.protocol,
        "partition": experiment.partition.rule,
        "models": list(federation.task.architectures),
        "command": command,
    }


def computing(method: Method[Any, Any, Any], federation: Federation) -> dict[str, float]:
    """Floating-point operations of a client's round, mean over clients: forward and backward of all its samples.

    Models that stay on machines of their own are not counted.
    """
    if any(architecture.build is None for architecture in federation.task.architectures.values()):
        return {}
    flops = flops_by_architecture(federation.task, federation.example())
    work = [
        flops[info.architecture] * method.workload(info.samples, federation.training)
        for info in federation.task.clients
    ]
    return {"flops_per_client_round": sum(work) / len(work)}
