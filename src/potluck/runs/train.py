"""Train a resolved run: open its folder, then run the loop with everything that records it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.core.random import one_thread
from potluck.data.raw import TableInput
from potluck.federation.devices import make_clock
from potluck.federation.flops import MethodFlops
from potluck.loop.callbacks import Callback
from potluck.loop.faults import FaultyEngine
from potluck.loop.loop import Loop
from potluck.methods.standalone import Standalone
from potluck.runs import folder
from potluck.runs.accounting import AttackLedger, PrivacyLedger, SafeguardLedger
from potluck.runs.answers import KeepAnswers
from potluck.runs.checkpoint import last_checkpoint
from potluck.runs.checkpointer import Checkpointer
from potluck.runs.engine import build_engine
from potluck.runs.first_weights import save_first_weights
from potluck.runs.folder import lock_folder
from potluck.runs.plan import RunPlan
from potluck.runs.read import read_run
from potluck.runs.run import Run
from potluck.runs.writer import Heartbeat, RunWriter, provenance
from potluck.wire.jobs import Engine
from potluck.worker.worker import Worker


@dataclass(frozen=True)
class OpenRun:
    """A run and its folder, locked by this process; `finished`: nothing is left to do."""

    plan: RunPlan
    path: Path
    finished: bool = False


@contextmanager
def open_run(plan: RunPlan, out: Path | None, *, resume: bool) -> Iterator[OpenRun]:
    """Choose and lock the run's folder, and write the experiment to it, or check that it holds the same one."""
    with ExitStack() as stack:
        path = stack.enter_context(
            folder.run_folder(out, folder.run_label(plan.experiment, plan.federation.label))
        )
        stack.enter_context(lock_folder(path))
        text = plan.experiment.to_toml()
        if (path / folder.SUMMARY).exists() and folder.check_folder(path, text, resume=resume):
            last_checkpoint(
                path
            )  # a damaged one is an error while the finished run's results are still there
        existed = folder.open_folder(path, text, resume=resume)
        if plan.parts.models is not None or plan.parts.federation is not None:
            save_first_weights(path, plan.parts)
        yield OpenRun(plan, path, finished=existed and (path / folder.SUMMARY).exists())


def run_plan(
    plan: RunPlan,
    *,
    out: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    trackers: Sequence[Any] = (),
    command: str = "",
    engine: Engine | None = None,
) -> Run:
    """Open the run's folder and train; `engine` replaces the engine of the plan."""
    with open_run(plan, out, resume=resume) as opened:
        if not opened.finished:
            path = opened.path
            train(opened, [*callbacks], [tracker(path, path.name) for tracker in trackers], command, engine)
    return read_run(opened.path, was_finished=opened.finished)


def train(
    opened: OpenRun,
    callbacks: Sequence[Callback],
    trackers: Sequence[Any],
    command: str,
    engine: Engine | None,
) -> None:
    """Run the loop with its callbacks, from the start or from the folder's last checkpoint."""
    plan = opened.plan
    experiment, federation, method, attackers = plan.experiment, plan.federation, plan.method, plan.attackers
    settings = experiment.engine
    writer = RunWriter(opened.path, facts(plan, command))
    privacy = experiment.privacy if experiment.uses("privacy") else None
    safeguard = experiment.safeguard if experiment.uses("safeguard") else None
    # Both visit every client, so they wait for the end, when all clients are tested.
    writer.final_facts.append(lambda: {"class_counts": federation.class_counts()})
    alone = MethodFlops(Standalone(), federation, experiment.schedule.rounds) if safeguard else None
    flops = functools.cache(lambda: MethodFlops(method, federation, experiment.schedule.rounds, alone))
    jobs = experiment.schedule.rounds * experiment.schedule.participation  # of a client, on average
    writer.final_facts.append(lambda: flops().facts(plan.absent, jobs))
    with ExitStack() as stack:
        keeper = stack.enter_context(Checkpointer(writer, federation, every=settings.checkpoint_every))
        stack.enter_context(one_thread())
        worker = Worker(method, federation.client, keeper.client_state, privacy, attackers, safeguard)
        saved = None if keeper.saved is None else keeper.saved.client
        blueprint = plan.blueprint(saved) if settings.name == "pool" else None
        engine = engine or build_engine(settings, worker, federation, opened.path / folder.WORK, blueprint)
        stack.callback(engine.close)
        if experiment.uses("faults"):
            engine = FaultyEngine(engine, experiment.faults, experiment.seed)
        for tracker in trackers:
            stack.enter_context(tracker)
        on_clock = bool(federation.devices or experiment.faults.slow)
        loop = Loop(
            method,
            federation.task,
            engine,
            experiment.schedule,
            experiment.evaluate,
            [*_ledgers(plan, writer, alone), writer, Heartbeat(opened.path), *trackers, *callbacks, keeper],
            clock=make_clock(experiment, federation, flops()) if on_clock else None,
            shared_test=federation.shared_test,
            attackers=attackers,
            newcomers=plan.newcomers,
            privacy=privacy,
        )
        if plan.parts.state is not None:
            loop.server.set_initial_state(plan.parts.state)
        keeper.restore(loop)
        loop.run()


def _ledgers(plan: RunPlan, writer: RunWriter, alone: MethodFlops | None) -> list[Callback]:
    """Return the callbacks that record answers, privacy loss, safeguards and attacks, as far as the run has them."""
    experiment = plan.experiment
    ledgers: list[Callback] = [KeepAnswers(writer.path)] if experiment.engine.keep_answers else []
    if experiment.uses("privacy") and experiment.privacy:
        ledgers.append(PrivacyLedger(experiment.privacy, writer.facts))
    if alone is not None:
        flops: Callable[[], float | None] = lambda: alone.facts(plan.absent).get("flops_per_client_round")  # noqa: E731
        ledgers.append(SafeguardLedger(experiment.safeguard, flops, writer.facts))
    if plan.attackers is not None:
        ledgers.append(AttackLedger(plan.attackers, experiment.evaluate.protocol, writer.facts))
    return ledgers


def facts(plan: RunPlan, command: str) -> dict[str, Any]:
    """Return the facts of the experiment that `summary.json` begins with."""
    experiment, federation = plan.experiment, plan.federation
    imputed = federation.raw.imputed if isinstance(federation.raw, TableInput) else {}
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
        **({"class_names": list(federation.class_names)} if federation.class_names else {}),
        **({"imputed": imputed} if imputed else {}),
    }
