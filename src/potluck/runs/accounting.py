"""Privacy loss, attack success and what a safeguard did, for a run's summary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from potluck.attacks import Attackers
from potluck.core.method import payload_types
from potluck.loop.callbacks import Callback, End
from potluck.loop.evaluation import attack_metrics
from potluck.loop.loop import Loop
from potluck.loop.records import Scores
from potluck.loop.schedule import Protocol
from potluck.privacy.accounting import Mechanisms, epsilon, record_epsilon, record_mechanisms
from potluck.privacy.classes import reveals_classes
from potluck.privacy.settings import Privacy
from potluck.wire.score import Score
from potluck.worker.safeguard import Safeguard, mcnemar


class PrivacyLedger(Callback):
    """Add the privacy loss to the facts of the summary. Every sent job counts, answered in time or not."""

    def __init__(self, settings: Privacy, facts: dict[str, Any]) -> None:
        self.settings, self.facts = settings, facts
        self._loop: Loop | None = None

    def on_start(self, loop: Loop) -> None:
        """Store the loop, which counts jobs."""
        self._loop = loop

    def on_end(self, end: End) -> None:
        """Compute ε of the client with the largest privacy loss."""
        assert self._loop is not None
        releases = max(self._loop.progress.job_counts.values(), default=0)
        if self.settings.protects_records:
            spent = record_epsilon(self._of_records(self._loop), self.settings.delta)
        else:
            spent = epsilon(self.settings.noise_multiplier, releases, self.settings.delta)
        self.facts["privacy"] = {
            **(
                {"unit": "record", "vector_clip": self.settings.vector_clip}
                if self.settings.protects_records
                else {}
            ),
            "epsilon": spent if math.isfinite(spent) else None,
            "delta": self.settings.delta,
            "clip": self.settings.clip,
            "noise_multiplier": self.settings.noise_multiplier,
            "releases": releases,
        }

    def _of_records(self, loop: Loop) -> Iterator[Mechanisms]:
        vectors, noise = reveals_classes(payload_types(loop.method)[1]), self.settings.noise_multiplier
        for client, jobs in loop.progress.job_counts.items():
            rows = loop.task.clients[client].samples
            fits = loop.method.supports.fits
            yield record_mechanisms(noise, rows, loop.task.training, jobs, vectors=vectors, fits=fits)


class SafeguardLedger(Callback):
    """Add what a safeguard did and cost to the facts of the summary; `flops` counts a standalone job."""

    def __init__(
        self, safeguard: Safeguard, flops: Callable[[], float | None], facts: dict[str, Any]
    ) -> None:
        self.safeguard, self.flops, self.facts = safeguard, flops, facts

    def on_end(self, end: End) -> None:
        """Compare what clients use in the end with their standalone and their federated models."""
        rows = [
            (entry.score, entry.federated, entry.alone)
            for entry in end.scores
            if entry.federated and entry.alone and entry.score.comparison
        ]
        self.facts["safeguard"] = {
            "mode": self.safeguard.mode,
            "flops_per_client_round": self.flops(),
            **safeguard_summary(rows),
        }


def safeguard_summary(rows: Sequence[tuple[Score, Score, Score]]) -> dict[str, Any]:
    """Sum up clients' (used, federated, standalone) scores on the same test samples.

    `right`: the share of clients whose used model is at least as accurate as both others (`select`: as the other one;
    `ensemble`: as the standalone one). `below_alone`: the share of clients that use something less accurate than their
    standalone model; `worse_than_alone`: significantly so, by McNemar's exact one-sided test at 0.05.
    """
    if not rows:
        return {"clients": 0}
    compared = [(used, used.comparison) for used, *_ in rows if used.comparison is not None]
    weights = [comparison.weight for _, comparison in compared]
    return {
        "clients": len(rows),
        "federated_weight": sum(weights) / len(rows),
        "chose_federated": sum(weight > 0 for weight in weights) / len(rows),
        "accuracy_federated": sum(federated.accuracy for _, federated, _ in rows) / len(rows),
        "accuracy_alone": sum(alone.accuracy for *_, alone in rows) / len(rows),
        "right": sum(map(_is_right, rows)) / len(rows),
        "below_alone": sum(used.correct < alone.correct for used, _, alone in rows) / len(rows),
        "worse_than_alone": _share_worse([(entry.gained, entry.lost) for _, entry in compared]),
        "federated_below_alone": sum(own.correct < alone.correct for _, own, alone in rows) / len(rows),
        "federated_worse_than_alone": _share_worse(
            [(entry.federated_gained, entry.federated_lost) for _, entry in compared]
        ),
    }


def _is_right(row: tuple[Score, Score, Score]) -> bool:
    used, federated, alone = row
    weight = used.comparison.weight if used.comparison else 0.0
    other = alone if weight > 0 else federated
    return used.correct >= other.correct


def _share_worse(counts: Sequence[tuple[int, int]]) -> float:
    return sum(mcnemar(lost, gained) <= WORSE_LEVEL for gained, lost in counts) / max(1, len(counts))


WORSE_LEVEL = 0.05
"""Level of the test whether a client is worse than alone on test samples."""


class AttackLedger(Callback):
    """Add the attackers and the effect of the attack after the last round to the facts of the summary."""

    def __init__(self, attackers: Attackers, protocol: Protocol, facts: dict[str, Any]) -> None:
        self.attackers, self.facts = attackers, facts
        # At the end clients are tested instead of the server's model, on the common samples.
        self.protocol: Protocol = "shared" if protocol == "global" else protocol

    def on_end(self, end: End) -> None:
        """Compute the final scores, separately for honest clients."""
        attack = self.attackers.attack
        metrics = attack_metrics(
            self.attackers, Scores(end.scores, end.validation, end.attacked), self.protocol
        )
        self.facts["attack"] = {
            "kind": attack.kind,
            "share": attack.share,
            "strength": attack.effective_strength,
            "clients": sorted(self.attackers.clients),
            "honest_accuracy": metrics.get("honest_accuracy"),
            "success": metrics.get("attack_success"),
        }
