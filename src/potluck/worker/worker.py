"""Executes jobs on the clients of one process, in the same way on every engine."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.attacks import Attackers
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Predictor, payload_types
from potluck.core.model import batch_norm_in_eval_mode
from potluck.core.payload import Payload
from potluck.core.random import seeded, without_denormals
from potluck.core.samples import Samples, evaluation_batches, prepare
from potluck.core.task import CPU
from potluck.core.training import Training
from potluck.privacy.ciphers import SecretCiphers, SimulatedCiphers
from potluck.privacy.classes import reveals_classes
from potluck.privacy.fixed_form import SumForms
from potluck.privacy.messages import privatize
from potluck.privacy.rows import RecordPrivacy
from potluck.privacy.settings import Privacy
from potluck.privacy.sum_stages import SumParty, seeded_bytes
from potluck.wire import encoded_size, encoded_tensors_size
from potluck.wire.jobs import Answer, Failure, Job, Kind, Test
from potluck.wire.score import Comparison, Score, score_outputs
from potluck.worker.cache import ClientCache, LoadState
from potluck.worker.safeguard import (
    Safeguard,
    SafeguardedScores,
    learn_weight,
    safeguarded_scores,
    train_standalone,
)

STATE_CHANGING_JOBS: frozenset[Kind] = frozenset({"train", "restore"})
"""The kinds of job that change a client."""


class Worker:
    """Holds the clients of one process and executes jobs on them; engines may limit how many are in memory.

    Without `privacy` answers leave clients unchanged; without `attackers` all clients are honest; without `safeguard`
    clients have no standalone models. With `secret_masks` the masks of secure sums are real ones, else simulated.
    """

    def __init__(
        self,
        method: Method[Any, Any, Any],
        clients: Callable[[int], Client],
        saved: LoadState | None = None,
        privacy: Privacy | None = None,
        attackers: Attackers | None = None,
        safeguard: Safeguard | None = None,
        *,
        send_choices: bool = True,
        secret_masks: bool = False,
    ) -> None:
        self.method, self.privacy, self.attackers = method, privacy, attackers
        self.safeguard, self.send_choices = safeguard, send_choices
        self._secret_masks = secret_masks
        self._party: SumParty | None = None
        self.choices: dict[int, Comparison] = {}
        """The last choice of each client with `safeguard`, on its own test samples."""
        self._clients = clients
        self.cache = ClientCache(self._make, saved)

    def _make(self, index: int) -> Client:
        me = self._clients(index)
        if self.safeguard is not None and me.standalone is None:
            me.standalone = self._clients(index)
        if self.attackers is not None:
            for client in (me, me.standalone):
                if client is not None:
                    self.attackers.poison_client(client)
        return me

    def client(self, index: int) -> Client:
        """Return a client, made or loaded if it is not in memory."""
        return self.cache[index]

    def run(self, job: Job) -> Answer | Failure:
        """Execute a job. A client's exception becomes a `Failure` with the phase in which it was raised."""
        started, spent = time.perf_counter(), time.process_time()
        phase = "set-up"
        result: Answer | Failure
        try:
            me = self.client(job.client)
            phase = job.kind
            with without_denormals(), seeded(me.task.seed, "torch", me.info.name, job.kind, job.number):
                result = self.execute(me, job)
        except Exception as error:
            result = to_failure(job, phase, error)
        try:
            self.update_cache(job)
        except Exception as error:
            return to_failure(job, "storing the client", error)
        if isinstance(result, Failure):
            return result
        return replace(
            result,
            seconds=time.perf_counter() - started,
            processor_seconds=time.process_time() - spent,
        )

    def update_cache(self, *jobs: Job) -> None:
        """Note which clients jobs changed, failed jobs included, and only then trim the cache."""
        for job in jobs:
            if job.client in self.cache and job.kind in STATE_CHANGING_JOBS:
                self.client(job.client).free_gradients()
                self.cache.mark_changed(job.client, job.id)
            elif (
                job.details
            ):  # the last test, of all clients: those that never trained are not needed any more
                self.cache.discard_unchanged(job.client)
        self.cache.trim()

    def execute(self, me: Client, job: Job) -> Answer:
        """Execute a job; exceptions of the client are raised."""
        if job.kind == "fetch":
            return Answer(job.id, job.client, state=me.state())
        if job.kind == "restore":
            assert job.state is not None
            me.restore(job.state)
            return Answer(job.id, job.client)
        message = None if job.message is None else job.message.to(me.task.device)
        me.begin(job.kind, job.number, job.round, job.rounds)
        if job.kind == "sum":
            return self._answer_stage(me, job)
        if job.kind == "evaluate":
            return Answer(job.id, job.client, scores=self._test(me, job, message))
        if job.kind == "join":
            # The answer has nothing but scores.
            scores = join(self.method, me, message, job) if self._sends_scores() else {}
            return Answer(job.id, job.client, scores=scores)
        assert job.message is not None
        if self.privacy is None:
            payload = self.method.client(me, message).copy()
        else:
            payload = self._private(me, self.privacy, job.message, message)
        if self.attackers is not None:
            payload = self.attackers.corrupt(me, job.message, payload)
        sends_scores, samples = self._sends_scores(), me.trained_samples + train_standalone(me, job)
        train_loss, train_ce = (me.train_loss, me.train_ce) if sends_scores else (None, None)
        notes = {} if self.privacy or not sends_scores else me.notes  # notes are made from private rows
        keys = self._sum_party(me).keep(me, payload) if self._sums_answers() else None
        # "local" scores are those of the client as training left it, without a new download.
        me.begin("evaluate", job.number, job.round, job.rounds)
        return Answer(
            job.id,
            job.client,
            payload.to(CPU) if keys is None else None,
            scores=self._test(me, job, None),
            train_loss=train_loss,
            train_ce=train_ce,
            trained_samples=samples,
            bytes_down=encoded_size(job.message),
            bytes_up=encoded_size(payload) if keys is None else encoded_tensors_size(keys),
            notes=notes,
            sums=keys,
        )

    def _sum_party(self, me: Client) -> SumParty:
        """Return what keeps and masks the answers of this worker's clients."""
        if self._party is None:
            assert self.privacy is not None
            forms = SumForms(self.method, payload_types(self.method)[1], me.task)
            if self._secret_masks:
                self._party = SumParty(forms, self.privacy, SecretCiphers(), lambda me, purpose: os.urandom)
            else:
                self._party = SumParty(forms, self.privacy, SimulatedCiphers(), seeded_bytes)
        return self._party

    def _answer_stage(self, me: Client, job: Job) -> Answer:
        sums = self._sum_party(me).answer(me, job.round, job.sums)
        assert job.sums is not None
        sizes = encoded_tensors_size(job.sums), encoded_tensors_size(sums)
        return Answer(job.id, job.client, bytes_down=sizes[0], bytes_up=sizes[1], sums=sums)

    def _sends_scores(self) -> bool:
        return self.privacy is None or self.privacy.scores

    def _sums_answers(self) -> bool:
        return self.privacy is not None and self.privacy.secure_sums

    def _is_attacker(self, me: Client) -> bool:
        return self.attackers is not None and me.info.index in self.attackers

    def _private(self, me: Client, privacy: Privacy, sent: Payload, message: Payload | None) -> Payload:
        """Return the answer of a client whose rows, or whole data, are protected; attackers ignore the protection."""
        payload: Payload
        if not privacy.protects_records or self._is_attacker(me):
            payload = self.method.client(me, message).copy()
            return (
                privatize(privacy, me, sent, payload) if privacy and not privacy.protects_records else payload
            )
        sums = int(reveals_classes(payload_types(self.method)[1]))
        guard = RecordPrivacy(privacy, me, self.method.supports.fits, sums)
        me.trainer, me.private_class_means = guard.train, guard.class_means
        try:
            payload = self.method.client(me, message).copy()
        finally:
            me.trainer = me.private_class_means = None
        return payload

    def _test(self, me: Client, job: Job, message: Payload | None) -> dict[Test, Score]:
        sets: dict[Test, Samples | None] = {
            "own": me.test,
            "shared": me.shared_test,
            "validation": me.validation,
            "gradient": None if self.privacy else me.train,  # it is made from private rows
        }
        target: Test | None = "shared" if "shared" in job.tests else "own" if "own" in job.tests else None
        if self.attackers is not None and target is not None and not self._is_attacker(me):
            sets["attacked"] = self.attackers.targeted_samples(sets[target], me.task)
        requested = (*job.tests, "attacked") if "attacked" in sets else job.tests
        present = {
            test: samples for test in requested if (samples := sets.get(test)) is not None and len(samples)
        }
        if not present or not self._sends_scores():
            return {}
        me.model.eval()
        scores: dict[Test, Score] = {}
        predictors: dict[bool, Predictor] = {}
        weight = None if self.safeguard is None else self._weight(self.safeguard, me, message, predictors)
        for test, samples in present.items():
            me.on_shared_test = (target if test == "attacked" else test) == "shared"
            if me.on_shared_test not in predictors:
                predictors[me.on_shared_test] = self.method.predict(me, message)
            predictor = predictors[me.on_shared_test]
            if test == "gradient":
                scores[test] = _score_gradient(me, predictor, samples)
                continue
            details = job.details and test in ("own", "shared")
            if weight is None:
                scores[test] = _score(me, predictor, samples, details=details)
            else:
                tested = safeguarded_scores(me, predictor, weight, samples, details=details)
                scores |= self._safeguarded(me, test, tested, compared=test == target)
        me.on_shared_test = False  # training must not depend on what was tested before
        return scores

    def _weight(
        self, safeguard: Safeguard, me: Client, message: Payload | None, predictors: dict[bool, Predictor]
    ) -> float:
        me.on_shared_test = False
        predictors[False] = self.method.predict(me, message)
        return learn_weight(safeguard, me, predictors[False])

    def _safeguarded(
        self, me: Client, test: Test, tested: SafeguardedScores, *, compared: bool
    ) -> dict[Test, Score]:
        """Return the scores that are sent; on nodes with own data the choice stays on the node."""
        if test in ("own", "shared") and tested.used.comparison is not None:
            self.choices[me.info.index] = tested.used.comparison
        if not self.send_choices:
            return {test: replace(tested.used, comparison=None)}
        if not compared:
            return {test: tested.used}
        return {test: tested.used, "federated": tested.federated, "alone": tested.alone}


def _score(me: Client, predictor: Predictor, samples: Samples, *, details: bool = False) -> Score:
    """Test a predictor; BatchNorm runs in eval mode where there is one sample."""
    with batch_norm_in_eval_mode(*([me.model] if len(samples) == 1 else [])):
        return score_outputs(me.outputs(predictor, samples), details=details)


def _score_gradient(me: Client, predictor: Predictor, samples: Samples) -> Score:
    """Return n · ‖∇CE‖² as the summed loss: CE is the mean over all samples, ∇ by the tested model's parameters."""
    model = predictor if isinstance(predictor, nn.Module) else me.model
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradient, count = [torch.zeros_like(parameter) for parameter in parameters], len(samples)
    with batch_norm_in_eval_mode(*([model] if count == 1 else [])), torch.enable_grad():
        for rows in evaluation_batches(count):
            x, y = prepare(*samples.take(rows), me.task)
            loss = cross_entropy(predictor(x), y, reduction="sum") / count
            for total, part in zip(gradient, _gradients(loss, parameters), strict=True):
                if part is not None:
                    total += part
    return Score(0, count, count * sum(float(total.square().sum()) for total in gradient))


def _gradients(loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the loss's gradients without adding them to the parameters'; None where it does not depend on one."""
    if not parameters or not loss.requires_grad:
        return [None] * len(parameters)
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def _own_test(me: Client, predictor: Predictor) -> Score:
    return _score(me, predictor, me.test)


def join(method: Method[Any, Any, Any], me: Client, message: Payload | None, job: Job) -> dict[Test, Score]:
    """Train a newcomer with the message and alone, test it after each, and restore it.

    Both train the job's epochs over the client's own samples, from the same random streams and at the learning rate
    of a first round. A method with shorter jobs (a few batches) does as many of them as amount to that.
    """
    if not len(me.test):
        return {}
    before, training = me.state(), me.training
    me.training = newcomer_training(training, job)
    try:
        federated = _own_test(me, train_with_message(method, me, message, job))
        me.restore(before)
        train_job(me, 0, job, me.fit)
        return {"own": federated, "alone": _own_test(me, me.model.eval())}
    finally:
        me.training = training
        me.restore(before)
        me.free_gradients()


def newcomer_training(training: Training, job: Job) -> Training:
    """Return how a newcomer trains: the job's epochs at the learning rate of a first round."""
    return replace(training, epochs=job.epochs or training.epochs, lr_decay=1.0)


def train_with_message(
    method: Method[Any, Any, Any], me: Client, message: Payload | None, job: Job
) -> Predictor:
    """Train a newcomer with a message for the epochs of its settings, and return its predictor."""
    samples = me.training.epochs * len(me.train)
    turns = max(1, round(samples / max(1, method.workload(len(me.train), me.training))))
    for number in range(turns):
        train_job(me, number, job, lambda: method.client(me, message))
    me.begin("evaluate", turns, job.round, job.rounds)
    me.model.eval()
    return method.predict(me, None)


def train_job(me: Client, number: int, job: Job, train: Callable[[], object]) -> None:
    """Train a newcomer from the random streams of its job of this number."""
    me.begin("train", number, job.round, job.rounds)
    with seeded(me.task.seed, "torch", me.info.name, "train", number):
        train()


def to_failure(job: Job, phase: str, error: BaseException) -> Failure:
    """Make a failure of a client's exception, with its traceback unless it is a user error."""
    if isinstance(error, PotluckError):
        return Failure(job.id, job.client, f"{phase} in round {job.round}: {error}", "error")
    reason = f"{phase} in round {job.round}: {type(error).__name__}: {error}"
    return Failure(job.id, job.client, reason, "error", "".join(traceback.format_exception(error)))
