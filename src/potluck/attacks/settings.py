"""Attack settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from potluck.core.settings import Settings, setting

Kind = Literal[
    "none",
    "label-flip",
    "sign-flip",
    "scale",
    "noise",
    "little-is-enough",
    "logit-shuffle",
    "prototype-swap",
    "backdoor",
]

DEFAULT_STRENGTH: dict[Kind, float] = {
    "label-flip": 1.0,
    "sign-flip": 10.0,
    "scale": 10.0,
    "noise": 10.0,
    "little-is-enough": 1.5,
    "logit-shuffle": 1.0,
    "prototype-swap": 1.0,
    "backdoor": 0.5,
}
"""The default strength of each attack."""

SAMPLE_ATTACKS: frozenset[Kind] = frozenset({"label-flip", "backdoor"})
"""Attacks whose strength is a share of the attacker's training samples."""


@dataclass(frozen=True)
class Attack(Settings):
    """A share of the clients is malicious, drawn from the seed; docs/security.md says what each kind does."""

    kind: Kind = setting(
        "none",
        "what malicious clients do: train on wrong labels (label-flip) or on pictures with a trigger (backdoor); send "
        "their change reversed, enlarged, drowned in noise or a little aside (sign-flip, scale, noise, "
        "little-is-enough); mix up classes in what they send (logit-shuffle, prototype-swap)",
        later=True,
    )
    share: float = setting(
        0.2, "share of the clients with data that are malicious, at least one", gt=0, lt=1, later=True
    )
    strength: float | None = setting(
        None,
        "label-flip, backdoor: share of an attacker's samples; sign-flip, scale: factor; noise, little-is-enough: in "
        "standard deviations of what it sends; shuffle, swap: how far; unset: 1, 0.5, 10, 10, 10, 1.5, 1, 1",
        later=True,
        gt=0,
        le=1e6,
    )

    def __post_init__(self) -> None:
        if self.kind in SAMPLE_ATTACKS and self.strength is not None and self.strength > 1:
            raise ValueError(f"strength = {self.strength:g} is a share of samples for {self.kind}; at most 1")

    def __bool__(self) -> bool:
        return self.kind != "none"

    @property
    def effective_strength(self) -> float:
        """The strength, by default that of its kind."""
        return DEFAULT_STRENGTH.get(self.kind, 0.0) if self.strength is None else self.strength

    @property
    def is_targeted(self) -> bool:
        """Whether the attack aims at certain predictions of honest clients, not just wrong ones."""
        return self.kind in SAMPLE_ATTACKS
