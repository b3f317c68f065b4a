"""How much privacy this node has spent in all its runs: the audit log's sum, and the limit that the node set itself."""

from __future__ import annotations

import math
from typing import Any

from potluck.core.errors import PotluckError
from potluck.flower.node.policy import Policy
from potluck.loop.privacy import Privacy
from potluck.runs.privacy_ledger import epsilon


def cost(privacy: Privacy) -> float:
    """What one answer adds: 1/z² sums over answers of any noise multipliers z, as Rényi divergences of Gaussians do."""
    noisy = privacy and privacy.unit == "client" and privacy.noise_multiplier
    return privacy.noise_multiplier**-2 if noisy else 0.0


def spent(totals: dict[str, Any], delta: float) -> float:
    """ε of everything that has left; infinite where a training answer left without noise."""
    if totals["bare"]:
        return math.inf
    return _epsilon(totals["spent"], delta)


def _epsilon(total: float, delta: float) -> float:
    return epsilon(total**-0.5, 1, delta) if total else 0.0


def check_budget(policy: Policy, totals: dict[str, Any], privacy: Privacy) -> None:
    """Refuse the answer that would take this node beyond its own limit.

    Answers that left before a limit was set, and without noise, are no part of it: nothing can be promised for them.
    """
    if not policy.epsilon:
        return
    after = _epsilon(totals["spent"] + cost(privacy), policy.delta)
    if after > policy.epsilon:
        before = _epsilon(totals["spent"], policy.delta)
        raise PotluckError(
            f"This node refuses the job: with it, ε would be {after:.3g} over all its runs, above its policy.epsilon = "
            f"{policy.epsilon:g} ({before:.3g} is spent)."
        )
