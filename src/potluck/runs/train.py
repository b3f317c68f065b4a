"""Second and third part of a run: open its folder, then train, writing everything down as it goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.core.random import one_thread
from potluck.federation.clock import make_clock
from potluck.federation.flops import flops_per_round
from potluck.loop.callbacks import Callback
from potluck.loop.faults import FaultyEngine
from potluck.loop.jobs import Engine
from potluck.loop.loop import Loop
from potluck.loop.worker import Worker
from potluck.runs import folder
from potluck.runs.answers import KeepAnswers
from potluck.runs.attack_ledger import AttackLedger
from potluck.runs.checkpointer import Checkpointer
from potluck.runs.engine import blueprint, decide_engine, make_engine
from potluck.runs.folder import locked
from potluck.runs.privacy_ledger import PrivacyLedger
from potluck.runs.read import read_run
from potluck.runs.resolve import Resolved
from potluck.runs.run import Run
from potluck.runs.writer import Heartbeat, RunWriter, provenance


@dataclass(frozen=True)
class Opened:
    """A run with its folder, which no other process writes to; `finished` where there is nothing left to do."""

    resolved: Resolved
    path: Path
    finished: bool = False


@contextmanager
def open_run(resolved: Resolved, out: Path | None, *, resume: bool) -> Iterator[Opened]:
    """Choose and lock the run's folder, and write the experiment into it, or see that it holds this very one."""
    with ExitStack() as held:
        path = held.enter_context(folder.chosen_folder(out, resolved.label))
        resolved = decide_engine(resolved, path / folder.EXPERIMENT)
        held.enter_context(locked(path))
        there = folder.open_folder(path, resolved.experiment.to_toml(), resume=resume)
        yield Opened(resolved, path, finished=there and (path / folder.SUMMARY).exists())


def run_resolved(
    resolved: Resolved,
    *,
    out: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    trackers: Sequence[Any] = (),
    command: str = "",
    engine: Engine | None = None,
) -> Run:
    """Open and train; `engine` is one that is at work already."""
    with open_run(resolved, out, resume=resume) as opened:
        if not opened.finished:
            path = opened.path
            train(opened, [*callbacks], [tracker(path, path.name) for tracker in trackers], command, engine)
    return read_run(opened.path, was_finished=opened.finished)


def train(
    opened: Opened,
    callbacks: Sequence[Callback],
    trackers: Sequence[Any],
    command: str,
    engine: Engine | None,
) -> None:
    """The loop with everything that watches it, from the start or from the folder's last checkpoint."""
    experiment, federation = opened.resolved.experiment, opened.resolved.federation
    method, settings = opened.resolved.method, experiment.engine
    writer = RunWriter(opened.path, facts(opened.resolved, command))
    absent, attackers = opened.resolved.absent, opened.resolved.attackers
    privacy = experiment.privacy if experiment.uses("privacy") else None
    # Both look at every client: left for the end, when everybody is tested.
    writer.late_facts.append(lambda: {"class_counts": federation.class_counts()})
    writer.late_facts.append(lambda: flops_per_round(method, federation, absent))
    with ExitStack() as held:
        keeper = held.enter_context(Checkpointer(writer, federation, every=settings.checkpoint_every))
        held.enter_context(one_thread())
        worker = Worker(method, federation.client, keeper.client_state, privacy, attackers)
        plan = blueprint(opened.resolved, None if keeper.saved is None else keeper.saved.client)
        engine = engine or make_engine(settings, worker, federation, opened.path / folder.WORK, plan)
        held.callback(engine.close)
        if experiment.uses("faults"):
            engine = FaultyEngine(engine, experiment.faults, experiment.seed)
        for tracker in trackers:
            held.enter_context(tracker)
        ledgers: list[Callback] = [KeepAnswers(opened.path)] if settings.keep_answers else []
        if privacy:
            ledgers.append(PrivacyLedger(privacy, writer.facts))
        if attackers is not None:
            ledgers.append(AttackLedger(attackers, experiment.evaluate.protocol, writer.facts))
        on_clock = bool(federation.devices or experiment.faults.slow)
        loop = Loop(
            method,
            federation.task,
            engine,
            experiment.schedule,
            experiment.evaluate,
            [*ledgers, writer, Heartbeat(opened.path), *trackers, *callbacks, keeper],
            clock=make_clock(experiment, method, federation) if on_clock else None,
            shared_test=federation.shared_test,
            attackers=attackers,
        )
        if opened.resolved.state is not None:
            loop.server.begin_with(opened.resolved.state)
        keeper.restore(loop)
        loop.run()


def facts(resolved: Resolved, command: str) -> dict[str, Any]:
    """What a reader of the summary must know of the experiment."""
    experiment, federation = resolved.experiment, resolved.federation
    return {
        "method": experiment.method.name,
        "dataset": federation.label,
        "clients": len(federation.members),
        "rounds": experiment.schedule.rounds,
        "seed": experiment.seed,
        "engine": "vectorized" if experiment.engine.vectorize == "on" else experiment.engine.name,
        "protocol": experiment.evaluate.protocol,
        "selected_by": experiment.evaluate.select,
        "partition": experiment.partition.rule,
        "models": list(federation.task.architectures),
        "command": command,
        "made": provenance(),
    }
