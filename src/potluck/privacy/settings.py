"""Privacy settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from potluck.core.settings import Settings, setting


@dataclass(frozen=True)
class Privacy(Settings):
    """Clipping and noise for what clients send; `docs/privacy.md` states the guarantee and its limits.

    All real numbers of an answer, as one vector, are clipped to length `clip`, and noise with a standard deviation of
    `noise_multiplier`·`clip` is added. Tensors that were also in the message (weights) are clipped as differences from
    what was received. A number that is not finite counts as no change. Class ids and counts are sent unchanged unless
    `hide_classes` is set, scalars always are. With `reproducible` the noise comes from the client's seeded stream, and
    a party that knows the seed can subtract it: for experiments only. Otherwise it comes from the operating system.
    """

    clip: float = setting(0.0, "length that an answer's real numbers are clipped to; 0: off", ge=0)
    noise_multiplier: float = setting(0.0, "standard deviation of the noise, in units of clip", ge=0)
    delta: float = setting(1e-5, "the δ at which ε is reported", gt=0, lt=1)
    reproducible: bool = setting(True, "noise from the seed (experiments), or truly secret noise")
    hide_classes: bool = setting(
        False,
        "answer for every class, with equal counts, so that answers do not show which classes a client has",
        later=True,
    )
    scores: bool = setting(
        True, "whether scores, training losses and notes, which have no noise, leave clients", later=True
    )

    secure_sums: bool = setting(
        False,
        "mask answers so that the server learns only the sum of many; for methods that need no more",
        later=True,
    )
    sum_clients: int = setting(3, "fewest clients in a secure sum", ge=2, later=True)
    sum_threshold: float = setting(
        0.6,
        "share of a secure sum's clients that must stay to its end, more than half; without them nothing is learned",
        gt=0.5,
        le=1,
        later=True,
    )
    sum_bytes: int = setting(4, "bytes of a masked number", ge=3, le=8, later=True)
    sum_range: float = setting(
        1000.0,
        "largest number of an answer in a secure sum (per row, where rows are summed); numbers are rounded to about "
        "sum_range / 2^(8 sum_bytes - 1)",
        gt=0,
        le=1e9,
        later=True,
    )
    unit: Literal["client", "record"] = setting(
        "client",
        "what is protected: a client's whole data, by noise on its answer; or each of its training rows, by noise in "
        "local training and in class means",
        later=True,
    )
    vector_clip: float = setting(
        1.0,
        "unit record: length that one row's features or logits are clipped to in class means",
        gt=0,
        later=True,
    )

    def __bool__(self) -> bool:
        return self.clip > 0

    @property
    def protects_records(self) -> bool:
        """Whether single rows are protected, not a client's whole data."""
        return bool(self) and self.unit == "record"
