"""Shamir's secret sharing: any `threshold` of the shares give the secret, fewer say nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from potluck.privacy.ciphers import KEY_BYTES, Draw

PRIME = 2**521 - 1
"""The field: a Mersenne prime above every secret of 32 bytes."""
SHARE_BYTES = 66
MAX_TRIES = 500
"""Sets of shares that are tried to find those that are not wrong."""


def split_secret(secret: bytes, places: Sequence[int], threshold: int, draw: Draw) -> dict[int, bytes]:
    """Return a share of a secret of at most 32 bytes for every place (numbers from 1)."""
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [int.from_bytes(draw(SHARE_BYTES), "big") % PRIME for _ in range(threshold - 1)]
    return {place: _evaluate(coefficients, place).to_bytes(SHARE_BYTES, "big") for place in places}


def _evaluate(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


def join_shares(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret that shares give by Lagrange's formula; None where it is longer than any secret."""
    total, values = 0, {place: int.from_bytes(share, "big") for place, share in shares.items()}
    for place, value in values.items():
        above, below = 1, 1
        for other in values:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        total = (total + value * above * pow(below, -1, PRIME)) % PRIME
    return total.to_bytes(KEY_BYTES, "big") if total < 1 << (8 * KEY_BYTES) else None


def find_secret(
    shares: Mapping[int, bytes], threshold: int, is_right: Callable[[bytes], bool]
) -> tuple[bytes | None, list[int]]:
    """Return the secret that passes a check, and the places whose shares are wrong.

    With more than `threshold` shares, wrong ones are left out as long as `threshold` right ones can be found in
    `MAX_TRIES` sets; without, the secret is None and no place is accused.
    """
    places = sorted(shares)
    for number, chosen in enumerate(combinations(places, threshold)):
        if number == MAX_TRIES:
            break
        secret = join_shares({place: shares[place] for place in chosen})
        if secret is not None and is_right(secret):
            return secret, _wrong_places(shares, chosen)
    return None, []


def _wrong_places(shares: Mapping[int, bytes], right: Sequence[int]) -> list[int]:
    """Return the places whose share is not on the polynomial through the right ones."""
    return [
        place
        for place in sorted(shares)
        if place not in right and _interpolate({p: shares[p] for p in right}, place) != shares[place]
    ]


def _interpolate(shares: Mapping[int, bytes], at: int) -> bytes:
    total = 0
    for place, share in shares.items():
        above, below = int.from_bytes(share, "big"), 1
        for other in shares:
            if other != place:
                above = above * (at - other) % PRIME
                below = below * (place - other) % PRIME
        total = (total + above * pow(below, -1, PRIME)) % PRIME
    return total.to_bytes(SHARE_BYTES, "big")
