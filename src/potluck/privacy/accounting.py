"""Accounting of differential privacy: ε at δ for clients that send noisy answers, or whose rows noise protects."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.training import Training
from potluck.privacy.rows import steps_per_job
from potluck.privacy.settings import Privacy


def check_privacy(settings: Privacy) -> None:
    """Check, before any training, that the privacy loss can be computed on this machine."""
    if settings and (settings.noise_multiplier or settings.protects_records):
        _accountants()


def epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return ε at δ for one client that sent `releases` answers, against a party that sees all of them.

    Neighbours are federations in which this client's rows are replaced by others of which answers tell the same
    ids and counts (docs/privacy.md), so two answers clipped to C may differ by 2C: noise of z·C is worth z/2 to the
    accountant. The server knows which clients take part, so sampling gives no amplification.
    """
    if releases == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    return tightest([(noise_multiplier / 2, 1.0, releases)], delta)


Mechanisms = list[tuple[float, float, int]]
"""Noise multiplier, chance of a row to take part, how often: of each Gaussian mechanism."""


def record_mechanisms(
    noise_multiplier: float, rows: int, training: Training, jobs: int, *, vectors: bool, fits: int = 1
) -> Mechanisms:
    """Return the mechanisms that use each row in so many jobs: steps of DP-SGD, and class sums with counts.

    A job of several trainings (`fits`) takes the steps of each, whether or not what they trained leaves the client:
    the next one starts from it.
    Neighbours differ by one row more or less. A row moves its class's sum by no more than `vector_clip` and the count
    by one; each in units of its own noise, both together are √2 of what the accountant calls one.
    """
    steps, chance = steps_per_job(rows, training.batch_size, training.epochs)
    mechanisms: Mechanisms = [(noise_multiplier, chance, steps * fits * jobs)]
    if vectors:
        mechanisms.append((noise_multiplier / math.sqrt(2), 1.0, jobs))
    return [mechanism for mechanism in mechanisms if mechanism[2]]


def record_epsilon(spent: Iterable[Mechanisms], delta: float) -> float:
    """Return ε at δ of the client that spent most."""
    return max(
        (tightest(list(history), delta) for history in {tuple(history) for history in spent}), default=0.0
    )


MEANINGFUL = 30.0
"""A larger ε promises nothing; to know it more exactly would take the numerical accountant minutes and gigabytes."""


def tightest(mechanisms: Mechanisms, delta: float) -> float:
    """Return ε at δ of composed mechanisms: the tighter bound of Opacus' two accountants."""
    if not mechanisms:
        return 0.0
    if any(noise == 0 for noise, *_ in mechanisms):
        return math.inf
    renyi, numerical = _accountants()
    bound = _spent(renyi, mechanisms, delta)
    if bound > MEANINGFUL:
        return bound
    try:
        return min(bound, _spent(numerical, mechanisms, delta))
    except (ValueError, RuntimeError):  # its grid does not hold what was spent
        return bound


def _spent(accountant: type[Any], history: Mechanisms, delta: float) -> float:
    instance = accountant()
    instance.history = history
    with warnings.catch_warnings():  # it advises on the range of orders, which matters at the edges only
        warnings.simplefilter("ignore")
        return float(instance.get_epsilon(delta))


def _accountants() -> list[type[Any]]:
    """By Rényi divergences, and by the numerical composition of privacy loss, which is tighter and may give up."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants import PRVAccountant, RDPAccountant
    except ImportError:
        raise PotluckError(
            "privacy.noise_multiplier needs Opacus for its accountant; pip install 'potluck[privacy]'."
        ) from None
    return [RDPAccountant, PRVAccountant]
