"""Run experiments: `potluck.run(...)`, and the call behind every command that trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.data import Data, Partition, as_data, has_short_form
from potluck.experiment import (
    SHORT_FORMS,
    Experiment,
    flat_settings,
    parse_experiment,
    put_setting,
    read_target,
)
from potluck.experiment.objects import changed_settings
from potluck.federation.federation import Federation
from potluck.federation.population import ModelSource, experiment_data
from potluck.loop.callbacks import Callback
from potluck.runs import folder
from potluck.runs.engine import recorded_engine
from potluck.runs.first_weights import with_first_weights
from potluck.runs.plan import Parts
from potluck.runs.read import read_run
from potluck.runs.resolve import choose_partition, resolve
from potluck.runs.run import Run
from potluck.runs.train import run_plan
from potluck.worker.memory import release_free_memory


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
    out: str | Path | None = None,
    resume: bool = False,
    federation: Federation | None = None,
    state: Any = None,
    callbacks: Sequence[Callback] = (),
    track: str | Sequence[str] = (),
    **sections: Any,
) -> Run:
    """Run a method, an experiment file or an experiment, and return the finished run.

    `what` is a method's name, a method object, an experiment file or an experiment. Every other setting is given by
    its section: `method={"server_lr": 0.1}`, `engine={"name": "serial", "device": "cuda"}`, or by the name of its flag:
    `lr=0.1`, `workers=2`, `checkpoint_every=5`.
    `data` may be tensors `(x, y)` or a torch data set, `partition` your own rule, `models` a list of modules or
    factories, `federation` your own population (see `potluck.federate`), `state` the initial state of the server
    (`step.state` of another run, for example). An object determines its settings: a setting that contradicts it, or
    that has no effect on it, is an error.
    """
    if "method" in sections and not isinstance(sections["method"], Mapping):
        what = sections.pop("method")
    kwargs = {"data": data, "partition": partition, "models": models, "engine": engine}
    kwargs |= {"clients": clients, "rounds": rounds, "participation": participation, "seed": seed, **sections}
    method = what if isinstance(what, Method) else None
    parts = Parts(method, _own_data(data), _own_rule(partition), _own_models(models), federation, state)
    values, requested = _nested_values(what)
    for name, value in _settings(kwargs, parts).items():
        put_setting(values, name.split("."), value)
        requested[name] = value
    finished = execute(
        parse_experiment(values),
        parts,
        asked=requested,
        out=None if out is None else Path(out),
        resume=resume,
        callbacks=callbacks,
        track=[track] if isinstance(track, str) else track,
    )
    return replace(finished, parts=parts)


def execute(
    experiment: Experiment,
    parts: Parts = Parts(),
    *,
    asked: Mapping[str, Any] | None = None,
    out: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    track: Sequence[str] = (),
    command: str = "",
) -> Run:
    """Resolve an experiment and train it, in this process or on a Flower server; `asked`: see `resolve`."""
    if experiment.engine.name == "flower" or experiment.engine.simulation:
        if parts != Parts():
            raise PotluckError(
                "engine.name = 'flower' works with names, not with Python objects: nodes are other processes; "
                "write the method as module:Class, or set up data and models with potluck node init."
            )
        if track:
            raise PotluckError("--track is not supported with engine.name = 'flower'; use serial or pool.")
        return _run_on_flower(experiment, out, callbacks, command, resume=resume)
    if resume and out is not None:
        parts = with_first_weights(out, parts)
    plan = resolve(experiment, parts, asked=asked, recorded=recorded_engine(out))
    trackers: Sequence[Any] = ()
    if track:
        from potluck.trackers import find_trackers

        trackers = find_trackers(track)
    try:
        return run_plan(plan, out=out, resume=resume, callbacks=callbacks, trackers=trackers, command=command)
    finally:
        del plan  # clients, models and data, before memory is returned
        release_free_memory()


def _run_on_flower(
    experiment: Experiment, out: Path | None, callbacks: Sequence[Callback], command: str, *, resume: bool
) -> Run:
    """Run the loop in the process of a Flower server; the run's folder is on this machine."""
    from potluck.flower.deploy.submit import check_simulation, run_on_flower

    if experiment.engine.simulation:
        check_simulation(experiment)
    if experiment.engine.ca:  # a relative path would be wrong when the run is resumed from another folder
        experiment = experiment.with_settings({"engine.ca": str(Path(experiment.engine.ca).resolve())})
    data = "own-nodes" if experiment.engine.nodes else experiment.data.name
    if not experiment.engine.nodes and (data.startswith("sites:") or experiment.data.groups):
        experiment = choose_partition(
            experiment, experiment_data(experiment)
        )  # a node is started for each client
    with folder.run_folder(out, folder.run_label(experiment, data)) as path:
        was_finished = resume and (path / folder.SUMMARY).exists()
        if was_finished and read_run(path).summary.get("rounds") != experiment.schedule.rounds:
            raise PotluckError(
                f"The run in {str(path)!r} and its nodes have ended, so schedule.rounds cannot change; "
                "choose another folder."
            )
        if not was_finished:
            run_on_flower(experiment, path, resume=resume, command=command, callbacks=callbacks)
    return read_run(path, was_finished=was_finished)


# -- arguments of `run` as settings and parts -----------------------------------------------------------------------


def _nested_values(what: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the nested values of an experiment, and those of them that the user gave, by dotted names."""
    if isinstance(what, Experiment):
        return what.model_dump(exclude_none=True), changed_settings(what)
    if isinstance(what, Method):
        name = type(what).name
        if not type(what).__module__.startswith("potluck.methods."):
            name = f"{type(what).__module__}:{type(what).__qualname__}"
        return {"method": {"name": name}}, {}
    values = dict(what) if isinstance(what, Mapping) else read_target(str(what))
    return values, {name: value for name, value in flat_settings(values).items() if name != "method.name"}


def _settings(arguments: Mapping[str, Any], parts: Parts) -> dict[str, Any]:
    """Return the settings among arguments by dotted names: flags' names, and sections as tables, without objects."""
    settings: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            settings |= flat_settings({name: value})
        elif value is not None and name not in parts.given():
            settings[SHORT_FORMS.get(name, name)] = str(value) if isinstance(value, Partition) else value
    return settings


def _own_data(data: Any) -> Data | None:
    return None if data is None or isinstance(data, str | Mapping) else as_data(data)


def _own_rule(partition: Any) -> Partition | None:
    """Return a rule that cannot be written as text."""
    return partition if isinstance(partition, Partition) and not has_short_form(partition) else None


def _own_models(models: Any) -> list[ModelSource] | None:
    if models is None or isinstance(models, str | Mapping) or all(isinstance(model, str) for model in models):
        return None
    return list(models)
