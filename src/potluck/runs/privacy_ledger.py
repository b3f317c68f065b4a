"""How much privacy a run has spent: (ε, δ) by a public accountant, written into the run's summary."""

from __future__ import annotations

import math
import warnings
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method, payload_types
from potluck.loop.callbacks import Callback, End
from potluck.loop.every_class import tells_classes
from potluck.loop.loop import Loop
from potluck.loop.privacy import Privacy


def check_privacy(settings: Privacy, method: Method[Any, Any, Any]) -> None:
    """Refuse, before any training, what cannot be accounted for here, and hiding what is not told."""
    if settings.hide_classes and not tells_classes(payload_types(method)[1]):
        raise PotluckError(
            f"privacy.hide_classes = True cannot act: {type(method).__name__} sends neither class ids nor counts; "
            "leave it out."
        )
    if settings and settings.noise_multiplier:
        _accountant()


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
    accountant = _accountant()
    accountant.history = [(noise_multiplier / 2, 1.0, releases)]
    with warnings.catch_warnings():  # it advises on the range of orders, which matters at the edges only
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta))


def _accountant() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants import RDPAccountant
    except ImportError:
        raise PotluckError(
            "privacy.noise_multiplier needs Opacus for its accountant; pip install 'potluck[privacy]'."
        ) from None
    return RDPAccountant()


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
        spent = epsilon(self.settings.noise_multiplier, releases, self.settings.delta)
        self.facts["privacy"] = {
            "epsilon": spent if math.isfinite(spent) else None,
            "delta": self.settings.delta,
            "clip": self.settings.clip,
            "noise_multiplier": self.settings.noise_multiplier,
            "releases": releases,
        }
