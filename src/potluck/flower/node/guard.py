"""What stands between a run and a node's own data: its policy, what was spent, and the record of what left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from potluck.flower.node.audit import AuditLog, Entry
from potluck.flower.node.ledger import check_budget, cost
from potluck.flower.node.policy import Policy
from potluck.flower.node.usage import Usage
from potluck.loop.jobs import Job
from potluck.loop.letter import Letter
from potluck.loop.privacy import Privacy


@dataclass(frozen=True)
class Guard:
    """One run's permission to work with a node's own data."""

    policy: Policy
    log: AuditLog
    usage: Usage
    privacy: Privacy
    run: str
    method: str

    def allow(self, job: Job, rows: int) -> None:
        """Refuse a job that goes beyond the policy, before anything is computed for it."""
        self.policy.check_job(job, rows)
        if job.kind == "train":
            check_budget(self.policy, self.log.last(), self.privacy)

    def note(self, kind: str, letter: Letter, *, job: int = 0, again: bool = False) -> None:
        """Write down what is about to leave, if the budget still allows it."""
        spent = cost(self.privacy) if kind == "train" else 0.0
        bare = kind == "train" and not spent
        entry = Entry(self.run, kind, self.method, job, spent, bare, again)
        self.log.append(entry, letter, self._within_budget if kind == "train" and not again else _anything)

    def _within_budget(self, totals: dict[str, Any]) -> None:
        check_budget(self.policy, totals, self.privacy)


def _anything(totals: dict[str, Any]) -> None:
    """Nothing is spent."""
