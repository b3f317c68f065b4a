"""Forget a client: the server's state without its contributions, and what only retraining would remove."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.core.random import one_thread
from potluck.loop.records import PendingJob
from potluck.loop.server import Server
from potluck.runs import folder
from potluck.runs.answers import KeptAnswer, read_answers
from potluck.runs.checkpoint import last_checkpoint, progress_numbers, progress_tensors
from potluck.runs.export import check_objects
from potluck.runs.plan import Parts
from potluck.runs.read import read_run
from potluck.runs.restore import RestoredRun, restore_run
from potluck.runs.run import Run
from potluck.wire import encoded_size
from potluck.wire.jobs import Answer, Job

Step = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """What was removed of a client, how, and what remains of it elsewhere.

    `how`: `replayed` (the server's steps were taken again on the stored answers of the others: bit by bit the state of
    a run that never had the removed answers, other answers given) or `subtracted` (by the method, from its state;
    equal up to rounding). `learned`: answers of other clients in the state that were computed from messages that held
    a removed contribution. `received`: other clients whose models were trained with such a message.
    """

    client: int
    name: str
    removed: list[int]
    kept: list[int]
    how: Literal["replayed", "subtracted"]
    learned: int
    received: list[int]
    retrain: str
    dropped: list[tuple[int, int]]
    """(client, server step from 0) of every answer that was removed, here and before."""
    absent: list[int]
    """The clients that left entirely, here and before; the copy has no models of them."""
    path: Path

    @property
    def complete(self) -> bool:
        """Whether nothing of the removed contributions is left in the server's state."""
        return self.learned == 0

    def facts(self) -> dict[str, Any]:
        """Return the content of `forgotten.json`."""
        stored = {name: value for name, value in asdict(self).items() if name != "path"}
        return {**stored, "complete": self.complete}


def forget_client(
    run: str | Path | Run, client: int, *, last: bool = False, out: str | Path | None = None
) -> Forgotten:
    """Copy a run's folder with the server's state of a run in which a client's answers never arrived.

    All its answers are removed, or the last one with `last`. The answers of the others are those that were given:
    those that were computed after they had received a removed contribution may hold some of it, and are counted.
    """
    parts = run.parts or Parts() if isinstance(run, Run) else Parts()
    path = run.path if isinstance(run, Run) else Path(run)
    place = Path(out) if out is not None else path.with_name(f"{path.name}-without-{client}")
    folder.experiment_file(path)
    if place.exists():
        raise PotluckError(f"{str(place)!r} exists already; choose another folder with --out.")
    check_objects(path, parts)
    with one_thread():
        restored = restore_run(path, parts)
        steps = _steps(path, restored)
        removed = _contributions(steps, client, restored)
        if last:
            removed = removed[-1:]
        without, how = _state_without(path, restored, steps, client, removed, last=last)
        forgotten = _describe(path, restored, steps, client, removed, how, place)
        _write_copy(path, place, restored, without, forgotten)
    return forgotten


# -- what the client contributed -----------------------------------------------------------------------------------


def _steps(path: Path, restored: RestoredRun) -> list[Step]:
    """Return the server steps up to the checkpoint."""
    dropped, steps = dropped_answers(path), list[Step]()
    for place, step in enumerate(read_run(path).rounds[: restored.loop.progress.step]):
        pairs = zip(step["participants"], step["staleness"], strict=True)
        answers = [(client, stale) for client, stale in pairs if (client, place) not in dropped]
        steps.append(
            {
                "round": step["round"],
                "ended": len(step["participants"]) + len(step["failures"]),
                "answers": answers,
            }
        )
    return steps


def dropped_answers(path: Path) -> set[tuple[int, int]]:
    """Return the answers that were removed before, as (client, server step from 0)."""
    file = path / folder.FORGOTTEN
    return (
        {(client, place) for client, place in parse_json(read_text(file))["dropped"]}
        if file.exists()
        else set()
    )


def _contributions(steps: Sequence[Step], client: int, restored: RestoredRun) -> list[int]:
    """Return the places of the steps that aggregated an answer of the client."""
    count = len(restored.loop.task.clients)
    if not 0 <= client < count:
        raise PotluckError(f"There is no client {client}; the run has clients 0 to {count - 1}.")
    places = [place for place, step in enumerate(steps) if client in dict(step["answers"])]
    if not places:
        raise PotluckError(
            f"Client {client} has contributed nothing to this run, so there is nothing to forget."
        )
    return places


def _jobs(steps: Sequence[Step]) -> list[tuple[int, int, int]]:
    """Return (place of the step, client, step whose state its message held) of every aggregated answer."""
    return [
        (place, client, place - stale)
        for place, step in enumerate(steps)
        for client, stale in step["answers"]
    ]


def _describe(
    path: Path,
    restored: RestoredRun,
    steps: Sequence[Step],
    client: int,
    removed: Sequence[int],
    how: Literal["replayed", "subtracted"],
    place: Path,
) -> Forgotten:
    """Count what other clients have learned from the removed contributions."""
    later = [
        (index, step) for step, index, sent in _jobs(steps) if index != client and sent > removed[0]
    ]  # a message of step s holds what steps before s aggregated
    empty = _empty_answers(path, restored)
    learned = sum((index, number) not in empty for index, number in _numbered(steps, later))
    numbers = [int(steps[step]["round"]) for step in removed]
    kept_rounds = [
        int(steps[step]["round"]) for step in _contributions(steps, client, restored) if step not in removed
    ]
    target = path.with_name(f"{path.name}-retrained-without-{client}")
    command = shlex.join(
        [
            "potluck",
            "run",
            str(path / folder.EXPERIMENT),
            "--set",
            f"schedule.exclude=[{client}]",
            "--out",
            str(target),
        ]
    )
    info = restored.loop.task.clients[client]
    received = sorted({index for index, _ in later})
    absent = sorted(restored.removed | ({client} if not kept_rounds else set()))
    dropped = sorted(dropped_answers(path) | {(client, step) for step in removed})
    return Forgotten(
        client=client,
        name=info.name,
        removed=numbers,
        kept=kept_rounds,
        how=how,
        learned=learned,
        received=received,
        retrain=command,
        dropped=dropped,
        absent=absent,
        path=place,
    )


def _numbered(steps: Sequence[Step], jobs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (client, how many of its answers were aggregated before) for answers given as (client, step)."""
    counts: dict[int, int] = {}
    number = {}
    for place, client, _ in _jobs(steps):
        number[client, place] = counts.get(client, 0)
        counts[client] = counts.get(client, 0) + 1
    return [(client, number[client, step]) for client, step in jobs]


def _empty_answers(path: Path, restored: RestoredRun) -> set[tuple[int, int]]:
    """Return the answers without content, which add nothing to any state, as (client, number among its answers)."""
    if not (path / folder.ANSWERS).exists():
        return set()
    by_client: dict[int, list[KeptAnswer]] = {}
    for exchange in read_answers(path, restored.plan.method):
        by_client.setdefault(exchange.client, []).append(exchange)
    return {
        (client, number)
        for client, answers in by_client.items()
        for number, exchange in enumerate(answers)
        if encoded_size(exchange.answer) == 0
    }


# -- the state without it -------------------------------------------------------------------------------------------


def _state_without(
    path: Path,
    restored: RestoredRun,
    steps: Sequence[Step],
    client: int,
    removed: Sequence[int],
    *,
    last: bool,
) -> tuple[Server, Literal["replayed", "subtracted"]]:
    """Return a server in the state without these contributions: replayed, or subtracted by the method."""
    loop, method = restored.loop, restored.plan.method
    if (path / folder.ANSWERS).exists():
        if not _gives_state(path, restored, steps):
            raise PotluckError(
                f"The stored answers of {str(path)!r} do not give the run's state again (it lost answers, or began "
                "with a state of your own), so no client can be taken out; only retraining removes one: "
                "--set schedule.exclude=[CLIENT]."
            )
        return replay(path, restored, steps, {(client, place) for place in removed}), "replayed"
    server = Server(method, loop.task, loop.schedule, loop.progress)
    state = None if last else method.forget(loop.progress.state, restored.client(client), server.context())
    if state is None:
        part = "a single answer" if last else "the client's part"
        raise PotluckError(
            f"The state of {type(method).__name__} does not keep {part} apart, and the run has no stored answers "
            "(--keep-answers) from which its steps could be taken again; only retraining removes the client: "
            f"potluck run {path / folder.EXPERIMENT} --set schedule.exclude=[{client}] --out NEW."
        )
    recent = {index: pending for index, pending in loop.progress.recent.items() if index != client}
    server.progress = replace(loop.progress, state=state, recent=recent)
    return server, "subtracted"


def _gives_state(path: Path, restored: RestoredRun, steps: Sequence[Step]) -> bool:
    """Tell whether all stored answers give the state of the checkpoint bit by bit."""
    try:
        replayed = replay(path, restored, steps)
    except IndexError:  # fewer answers are stored than were aggregated
        return False
    return tree.equal(tree.flatten(replayed.progress.state), tree.flatten(restored.loop.progress.state))


def replay(
    path: Path,
    restored: RestoredRun,
    steps: Sequence[Step],
    without: Collection[tuple[int, int]] = (),
) -> Server:
    """Take the server's steps again on the stored answers, but for some, given as (client, place of the step)."""
    loop = restored.loop
    server, waiting = Server(loop.method, loop.task, loop.schedule), _answers(path, restored)
    now = server.progress
    for place, step in enumerate(steps):
        context = server.context()
        arrived = []
        for client, stale in step["answers"]:
            exchange = waiting[client].pop(0)
            if (client, place) not in without:
                arrived.append(_pending(exchange, place - stale))
        accepted = server.accept(arrived, context)
        updates, _ = server.aggregate(accepted.updates, accepted.failures, context)
        server.keep_latest(arrived, updates)
        now.step += 1
        now.ended += step["ended"]
    # The counters of the run go on as they are: only the state and what it is made of differ.
    server.progress = replace(loop.progress, state=now.state, recent=now.recent)
    return server


def _answers(path: Path, restored: RestoredRun) -> dict[int, list[KeptAnswer]]:
    by_client: dict[int, list[KeptAnswer]] = {info.index: [] for info in restored.loop.task.clients}
    for exchange in read_answers(path, restored.plan.method):
        by_client[exchange.client].append(exchange)
    return by_client


def _pending(kept: KeptAnswer, step: int) -> PendingJob:
    job = Job(0, "train", kept.client, kept.job, round=1, rounds=1, message=kept.message)
    return PendingJob(job, step, 0.0, Answer(0, kept.client, kept.answer))


# -- the copy ---------------------------------------------------------------------------------------------------


def _write_copy(path: Path, place: Path, restored: RestoredRun, server: Server, forgotten: Forgotten) -> None:
    """Copy the folder with the new state, without the removed answers, and without the model of a client that left."""
    client, now, loop = forgotten.client, server.progress, restored.loop
    answers = sorted((path / folder.ANSWERS).glob(f"{client:05d}-*"))
    skip = [file.name for file in answers[-2 * len(forgotten.removed) :]]  # a message and an answer per job
    with folder.writing(place):
        shutil.copytree(path, place, ignore=shutil.ignore_patterns(*skip, folder.WORK, folder.LOCK))
        checkpoint = last_checkpoint(place)
        assert checkpoint is not None
        store, manifest = checkpoint.generations, checkpoint.manifest
        number = manifest.generation + 1
        state = tree.flatten(progress_tensors(now, loop.method, loop.task))
        entry = store.write_state(f"server-{number}.safetensors", state)
        clients = dict(manifest.clients)
        if not forgotten.kept:
            clients.pop(str(client), None)
        progress = progress_numbers(now)
        renewed = replace(manifest, generation=number, server=entry, clients=clients, progress=progress)
        store.commit(renewed)
        store.delete_unused([renewed])
        folder.write_atomic(place / folder.FORGOTTEN, json.dumps(forgotten.facts(), indent=1) + "\n")
