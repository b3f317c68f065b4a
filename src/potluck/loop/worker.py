"""Holds the clients that live here and does jobs on them: the same few lines on every engine."""

from __future__ import annotations

import ctypes
import gc
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
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
    """Holds the clients that live here and runs jobs on them; engines may limit how many are in memory.

    Without `privacy` everything leaves a client as it is; without `attackers` everybody is honest.
    """

    def __init__(
        self,
        method: Method[Any, Any, Any],
        clients: Callable[[int], Client],
        saved: Saved | None = None,
        privacy: Privacy | None = None,
        attackers: Attackers | None = None,
    ) -> None:
        self.method, self.privacy, self.attackers = method, privacy, attackers
        self._clients = clients
        self.cache = ClientCache(self._make, saved)

    def _make(self, index: int) -> Client:
        me = self._clients(index)
        return me if self.attackers is None else self.attackers.enlisted(me)

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
            elif job.details:  # the last test, of everybody: who never worked need not stay for it
                self.cache.let_go(job.client)
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
            # Only scores would leave the client.
            found = join(self.method, me, message, job, _own_test) if self._tells_scores() else {}
            return Answer(job.id, job.client, scores=found)
        assert job.message is not None
        if self.privacy is None:
            payload = self.method.client(me, message).copy()
        else:
            payload = self._private(me, self.privacy, job.message, message)
        if self.attackers is not None:
            payload = self.attackers.corrupted(me, job.message, payload)
        tells, samples = self._tells_scores(), me.trained_samples
        loss = me.train_loss if tells else None
        notes = {} if self.privacy or not tells else me.notes  # they are made from private rows
        # "local" scores are those of the client as training left it, without a new download.
        me.begin("evaluate", job.number, job.round, job.rounds)
        return Answer(
            job.id,
            job.client,
            payload.to(CPU),
            scores=self._test(me, job, None),
            train_loss=loss,
            trained_samples=samples,
            bytes_down=encoded_size(job.message),
            bytes_up=encoded_size(payload),
            notes=notes,
        )

    def _tells_scores(self) -> bool:
        return self.privacy is None or self.privacy.scores

    def _attacks(self, me: Client) -> bool:
        return self.attackers is not None and me.info.index in self.attackers

    def _private(self, me: Client, privacy: Privacy, sent: Payload, message: Payload | None) -> Payload:
        """The answer of a client whose rows, or whose whole data, are protected; attackers do as they like."""
        payload: Payload
        if not privacy.of_records or self._attacks(me):
            payload = self.method.client(me, message).copy()
            return privacy.conceal(me, sent, payload) if privacy and not privacy.of_records else payload
        sums = int(tells_classes(payload_types(self.method)[1]))
        guard = RecordPrivacy(privacy, me, self.method.guarded_fits, sums)
        me.trainer, me.guard = guard.train, guard.class_means
        try:
            payload = self.method.client(me, message).copy()
        finally:
            me.trainer = me.guard = None
        return payload

    def _test(self, me: Client, job: Job, message: Payload | None) -> dict[Test, Score]:
        sets: dict[Test, Samples | None] = {
            "own": me.test,
            "shared": me.shared_test,
            "validation": me.validation,
        }
        aimed: Test | None = "shared" if "shared" in job.tests else "own" if "own" in job.tests else None
        if self.attackers is not None and aimed is not None and not self._attacks(me):
            sets["attacked"] = self.attackers.wished(sets[aimed], me.task)
        asked = (*job.tests, "attacked") if "attacked" in sets else job.tests
        wanted = {test: found for test in asked if (found := sets.get(test)) is not None and len(found)}
        if not wanted or not self._tells_scores():
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


Budget = int | Callable[[], int] | None
"""Bytes that clients may take in memory."""


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
    size: int = 0


class ClientCache:
    """Clients by index, made when first needed. Over the budget, the least recently used are put in the store.

    A client that never changed is not stored: it is simply made again. Where a run goes on from a checkpoint,
    `saved` gives the state that a client begins with.
    """

    def __init__(self, make: Callable[[int], Client], saved: Saved | None = None) -> None:
        self._make, self._saved = make, saved
        self._here: OrderedDict[int, Held] = OrderedDict()
        self._unmeasured: set[int] = set()
        self._stored: dict[int, int] = {}
        self._size = 0
        self._store: StateStore | None = None
        self._budget: Budget = None
        self._at_once = False
        self.loading = 0.0
        """Seconds spent so far on making clients and bringing them back."""

    def limit(self, store: StateStore, budget: Budget, *, at_once: bool = False) -> None:
        """Hold at most `budget` bytes of clients, or what it says when first asked; None: all of them.

        `at_once` stores every change when it happens.

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
            self._here[index] = Held(client, version)
            self._unmeasured.add(index)
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
        self._unmeasured.discard(index)
        held = self._here.pop(index, None)
        self._size -= held.size if held else 0

    def let_go(self, index: int) -> None:
        """Drop a client that can be had again just as it is: made anew, or from the store."""
        if index in self._here and self._here[index].version == self.stored(index):
            self.forget(index)

    def changed(self, index: int, version: int) -> None:
        """A job changed this client."""
        self._here[index].version = version
        self._unmeasured.add(index)
        if self._at_once:
            self._save(index)

    def trim(self) -> None:
        """Make room: the least recently used leave until the rest fits; the last one used always stays."""
        if callable(self._budget):
            self._budget = self._budget()
        while self._unmeasured:
            self._measure(self._unmeasured.pop())
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


# -- memory that tensors gave back ---------------------------------------------------------------------------


def keep_freed_memory() -> bool:
    """Have the C library keep memory that tensors gave back, for the next ones; False where it knows no such wish.

    Otherwise large temporaries (a difference of all weights, say) are given to the system and asked for again in every
    step, each time page by page. At most `_KEPT` bytes lie idle for it.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(_MMAP_THRESHOLD, _LARGE) and set_option(_TRIM_THRESHOLD, _KEPT))


def give_back_memory() -> bool:
    """Have the C library return what lies idle to the system, where a run is over; False where it cannot.

    What is kept for the next temporaries lies between whatever outlives them: without this, a process that does a
    hundred runs one after another (a benchmark, a notebook) grows by tens of megabytes with each.
    """
    gc.collect()  # models and their clients know each other, so they are gone only now
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):
        return False


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the numbers that malloc.h gives them
_LARGE, _KEPT = 32 << 20, 256 << 20
