"""Running experiments: the few lines behind `potluck run` and `potluck.run(...)`, on whichever engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.data import Data, Partition, as_data, has_short_form
from potluck.experiment import SHORT_FORMS, Experiment, dotted, parse_experiment, put, read_experiment
from potluck.experiment.objects import chosen, fill
from potluck.federation.federation import Federation
from potluck.federation.population import ModelSource
from potluck.loop.callbacks import Callback
from potluck.loop.worker import give_back_memory
from potluck.runs import folder
from potluck.runs.read import read_run
from potluck.runs.resolve import Parts, resolve
from potluck.runs.run import Run
from potluck.runs.train import run_resolved


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
    state: Any = None,
    callbacks: Sequence[Callback] = (),
    track: str | Sequence[str] = (),
    **sections: Any,
) -> Run:
    """Run a method, an experiment file or an experiment, and return the finished run.

    `what` is a method's name, a method object, an experiment file or an experiment. Every other setting is reached by
    its section: `method={"server_lr": 0.1}`, `training={"lr": 0.1}`, `engine={"name": "serial", "device": "cuda"}`.
    `data` may be tensors `(x, y)` or a torch data set, `partition` a rule of your own, `models` a list of modules or
    factories, `federation` a population of your own (see `potluck.federate`), `state` the server's state to begin with
    (`step.state` of another run, say). What is an object says itself how it is:
    a setting that contradicts it, or that it leaves nothing to act on, is refused.
    """
    named = {name: value for name, value in locals().items() if name in SHORT_FORMS}
    if "method" in sections and not isinstance(sections["method"], Mapping):
        what = sections.pop("method")
    values, given, method = _start(what)
    parts = Parts(method, _own_data(data), _own_rule(partition), _own_models(models), federation, state)
    asked = _asked({**named, **sections}, parts)
    for name, value in asked.items():
        put(values, name.split("."), value)
    finished = execute(
        fill(parse_experiment(values), {**given, **asked}, parts.facts()),
        parts,
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
    out: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    track: Sequence[str] = (),
    command: str = "",
) -> Run:
    """Check everything, then train here, or have it done on a Flower server."""
    if experiment.engine.name == "flower" or experiment.engine.simulation:
        return _on_flower(experiment, parts, out, resume, callbacks, track, command)
    resolved = resolve(experiment, parts)
    trackers: Sequence[Any] = ()
    if track:
        from potluck.trackers import find_trackers

        trackers = find_trackers(track)
    try:
        return run_resolved(
            resolved, out=out, resume=resume, callbacks=callbacks, trackers=trackers, command=command
        )
    finally:
        del resolved  # clients, models and data: what is to be given back
        give_back_memory()


def _on_flower(
    experiment: Experiment,
    parts: Parts,
    out: Path | None,
    resume: bool,
    callbacks: Sequence[Callback],
    track: Sequence[str],
    command: str,
) -> Run:
    """A run whose loop is in a Flower server's process; its folder is on this machine."""
    from potluck.flower.deploy.simulation import check_simulation
    from potluck.flower.deploy.submit import run_on_flower

    if experiment.engine.simulation:
        check_simulation(experiment)
    if parts != Parts():
        raise PotluckError(
            "engine.name = 'flower' works with names, not with Python objects: nodes are other processes; "
            "write the method as module:Class, or bring data and models with potluck node init."
        )
    if track:
        raise PotluckError("--track works on the serial and pool engines; a Flower run has its folder.")
    if experiment.engine.ca:  # the run's file has to hold from whichever folder it is resumed
        experiment = experiment.changed({"engine.ca": str(Path(experiment.engine.ca).resolve())})
    what = "own-nodes" if experiment.engine.nodes else experiment.data.name
    name = experiment.method.name.split(":")[-1].lower()
    with folder.chosen_folder(out, f"{name}-{what}-seed{experiment.seed}") as path:
        was_finished = resume and (path / folder.SUMMARY).exists()
        if was_finished and read_run(path).summary.get("rounds") != experiment.schedule.rounds:
            raise PotluckError(
                f"The run in {str(path)!r} has ended, and its nodes with it, so schedule.rounds cannot change; "
                "choose another folder."
            )
        if not was_finished:
            run_on_flower(experiment, path, resume=resume, command=command, callbacks=callbacks)
    return read_run(path, was_finished=was_finished)


# -- Python objects as parts of an experiment -------------------------------------------------------------------

Start = tuple[dict[str, Any], dict[str, Any], Method[Any, Any, Any] | None]


def _start(what: Any) -> Start:
    """Nested values to begin with, those of them that somebody chose, and the method if it is an object."""
    if isinstance(what, Experiment):
        return what.model_dump(exclude_none=True), chosen(what), None
    if isinstance(what, Method):
        name = type(what).name
        if not type(what).__module__.startswith("potluck.methods."):
            name = f"{type(what).__module__}:{type(what).__qualname__}"
        return {"method": {"name": name}}, {}, what
    if isinstance(what, Mapping):
        return dict(what), dotted(what), None
    if str(what).endswith(".toml"):
        values = read_experiment(Path(what))
        return values, dotted(values), None
    return {"method": {"name": str(what)}}, {}, None


def _asked(arguments: Mapping[str, Any], parts: Parts) -> dict[str, Any]:
    """Settings by dotted names out of arguments: short forms, and sections as tables; objects are not among them."""
    asked: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            asked |= dotted({name: value})
        elif value is not None and name not in parts.given():
            asked[SHORT_FORMS.get(name, name)] = str(value) if isinstance(value, Partition) else value
    return asked


def _own_data(data: Any) -> Data | None:
    return None if data is None or isinstance(data, str | Mapping) else as_data(data)


def _own_rule(partition: Any) -> Partition | None:
    """A rule that no text can stand for."""
    return partition if isinstance(partition, Partition) and not has_short_form(partition) else None


def _own_models(models: Any) -> list[ModelSource] | None:
    if models is None or isinstance(models, str | Mapping) or all(isinstance(one, str) for one in models):
        return None
    return list(models)
