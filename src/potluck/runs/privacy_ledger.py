"""How much privacy a run has spent: (ε, δ) by a public accountant, written into the run's summary."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method, payload_types
from potluck.core.training import Training
from potluck.loop.callbacks import Callback, End
from potluck.loop.every_class import tells_classes
from potluck.loop.loop import Loop
from potluck.loop.privacy import Privacy
from potluck.loop.record_privacy import steps_per_job


def check_privacy(settings: Privacy, method: Method[Any, Any, Any]) -> None:
    """Refuse, before any training, what cannot be accounted for here, and hiding what is not told."""
    if settings.hide_classes and not tells_classes(payload_types(method)[1]):
        raise PotluckError(
            f"privacy.hide_classes = True cannot act: {type(method).__name__} sends neither class ids nor counts; "
            "leave it out."
        )
    if settings and (settings.noise_multiplier or settings.of_records):
        _accountants()


def epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """ε at δ for one client that sent `releases` answers, against anybody who sees every one of them.

    Neighbours are federations in which this client's rows are replaced by others of which answers tell the same
    ids and counts (docs/privacy.md), so two answers clipped to C may differ by 2C: noise of z·C is worth z/2 to the
    accountant. Who takes part is known to the server, so nothing is gained from sampling.
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
    """What a client does to each of its rows in so many jobs: steps of DP-SGD, and class sums with counts.

    A job of several trainings (`fits`) takes the steps of each, whether or not what they trained leaves the client:
    the next one starts from it.
    Neighbours differ by one row more or less. A row moves its class's sum by no more than `vector_clip` and the count
    by one; each in units of its own noise, both together are √2 of what the accountant calls one.
    """
    steps, chance = steps_per_job(rows, training.batch_size, training.epochs)
    found: Mechanisms = [(noise_multiplier, chance, steps * fits * jobs)]
    if vectors:
        found.append((noise_multiplier / math.sqrt(2), 1.0, jobs))
    return [one for one in found if one[2]]


def record_epsilon(spent: Iterable[Mechanisms], delta: float) -> float:
    """ε at δ of the client that spent most."""
    return max((tightest(list(one), delta) for one in {tuple(one) for one in spent}), default=0.0)


MEANINGFUL = 30.0
"""A larger ε promises nothing; to know it more exactly would take the numerical accountant minutes and gigabytes."""


def tightest(mechanisms: Mechanisms, delta: float) -> float:
    """ε at δ of mechanisms one after another, by whichever of Opacus' accountants has the tighter bound."""
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
    one = accountant()
    one.history = history
    with warnings.catch_warnings():  # it advises on the range of orders, which matters at the edges only
        warnings.simplefilter("ignore")
        return float(one.get_epsilon(delta))


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


class PrivacyLedger(Callback):
    """Adds what the run spent to the facts of its summary. Every job sent counts, answered in time or not."""

    def __init__(self, settings: Privacy, facts: dict[str, Any]) -> None:
        self.settings, self.facts = settings, facts
        self._loop: Loop | None = None

    def on_start(self, loop: Loop) -> None:
        """Remember where jobs are counted."""
        self._loop = loop

    def on_end(self, end: End) -> None:
        """ε of the client that answered most often."""
        assert self._loop is not None
        releases = max(self._loop.progress.numbers.values(), default=0)
        if self.settings.of_records:
            spent = record_epsilon(self._of_records(self._loop), self.settings.delta)
        else:
            spent = epsilon(self.settings.noise_multiplier, releases, self.settings.delta)
        self.facts["privacy"] = {
            **(
                {"unit": "record", "vector_clip": self.settings.vector_clip}
                if self.settings.of_records
                else {}
            ),
            "epsilon": spent if math.isfinite(spent) else None,
            "delta": self.settings.delta,
            "clip": self.settings.clip,
            "noise_multiplier": self.settings.noise_multiplier,
            "releases": releases,
        }

    def _of_records(self, loop: Loop) -> Iterator[Mechanisms]:
        vectors, noise = tells_classes(payload_types(loop.method)[1]), self.settings.noise_multiplier
        for client, jobs in loop.progress.numbers.items():
            rows = loop.task.clients[client].samples
            fits = loop.method.guarded_fits
            yield record_mechanisms(noise, rows, loop.task.training, jobs, vectors=vectors, fits=fits)
