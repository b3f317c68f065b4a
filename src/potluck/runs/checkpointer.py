"""Save checkpoints while a run trains, so that another process can continue it bit by bit."""

from __future__ import annotations

import functools
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from potluck import __version__
from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.federation.federation import Federation
from potluck.loop.callbacks import Callback, Step
from potluck.loop.loop import Loop
from potluck.loop.records import Progress
from potluck.runs import folder
from potluck.runs.checkpoint import Checkpoint, last_checkpoint, progress_numbers, progress_tensors
from potluck.runs.digests import GrowingDigest, fingerprint, text_digest
from potluck.runs.generations import CheckpointStore, Entry, Manifest, sync
from potluck.runs.writer import RunWriter
from potluck.wire.jobs import LinksStates

MAX_PENDING_BYTES = 256 << 20
"""Bytes of clients' states that may wait to be written; with more, training waits."""


class Checkpointer(Callback):
    """Copy the state of the server and of changed clients at the end of a round, and write it in the background.

    Training continues meanwhile. A round that ends while the last checkpoint is still being written is not
    saved, so that a slow disk costs checkpoints and not time; the last round is always saved. Use it as a context:
    its exit waits for the writing and raises errors of it.

    `every` is the number of rounds between checkpoints (0: none).

    A checkpoint holds tensors and numbers, no code. So modules and dataclasses may stand in the server's state only
    where `init_server` creates them; others raise an error at the end of the first round that has them.
    """

    def __init__(self, writer: RunWriter, federation: Federation, *, every: int = 1) -> None:
        self.run, self.every = writer.path, every
        self.seconds = 0.0
        """Time that training has waited for checkpoints."""
        self._generations, self._number = CheckpointStore(self.run / folder.CHECKPOINT), 0
        self.saved: Checkpoint | None = None
        if self._generations.path.exists():
            self.saved, self._number = last_checkpoint(self.run), max(self._generations.numbers(), default=0)
        self._writer, self._federation = writer, federation
        self._made: dict[str, type] | None = None
        self._good: list[Manifest] = []
        self._clients: dict[str, Entry] = {}
        self._round, self._due = 0, every
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._waiting: deque[tuple[Future[Entry], int]] = deque()
        self._held = 0
        self._commit: Future[None] | None = None
        self._loop: Loop | None = None
        self._open()
        self._metrics = {name: GrowingDigest(self.run / name) for name in folder.METRICS}
        self._experiment = _text(self.run / folder.EXPERIMENT)

    def _open(self) -> None:
        """Truncate the run's files to the last checkpoint, or clear them for a new run."""
        shutil.rmtree(self.run / folder.WORK, ignore_errors=True)
        if self.saved is None:
            for name in folder.METRICS:
                with folder.writing(self.run / name):
                    (self.run / name).write_text("", encoding="utf-8")
            return
        self.saved.check_population(self._population)
        self.saved.rewind_metrics()
        self._writer.restore_notes(self.saved.manifest.notes)
        self._good, self._clients = [self.saved.manifest], dict(self.saved.manifest.clients)

    @functools.cached_property
    def _population(self) -> dict[str, str]:
        return fingerprint(self._federation)

    @functools.cached_property
    def _experiment_digest(self) -> dict[str, str]:
        """Return the digest of the experiment at the start of the run."""
        return {folder.EXPERIMENT: text_digest(self._experiment) if self._experiment else ""}

    def client_state(self, index: int) -> tree.Flat | None:
        """Return a client's state in the last checkpoint; None if it has none."""
        return None if self.saved is None else self.saved.client(index)

    def restore(self, loop: Loop) -> None:
        """Set a new loop to the state of the last checkpoint, if there is one."""
        if self.saved is not None:
            self.saved.restore(loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        shutil.rmtree(self.run / folder.WORK, ignore_errors=True)
        if self._good:
            self._generations.delete_unused(
                self._good[:1] if kind is None and self._finished() else self._good
            )
        if kind is None:
            self._raise_errors()
        elif isinstance(error, KeyboardInterrupt):
            error.add_note(f"Continue with: potluck resume {self.run}")

    def _finished(self) -> bool:
        """Tell whether the newest checkpoint is that of the last round."""
        return self._loop is not None and self._good[0].round >= self._loop.schedule.rounds

    def on_start(self, loop: Loop) -> None:
        """Store the loop and its current round."""
        self._loop = loop
        self._round = loop.progress.ended // loop.cohort
        self._due = self._next_due()

    def on_step(self, step: Step) -> None:
        """Save at the end of a round, if a checkpoint is due."""
        assert self._loop is not None
        loop, started = self._loop, time.perf_counter()
        self._raise_errors(only_if_done=True)
        rounds_done = loop.progress.ended // loop.cohort
        if rounds_done == self._round:
            return
        self._round = rounds_done
        if self.every:
            self._check_state(loop)
        last = bool(self.every) and rounds_done >= loop.schedule.rounds
        if last or (self.every and rounds_done >= self._due and not self._busy()):
            self._raise_errors()
            self._save(loop)
            self._due = self._next_due()
        if last:  # a finished run has a finished checkpoint
            self._raise_errors()
        self.seconds += time.perf_counter() - started

    def _check_state(self, loop: Loop) -> None:
        if self._made is None:
            self._made = dict(tree.unrestorable_parts(loop.server.initial_state()))
        for path, kind in tree.unrestorable_parts(loop.progress.state):
            if self._made.get(path) is not kind:
                raise PotluckError(
                    f"The server of {type(loop.method).__name__} cannot be saved: state{path} is a "
                    f"{kind.__name__} that init_server does not make, so a checkpoint could not restore it; create it "
                    "there, keep its tensors in a dict, or pass --checkpoint-every 0."
                )

    # -- taking the state ---------------------------------------------------------------------------------

    def _next_due(self) -> int:
        return (self._round // self.every + 1) * self.every if self.every else 0

    def _busy(self) -> bool:
        return self._commit is not None and not self._commit.done()

    def _save(self, loop: Loop) -> None:
        """Copy everything, while no client works, and hand the copies to the thread."""
        now, changed = loop.progress, []
        self._number += 1
        if loop.dispatcher.engine.remote:  # clients keep their own state; unfinished jobs are sent again
            now = replace(now, pending=[])
        else:
            loop.dispatcher.wait_for_pending()
            saved = {int(index): entry["jobs"] for index, entry in self._clients.items()}
            changed = [index for index, jobs in sorted(now.job_counts.items()) if saved.get(index) != jobs]
        files = self._client_files(loop, changed)
        server = self._write("server", _server_state(loop, now))
        jobs = {str(index): now.job_counts[index] for index in changed}
        positions = {name: file.now() for name, file in self._metrics.items()}
        facts: dict[str, Any] = {
            "generation": self._number,
            "round": self._round,
            "progress": progress_numbers(now),
            "metrics": {name: size for name, (size, _) in positions.items()},
            "digests": {name: digest for name, (_, digest) in positions.items()} | self._experiment_digest,
            "notes": self._writer.notes(),
            "population": self._population,
            "versions": {"potluck": __version__, "torch": torch.__version__},
        }
        self._commit = self._thread.submit(self._finish, facts, server, files, jobs)

    def _client_files(self, loop: Loop, clients: Sequence[int]) -> dict[str, Future[Entry]]:
        """Return a file per client: the engine's file if it has one, else a new one."""
        engine, files, missing = loop.dispatcher.engine, {}, []
        with folder.writing(self._generations.path):
            self._generations.path.mkdir(exist_ok=True)
        for index in clients:
            name = f"client-{index}-{self._number}.safetensors"
            if isinstance(engine, LinksStates) and engine.link_state(index, self._generations.path / name):
                files[str(index)] = self._thread.submit(self._generations.adopt_file, name)
            else:
                missing.append(index)
        for index, state in self._fetch(loop, missing):
            files[str(index)] = self._write(f"client-{index}", state)
        return files

    def _fetch(self, loop: Loop, clients: Sequence[int]) -> Iterator[tuple[int, tree.Flat]]:
        """Yield the states of clients, fetched in groups, so that a large population need not fit into memory."""
        group, begin = 8, 0
        while begin < len(clients):
            part = clients[begin : begin + group]
            states = loop.dispatcher.fetch_all(part, loop.server.context())
            yield from zip(part, states, strict=True)
            begin += group
            largest = max(tree.size(state) for state in states)
            group = max(1, min(64, MAX_PENDING_BYTES // max(largest, 1)))

    # -- in the background --------------------------------------------------------------------------------

    def _write(self, stem: str, state: tree.Flat) -> Future[Entry]:
        """Hand a state to the thread; wait for earlier ones if too many bytes are waiting."""
        name = f"{stem}-{self._number}.safetensors"
        future = self._thread.submit(self._generations.write_state, name, state)
        self._waiting.append((future, tree.size(state)))
        self._held += tree.size(state)
        while self._waiting and (self._held > MAX_PENDING_BYTES or self._waiting[0][0].done()):
            written, size = self._waiting.popleft()
            written.exception()
            self._held -= size
        return future

    def _finish(
        self,
        facts: dict[str, Any],
        server: Future[Entry],
        files: dict[str, Future[Entry]],
        jobs: dict[str, int],
    ) -> None:
        """Write the manifest when all files are written; then delete unused files."""
        try:
            clients = dict(self._clients)
            for index, file in files.items():
                clients[index] = {**file.result(), "jobs": jobs[index]}
            manifest = Manifest(server=server.result(), clients=clients, **facts)
            for name in folder.METRICS:
                sync(self.run / name)
            self._generations.commit(manifest)
        except OSError:
            self._sweep()
            raise
        self._clients, self._good = clients, [manifest, *self._good[:1]]
        self._sweep()

    def _sweep(self) -> None:
        """Delete old files, except states of clients that have not worked since the run was resumed."""
        resumed = [] if self.saved is None else [self.saved.manifest]
        self._generations.delete_unused([*self._good, *resumed])

    def _raise_errors(self, *, only_if_done: bool = False) -> None:
        if self._commit is None or (only_if_done and self._busy()):
            return
        error = self._commit.exception()
        if isinstance(error, OSError):
            raise PotluckError(
                f"The checkpoint in {str(self._generations.path)!r} could not be written ({error.strerror}); "
                f"make room or make it writable, then continue with: potluck resume {self.run}"
            ) from None
        if error is not None:
            raise error


def _server_state(loop: Loop, now: Progress) -> tree.Flat:
    try:
        return tree.flatten(progress_tensors(now, loop.method, loop.task))
    except TypeError as error:
        raise PotluckError(
            f"The server of {type(loop.method).__name__} cannot be saved: {error}; keep tensors, modules and "
            "numbers in its state, or pass --checkpoint-every 0."
        ) from None


def _text(path: Path) -> str:
    """Read a file; empty if it is missing, as for a loop that was built by hand."""
    return path.read_text(encoding="utf-8") if path.exists() else ""
