"""Holds the clients that live here and does jobs on them: the same few lines on every engine."""

from __future__ import annotations

import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from potluck.core import tree
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Predictor, payload_types
from potluck.core.model import norms_at_rest
from potluck.core.payload import Payload
from potluck.core.random import seeded, without_denormals
from potluck.core.samples import Samples
from potluck.core.task import CPU
from potluck.loop.attack import Attackers
from potluck.loop.every_class import tells_classes
from potluck.loop.jobs import Answer, Failure, Job, Kind, Test
from potluck.loop.letter import encoded_size
from potluck.loop.newcomers import join
from potluck.loop.privacy import Privacy
from potluck.loop.record_privacy import RecordPrivacy
from potluck.loop.score import Score, score_outputs

CHANGING: frozenset[Kind] = frozenset({"train", "restore"})
"""The kinds of job after which a client is not what it was."""


class Worker:
    """Holds the clients that live here and runs jobs on them; engines may limit how many are in memory."""

    def __init__(
        self,
        method: Method[Any, Any, Any],
        clients: Callable[[int], Client],
        saved: Saved | None = None,
        privacy: Privacy | None = None,
        attackers: Attackers | None = None,
    ) -> None:
        self.method = method
        self.privacy = Privacy() if privacy is None else privacy
        self.attackers = attackers or Attackers()
        self._clients = clients
        self.cache = ClientCache(self._make, saved)

    def _make(self, index: int) -> Client:
        return self.attackers.enlisted(self._clients(index))

    def client(self, index: int) -> Client:
        """The client of this index, made or brought back if it is not in memory."""
        return self.cache[index]

    def run(self, job: Job) -> Answer | Failure:
        """Do the job. A client that raises gives a `Failure` with the phase; the worker lives on."""
        started = time.perf_counter()
        phase = "set-up"
        result: Answer | Failure
        try:
            me = self.client(job.client)
            phase = job.kind
            with without_denormals(), seeded(me.task.seed, "torch", me.info.name, job.kind, job.number):
                result = self.do(me, job)
        except Exception as error:
            result = failure_of(job, phase, error)
        try:
            self.note_changes(job)
        except Exception as error:
            return failure_of(job, "storing the client", error)
        if isinstance(result, Failure):
            return result
        return replace(result, seconds=time.perf_counter() - started)

    def note_changes(self, *jobs: Job) -> None:
        """Note what jobs, even failed ones, did to their clients, and only then make room for others."""
        for job in jobs:
            if job.client in self.cache and job.kind in CHANGING:
                self.client(job.client).rest()
                self.cache.changed(job.client, job.id)
        self.cache.trim()

    def do(self, me: Client, job: Job) -> Answer:
        """The job itself; whatever the client raises comes through."""
        if job.kind == "fetch":
            return Answer(job.id, job.client, state=me.state())
        if job.kind == "restore":
            assert job.state is not None
            me.restore(job.state)
            return Answer(job.id, job.client)
        message = None if job.message is None else job.message.to(me.task.device)
        me.begin(job.kind, job.number, job.round, job.rounds)
        if job.kind == "evaluate":
            return Answer(job.id, job.client, scores=self._test(me, job, message))
        if job.kind == "join":
            tells = self.privacy.scores  # only scores would leave the client
            found = join(self.method, me, message, job, _own_test) if tells else {}
            return Answer(job.id, job.client, scores=found)
        assert job.message is not None
        with self._guarded(me):
            payload = self.method.client(me, message).copy()
        if self.privacy and not self.privacy.of_records:
            payload = self.privacy.conceal(me, job.message, payload)
        payload = self.attackers.corrupted(me, job.message, payload)
        loss, samples = me.train_loss, me.trained_samples
        notes = {} if self.privacy or not self.privacy.scores else me.notes  # they are made from private rows
        # "local" scores are those of the client as training left it, without a new download.
        me.begin("evaluate", job.number, job.round, job.rounds)
        return Answer(
            job.id,
            job.client,
            payload.to(CPU),
            scores=self._test(me, job, None),
            train_loss=loss if self.privacy.scores else None,
            trained_samples=samples,
            bytes_down=encoded_size(job.message),
            bytes_up=encoded_size(payload),
            notes=notes,
        )

    @contextmanager
    def _guarded(self, me: Client) -> Iterator[None]:
        """A job in which single rows are protected, if that is asked for; attackers do as they like."""
        if not self.privacy.of_records or me.info.index in self.attackers:
            yield
            return
        sums = int(tells_classes(payload_types(self.method)[1]))
        guard = RecordPrivacy(self.privacy, me, self.method.guarded_fits, sums)
        me.trainer, me.guard = guard.train, guard.class_means
        try:
            yield
        finally:
            me.trainer = me.guard = None

    def _test(self, me: Client, job: Job, message: Payload | None) -> dict[Test, Score]:
        sets: dict[Test, Samples | None] = {
            "own": me.test,
            "shared": me.shared_test,
            "validation": me.validation,
        }
        aimed: Test | None = "shared" if "shared" in job.tests else "own" if "own" in job.tests else None
        if aimed is not None and me.info.index not in self.attackers:
            sets["attacked"] = self.attackers.wished(sets[aimed], me.task)
        asked = (*job.tests, "attacked") if "attacked" in sets else job.tests
        wanted = {test: found for test in asked if (found := sets.get(test)) is not None and len(found)}
        if not wanted or not self.privacy.scores:
            return {}
        me.model.eval()
        scores: dict[Test, Score] = {}
        predictors: dict[bool, Predictor] = {}
        for test, samples in wanted.items():
            me.on_shared_test = (aimed if test == "attacked" else test) == "shared"
            if me.on_shared_test not in predictors:
                predictors[me.on_shared_test] = self.method.predict(me, message)
            predictor = predictors[me.on_shared_test]
            details = job.details and test in ("own", "shared")
            scores[test] = _score(me, predictor, samples, details=details)
        return scores


def _score(me: Client, predictor: Predictor, samples: Samples, *, details: bool = False) -> Score:
    """A test of a predictor; BatchNorm cannot normalise one sample alone."""
    with norms_at_rest(*([me.model] if len(samples) == 1 else [])):
        return score_outputs(me.outputs(predictor, samples), details=details)


def _own_test(me: Client, predictor: Predictor) -> Score:
    return _score(me, predictor, me.test)


def failure_of(job: Job, phase: str, error: BaseException) -> Failure:
    """A client's exception as the loop sees it, with the phase and the whole trace; a sentence needs none."""
    if isinstance(error, PotluckError):
        return Failure(job.id, job.client, f"{phase} in round {job.round}: {error}", "error")
    reason = f"{phase} in round {job.round}: {type(error).__name__}: {error}"
    return Failure(job.id, job.client, reason, "error", "".join(traceback.format_exception(error)))


# -- the clients that are in memory, and the way out for those that do not fit ---------------------------------


Saved = Callable[[int], tree.Flat | None]
"""The state in which a client begins; None for one that begins as it was made."""


class StateStore(Protocol):
    """Keeps clients' states outside of memory, each under the client's index and a version."""

    def save(self, client: int, version: int, state: tree.Flat) -> None:
        """Write a state down."""

    def load(self, client: int, version: int) -> tree.Flat:
        """The state written before."""

    def drop(self, client: int, version: int) -> None:
        """Forget a state that is no longer needed."""


@dataclass
class Held:
    """A client in memory; `version` is the job that left it as it is, 0 as it was made."""

    client: Client
    version: int
    size: int


class ClientCache:
    """Clients by index, made when first needed. Over the budget, the least recently used are put in the store.

    A client that never changed is not stored: it is simply made again. Where a run goes on from a checkpoint,
    `saved` gives the state that a client begins with.
    """

    def __init__(self, make: Callable[[int], Client], saved: Saved | None = None) -> None:
        self._make, self._saved = make, saved
        self._here: OrderedDict[int, Held] = OrderedDict()
        self._stored: dict[int, int] = {}
        self._size = 0
        self._store: StateStore | None = None
        self._budget: int | None = None
        self._at_once = False
        self.loading = 0.0
        """Seconds spent so far on making clients and bringing them back."""

    def limit(self, store: StateStore, budget: int | None, *, at_once: bool = False) -> None:
        """Hold at most `budget` bytes of clients; `at_once` stores every change when it happens.

        Who stores at once also drops: earlier versions then stay until their keeper knows of the newer one.
        """
        self._store, self._budget, self._at_once = store, budget, at_once

    def __contains__(self, index: int) -> bool:
        return index in self._here

    def __getitem__(self, index: int) -> Client:
        """The client of this index: from memory, from the store, or new."""
        if index not in self._here:
            started = time.perf_counter()
            client, version = self._make(index), self.stored(index)
            if version and self._store is not None:
                client.restore(self._store.load(index, version))
            elif self._saved is not None and (state := self._saved(index)) is not None:
                client.restore(state)
            self._here[index] = Held(client, version, 0)
            self._measure(index)
            self.loading += time.perf_counter() - started
        self._here.move_to_end(index)
        return self._here[index].client

    def stored(self, index: int) -> int:
        """The version that the store has of this client; 0 where it has none."""
        return self._stored.get(index, 0)

    def expect(self, index: int, version: int) -> None:
        """Say which version is the true one; another that is here was overtaken elsewhere and is forgotten."""
        if index in self._here and self._here[index].version != version:
            self.forget(index)
        self._stored[index] = version

    def forget(self, index: int) -> None:
        """Drop a client from memory, whatever it holds."""
        held = self._here.pop(index, None)
        self._size -= held.size if held else 0

    def changed(self, index: int, version: int) -> None:
        """A job changed this client."""
        self._here[index].version = version
        self._measure(index)
        if self._at_once:
            self._save(index)

    def trim(self) -> None:
        """Make room: the least recently used leave until the rest fits; the last one used always stays."""
        while self._budget is not None and self._size > self._budget and len(self._here) > 1:
            index = next(iter(self._here))
            self._save(index)
            self.forget(index)

    def _measure(self, index: int) -> None:
        held = self._here[index]
        self._size -= held.size
        held.size = tree.size(held.client.state(copy=False))
        self._size += held.size

    def _save(self, index: int) -> None:
        held, before = self._here[index], self.stored(index)
        if self._store is None or held.version == before:
            return
        self._store.save(index, held.version, held.client.state(copy=False))
        self._stored[index] = held.version
        if before and not self._at_once:
            self._store.drop(index, before)
