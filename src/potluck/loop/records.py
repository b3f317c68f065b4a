"""Progress of a run, and the record of each server step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from potluck.core.method import Method, PaperAccounting, Update
from potluck.core.random import add_up
from potluck.core.task import ClientInfo
from potluck.loop.schedule import Protocol
from potluck.wire.jobs import Answer, Failure, Job, Test
from potluck.wire.score import Score, summarise


@dataclass
class PendingJob:
    """A training job under way: the step it was sent in, when it ends on the virtual clock, and what came back."""

    job: Job
    step: int
    finish: float
    result: Answer | Failure | None = None


@dataclass
class Progress:
    """The server's state, counters, and the jobs under way.

    `ended` counts training jobs that came to an end, `jobs` all jobs ever numbered, `draws` how often clients were
    drawn, `numbers` the training jobs that each client was sent; `recent` are the jobs whose answers the server
    keeps, by client, the oldest first; `answered` is of the present round, and so are `scores` where the schedule is
    synchronous; else they are the latest of every client.
    """

    state: Any
    step: int = 0
    ended: int = 0
    clock: float = 0.0
    jobs: int = 0
    draws: int = 0
    job_counts: dict[int, int] = field(default_factory=dict)
    pending: list[PendingJob] = field(default_factory=list)
    recent: dict[int, PendingJob] = field(default_factory=dict)
    answered: int = 0
    scores: dict[int, dict[Test, Score]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientScore:
    """One client's score in one evaluation; `client` is None for the server's own model."""

    round: int
    client: ClientInfo | None
    protocol: Protocol
    score: Score
    final: bool = False
    federated: Score | None = None
    alone: Score | None = None
    """With `safeguard`: the federated and the standalone model on the same samples; `score` is what the client uses."""


@dataclass(frozen=True)
class Scores:
    """The scores of one evaluation: on test samples, and on validation samples by the chosen protocol.

    Under an attack with an aim, `attacked` says how often test samples are taken as the attacker wants. `gradient` has
    squared gradient norms as losses, where `evaluate.gradient_norm` records them.
    """

    test: Sequence[ClientScore] = ()
    validation: Sequence[ClientScore] = ()
    attacked: Sequence[ClientScore] = ()
    gradient: Sequence[ClientScore] = ()


@dataclass(frozen=True)
class StepRecord:
    """One server step in numbers, a line of `rounds.jsonl`; accuracies are None without evaluation."""

    step: int
    round: int
    accuracy: float | None
    accuracy_std: float | None
    accuracy_micro: float | None
    accuracy_local: float | None
    accuracy_received: float | None
    accuracy_shared: float | None
    accuracy_global: float | None
    accuracy_validation: float | None
    macro_f1: float | None
    calibration_error: float | None
    loss: float | None
    loss_validation: float | None
    train_loss: float | None
    """Mean of the participants' training objectives."""
    train_ce: float | None
    """Mean of the participants' training cross-entropies, by their training samples."""
    floats_up: int
    floats_down: int
    bytes_up: int
    bytes_down: int
    seconds: float
    virtual_seconds: float
    trained_samples: int
    participants: list[int]
    staleness: list[int]
    failures: list[dict[str, Any]]
    notes: dict[str, float]
    client_notes: dict[str, list[float | None]] = field(default_factory=dict)
    """The notes that clients made, one for each of `participants`; None for those that made none."""
    gradient_norm: float | None = None
    """Mean of ‖∇CE_k‖² over the tested clients, by their training samples; None unless it is asked for."""


def record_step(
    *,
    step: int,
    round_number: int,
    protocol: Protocol,
    arrived: Sequence[PendingJob],
    updates: Sequence[Update[Any]],
    failures: Sequence[Failure],
    scores: Scores,
    seconds: float,
    virtual_seconds: float,
    notes: Mapping[str, float],
) -> StepRecord:
    """Sum up a step. Traffic is that of answered training jobs, counted from the messages themselves."""
    means = {name: summarise(s.score for s in scores.test if s.protocol == name) for name in _PROTOCOLS}
    chosen, validation = means[protocol], summarise(s.score for s in scores.validation)
    accepted = {update.client.index for update in updates}
    used = [pending for pending in arrived if pending.job.client in accepted]
    answers = [pending.result for pending in used if isinstance(pending.result, Answer)]
    return StepRecord(
        step=step,
        round=round_number,
        accuracy=chosen.accuracy,
        accuracy_std=chosen.std,
        accuracy_micro=chosen.micro,
        accuracy_local=means["local"].accuracy,
        accuracy_received=means["received"].accuracy,
        accuracy_shared=means["shared"].accuracy,
        accuracy_global=means["global"].accuracy,
        accuracy_validation=validation.accuracy,
        macro_f1=chosen.macro_f1,
        calibration_error=chosen.calibration_error,
        loss=chosen.loss,
        loss_validation=validation.loss,
        train_loss=_mean_train_loss(answers),
        train_ce=_mean_cross_entropy(answers, updates),
        floats_up=sum(update.payload.numel() for update in updates),
        floats_down=sum(pending.job.message.numel() for pending in used if pending.job.message is not None),
        bytes_up=sum(answer.bytes_up for answer in answers),
        bytes_down=sum(answer.bytes_down for answer in answers),
        seconds=seconds,
        virtual_seconds=virtual_seconds,
        trained_samples=sum(answer.trained_samples for answer in answers),
        participants=[update.client.index for update in updates],
        staleness=[update.staleness for update in updates],
        failures=[{"client": f.client, "kind": f.kind, "reason": f.reason} for f in failures],
        notes={**_mean_notes(answers), **notes},
        client_notes=_client_notes(answers, updates),
        gradient_norm=_mean_gradient_norm(scores.gradient),
    )


def _mean_gradient_norm(scores: Sequence[ClientScore]) -> float | None:
    """Return Σ n_k ‖∇CE_k‖² / Σ n_k over the clients that have one on record."""
    samples = sum(entry.score.samples for entry in scores)
    return add_up(entry.score.loss_sum for entry in scores) / samples if samples else None


def _mean_train_loss(answers: Sequence[Answer]) -> float | None:
    """Return the mean training loss over the answers that have one."""
    losses = [answer.train_loss for answer in answers if answer.train_loss is not None]
    return add_up(losses) / len(losses) if losses else None


def _mean_cross_entropy(answers: Sequence[Answer], updates: Sequence[Update[Any]]) -> float | None:
    """Return Σ n_k CE_k / Σ n_k over the clients that have one on record."""
    samples = {update.client.index: update.client.samples for update in updates}
    losses = [(answer.train_ce, samples[answer.client]) for answer in answers if answer.train_ce is not None]
    total = sum(count for _, count in losses)
    return add_up(value * count for value, count in losses) / total if total else None


def _mean_notes(answers: Sequence[Answer]) -> dict[str, float]:
    """Return what methods recorded of their jobs, each as the mean over those that did; not-a-number is left out."""
    notes: dict[str, list[float]] = {}
    for answer in answers:
        for name, value in answer.notes.items():
            if math.isfinite(value):
                notes.setdefault(name, []).append(value)
    means = {name: add_up(values) / len(values) for name, values in notes.items()}
    return {
        name: mean for name, mean in means.items() if math.isfinite(mean)
    }  # huge numbers add up to infinity


def _client_notes(answers: Sequence[Answer], updates: Sequence[Update[Any]]) -> dict[str, list[float | None]]:
    """Return the same, client by client in the order of the updates."""
    by_client = {answer.client: answer.notes for answer in answers}
    names = sorted({name for notes in by_client.values() for name in notes})
    values = {
        name: [by_client[update.client.index].get(name, math.nan) for update in updates] for name in names
    }
    return {
        name: [value if math.isfinite(value) else None for value in client_values]
        for name, client_values in values.items()
    }


_PROTOCOLS: tuple[Protocol, ...] = ("local", "received", "shared", "global")


def count_exchanges(
    method: Method[Any, Any, Any], arrived: Sequence[PendingJob], updates: Sequence[Update[Any]]
) -> list[PaperAccounting]:
    """Return the accepted exchanges of a step as the method's paper counts them; nothing where it counts as we do."""
    sent = {pending.job.client: pending.job.message for pending in arrived}
    counts = [method.paper_accounting(sent[update.client.index], update.payload) for update in updates]
    return [count for count in counts if count is not None]
