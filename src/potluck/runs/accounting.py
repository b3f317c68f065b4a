"""Privacy loss and attack success, for a run's summary."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
