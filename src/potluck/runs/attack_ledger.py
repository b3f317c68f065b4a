"""What an attack did in the end, for a run's summary."""

from __future__ import annotations

from typing import Any

from potluck.loop.attack import Attackers
from potluck.loop.attack.measure import outcome
from potluck.loop.callbacks import Callback, End
from potluck.loop.records import Scores
from potluck.loop.schedule import Protocol


class AttackLedger(Callback):
    """Adds who attacked, and what came of it after the last round, to the facts of the summary."""

    def __init__(self, attackers: Attackers, protocol: Protocol, facts: dict[str, Any]) -> None:
        self.attackers, self.facts = attackers, facts
        # At the end clients are tested, not the server's model: on the common samples then.
        self.protocol: Protocol = "shared" if protocol == "global" else protocol

    def on_end(self, end: End) -> None:
        """The last scores, honest clients apart."""
        attack = self.attackers.attack
        found = outcome(self.attackers, Scores(end.scores, end.validation, end.attacked), self.protocol)
        self.facts["attack"] = {
            "kind": attack.kind,
            "share": attack.share,
            "strength": attack.force,
            "clients": sorted(self.attackers.clients),
            "honest_accuracy": found.get("honest_accuracy"),
            "success": found.get("attack_success"),
        }
