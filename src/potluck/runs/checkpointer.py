"""Saves a run while it goes on: everything a later process needs to continue it bit by bit."""

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
from potluck.loop.jobs import Keeping
from potluck.loop.loop import Loop
from potluck.loop.progress import Progress
from potluck.runs import folder
from potluck.runs.checkpoint import Checkpoint, last_checkpoint
from potluck.runs.digests import Growing, of_question
from potluck.runs.fingerprint import fingerprint
from potluck.runs.generations import Entry, Generations, Manifest, sync
from potluck.runs.snapshot import numbers_of, tensors_of
from potluck.runs.writer import RunWriter

ROOM = 256 << 20
"""Bytes of clients' states that may wait for the disk; with more, training waits."""


class Checkpointer(Callback):
    """Takes the state of server and changed clients at the end of a round and writes it in the background.

    Training goes on meanwhile. A round that ends while the last checkpoint is still being written is not
    saved, so that a slow disk costs checkpoints and not time; the last round always is. Use it as a context:
    leaving it waits for the writing and raises what went wrong.

    `every` is the number of rounds between checkpoints (0: none).

    A checkpoint holds tensors and numbers, no code. So modules and dataclasses may stand in the server's state only
    where `init_server` puts them; one elsewhere is refused at the end of the first round that has it.
    """

    def __init__(self, writer: RunWriter, federation: Federation, *, every: int = 1) -> None:
        self.run, self.every = writer.path, every
        self.seconds = 0.0
        """How long training waited for checkpoints so far."""
        self._generations, self._number = Generations(self.run / folder.CHECKPOINT), 0
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
        self._take_up()
        self._metrics = {name: Growing(self.run / name) for name in folder.METRICS}
        self._experiment = _text(self.run / folder.EXPERIMENT)

    def _take_up(self) -> None:
        """Make the run's files those of the last checkpoint; without one, those of a new run."""
        shutil.rmtree(self.run / folder.WORK, ignore_errors=True)
        if self.saved is None:
            for name in folder.METRICS:
                with folder.writing(self.run / name):
                    (self.run / name).write_text("", encoding="utf-8")
            return
        self.saved.check_population(self._population)
        self.saved.rewind_metrics()
        self._writer.take_up(self.saved.manifest.notes)
        self._good, self._clients = [self.saved.manifest], dict(self.saved.manifest.clients)

    @functools.cached_property
    def _population(self) -> dict[str, str]:
        return fingerprint(self._federation)

    @functools.cached_property
    def _asked(self) -> dict[str, str]:
        """The digest of what was asked when the run began, whatever its file says since."""
        return {folder.EXPERIMENT: of_question(self._experiment) if self._experiment else ""}

    def client_state(self, index: int) -> tree.Flat | None:
        """The state in which a client begins: that of the last checkpoint, if it is in there."""
        return None if self.saved is None else self.saved.client(index)

    def restore(self, loop: Loop) -> None:
        """Put a new loop where the last checkpoint stood, if there is one."""
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
            self._generations.sweep(self._good)
        if kind is None:
            self._raise_trouble()
        elif isinstance(error, KeyboardInterrupt):
            error.add_note(f"Go on with: potluck resume {self.run}")

    def on_start(self, loop: Loop) -> None:
        """Look where the run stands."""
        self._loop = loop
        self._round = loop.progress.ended // loop.cohort
        self._due = self._next_due()

    def on_step(self, step: Step) -> None:
        """Save at the end of a round, if it is time."""
        assert self._loop is not None
        loop, started = self._loop, time.perf_counter()
        self._raise_trouble(only_if_done=True)
        ended = loop.progress.ended // loop.cohort
        if ended == self._round:
            return
        self._round = ended
        if self.every:
            self._check_state(loop)
        last = bool(self.every) and ended >= loop.schedule.rounds
        if last or (self.every and ended >= self._due and not self._busy()):
            self._raise_trouble()
            self._save(loop)
            self._due = self._next_due()
        if last:  # a finished run has a finished checkpoint
            self._raise_trouble()
        self.seconds += time.perf_counter() - started

    def _check_state(self, loop: Loop) -> None:
        if self._made is None:
            self._made = dict(tree.made_parts(loop.server.initial_state()))
        for path, kind in tree.made_parts(loop.progress.state):
            if self._made.get(path) is not kind:
                raise PotluckError(
                    f"The server of {type(loop.method).__name__} cannot be saved: state{path} is a "
                    f"{kind.__name__} that init_server does not make, so no checkpoint could bring it back; make it "
                    "there, keep its tensors in a dict, or pass --checkpoint-every 0."
                )

    # -- taking the state ---------------------------------------------------------------------------------

    def _next_due(self) -> int:
        return (self._round // self.every + 1) * self.every if self.every else 0

    def _busy(self) -> bool:
        return self._commit is not None and not self._commit.done()

    def _save(self, loop: Loop) -> None:
        """Everything is copied here, at rest; only copies go to the thread."""
        now, changed = loop.progress, []
        self._number += 1
        if loop.dispatcher.engine.remote:  # clients keep their own state; what they are at is asked again
            now = replace(now, flights=[])
        else:
            loop.dispatcher.land_all()
            saved = {int(index): entry["jobs"] for index, entry in self._clients.items()}
            changed = [index for index, jobs in sorted(now.numbers.items()) if saved.get(index) != jobs]
        files = self._client_files(loop, changed)
        server = self._write("server", _server_state(loop, now))
        jobs = {str(index): now.numbers[index] for index in changed}
        written = {name: file.now() for name, file in self._metrics.items()}
        facts: dict[str, Any] = {
            "generation": self._number,
            "round": self._round,
            "progress": numbers_of(now),
            "metrics": {name: size for name, (size, _) in written.items()},
            "digests": {name: digest for name, (_, digest) in written.items()} | self._asked,
            "notes": self._writer.notes(),
            "population": self._population,
            "versions": {"potluck": __version__, "torch": torch.__version__},
        }
        self._commit = self._thread.submit(self._finish, facts, server, files, jobs)

    def _client_files(self, loop: Loop, clients: Sequence[int]) -> dict[str, Future[Entry]]:
        """A file per client: the engine's own where it has one, or else one to be written."""
        engine, files, others = loop.dispatcher.engine, {}, []
        with folder.writing(self._generations.path):
            self._generations.path.mkdir(exist_ok=True)
        for index in clients:
            name = f"client-{index}-{self._number}.safetensors"
            if isinstance(engine, Keeping) and engine.keep(index, self._generations.path / name):
                files[str(index)] = self._thread.submit(self._generations.take_in, name)
            else:
                others.append(index)
        for index, state in self._fetch(loop, others):
            files[str(index)] = self._write(f"client-{index}", state)
        return files

    def _fetch(self, loop: Loop, clients: Sequence[int]) -> Iterator[tuple[int, tree.Flat]]:
        """The states of clients, a few at a time, so that a large population need not fit into memory."""
        group, begin = 8, 0
        while begin < len(clients):
            part = clients[begin : begin + group]
            states = loop.dispatcher.fetch_all(part, loop.server.context())
            yield from zip(part, states, strict=True)
            begin += group
            largest = max(tree.size(state) for state in states)
            group = max(1, min(64, ROOM // max(largest, 1)))

    # -- in the background --------------------------------------------------------------------------------

    def _write(self, stem: str, state: tree.Flat) -> Future[Entry]:
        """Hand a state to the thread; wait for older ones where too much is waiting."""
        name = f"{stem}-{self._number}.safetensors"
        future = self._thread.submit(self._generations.write_state, name, state)
        self._waiting.append((future, tree.size(state)))
        self._held += tree.size(state)
        while self._waiting and (self._held > ROOM or self._waiting[0][0].done()):
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
        """When all files are there: the manifest; then what nobody needs any more is deleted."""
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
        """Delete old files, but not those that clients who have not worked since a resume begin from."""
        began = [] if self.saved is None else [self.saved.manifest]
        self._generations.sweep([*self._good, *began])

    def _raise_trouble(self, *, only_if_done: bool = False) -> None:
        if self._commit is None or (only_if_done and self._busy()):
            return
        error = self._commit.exception()
        if isinstance(error, OSError):
            raise PotluckError(
                f"The checkpoint in {str(self._generations.path)!r} could not be written ({error.strerror}); "
                f"make room or make it writable, then go on with: potluck resume {self.run}"
            ) from None
        if error is not None:
            raise error


def _server_state(loop: Loop, now: Progress) -> tree.Flat:
    try:
        return tree.flatten(tensors_of(now, loop.method, loop.task))
    except TypeError as error:
        raise PotluckError(
            f"The server of {type(loop.method).__name__} cannot be saved: {error}; keep tensors, modules and "
            "numbers in its state, or pass --checkpoint-every 0."
        ) from None


def _text(path: Path) -> str:
    """What a file says; a loop that was put together by hand has none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""
