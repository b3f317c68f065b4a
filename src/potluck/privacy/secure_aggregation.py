"""Secure aggregation: parties mask their vectors so that a server learns the sum of many and nothing of one.

The protocol of Bonawitz et al. (CCS 2017) for a server that follows it, in four stages: every party announces public
keys; deals Shamir shares of its secrets to the others, sealed; sends its vector plus a mask of its own and one mask per
other party, which cancel in pairs; and reveals the shares that the server needs to remove what is left: the masks
that the senders have alone, and the pairwise masks of parties that dropped out. Vectors are whole numbers modulo 2^k.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError
from potluck.privacy.ciphers import KEY_BYTES, TAG_BYTES, BrokenBox, Ciphers, Draw
from potluck.privacy.shamir import SHARE_BYTES, find_secret, split_secret

Vector = NDArray[np.uint64]

MASKS, SHARES = b"potluck pairwise mask", b"potluck sealed shares"


class SumFailed(PotluckError):
    """The masks of a sum cannot be removed."""


@dataclass(frozen=True)
class Secrets:
    """What a party draws for one sum and never sends: two secret keys, and the seed of its own mask."""

    mask: bytes
    channel: bytes
    seed: bytes

    @classmethod
    def draw(cls, draw: Draw) -> Secrets:
        """Draw new secrets."""
        return cls(draw(KEY_BYTES), draw(KEY_BYTES), draw(KEY_BYTES))


@dataclass(frozen=True)
class Announcement:
    """What a party makes public: a key for masks, a key for sealed shares, and a hash of its own mask's seed.

    Hash and mask key let the server recognise a wrong share.
    """

    mask: bytes
    channel: bytes
    seed_hash: bytes


@dataclass(frozen=True)
class SumGroup:
    """The parties of one sum, in ascending order, with all that they agree on.

    `width` is the size of a number in bytes: vectors are summed modulo 2^(8·width).
    """

    label: str
    members: tuple[int, ...]
    threshold: int
    width: int

    def __post_init__(self) -> None:
        if not len(self.members) // 2 < self.threshold <= len(self.members):
            raise SumFailed(
                f"A sum of {len(self.members)} parties cannot have a threshold of {self.threshold}; it must be more "
                "than half of them, and no more than all."
            )

    def box_label(self, sender: int, receiver: int) -> bytes:
        """Return what a sealed share is bound to."""
        return f"{self.label}/{self.members}/{self.threshold}/{sender}/{receiver}".encode()

    def place(self, member: int) -> int:
        """Return where a party's shares lie on the polynomials."""
        return self.members.index(member) + 1


@dataclass(frozen=True)
class Party:
    """One party of a sum; stages only depend on what is passed in, so that a party can be stored between them."""

    group: SumGroup
    number: int
    secrets: Secrets
    ciphers: Ciphers

    def announce(self) -> Announcement:
        """Stage 1: return the public keys."""
        public = self.ciphers.public_key
        return Announcement(
            public(self.secrets.mask), public(self.secrets.channel), hash_seed(self.secrets.seed)
        )

    def deal(self, public: Mapping[int, Announcement], draw: Draw) -> dict[int, bytes]:
        """Stage 2: return, for each member, a sealed share of the seed and one of the secret mask key."""
        self._check(public)
        places = [self.group.place(member) for member in self.group.members]
        seeds = split_secret(self.secrets.seed, places, self.group.threshold, draw)
        masks = split_secret(self.secrets.mask, places, self.group.threshold, draw)
        boxes = {}
        for member, place in zip(self.group.members, places, strict=True):
            key = self.ciphers.shared_key(self.secrets.channel, public[member].channel, SHARES)
            label = self.group.box_label(self.number, member)
            boxes[member] = self.ciphers.seal(key, seeds[place] + masks[place], label)
        return boxes

    def mask(self, public: Mapping[int, Announcement], vector: Vector) -> Vector:
        """Stage 3: return the vector plus this party's own mask and the pairwise masks with all other members."""
        self._check(public)
        total = vector + expand(self.ciphers, self.secrets.seed, len(vector), self.group.width)
        for other in self.group.members:
            if other != self.number:
                total += pairwise_mask(
                    self.ciphers, self.secrets.mask, public[other].mask, self.number < other,
                    len(vector), self.group.width,
                )  # fmt: skip
        return reduce(total, self.group.width)

    def reveal(
        self, public: Mapping[int, Announcement], boxes: Mapping[int, bytes], survivors: Sequence[int]
    ) -> dict[int, bytes]:
        """Stage 4: return a share per member: of the seed of those that sent a vector, of the others' mask key.

        Never both for one member, which would open its vector: call this once, for one set of survivors.
        """
        self._check(public)
        if len(set(survivors) & set(self.group.members)) < self.group.threshold:
            raise SumFailed(
                f"This sum may only be opened with {self.group.threshold} vectors of {len(self.group.members)}."
            )
        shares = {}
        for member in self.group.members:
            key = self.ciphers.shared_key(self.secrets.channel, public[member].channel, SHARES)
            content = self.ciphers.unseal(
                key, boxes.get(member, b""), self.group.box_label(member, self.number)
            )
            shares[member] = content[:SHARE_BYTES] if member in survivors else content[SHARE_BYTES:]
        return shares

    def _check(self, public: Mapping[int, Announcement]) -> None:
        if sorted(public) != list(self.group.members) or public[self.number] != self.announce():
            raise SumFailed("The public keys of a sum are not those of its members.")


def hash_seed(seed: bytes) -> bytes:
    """Return the hash by which a seed is recognised."""
    return hashlib.sha256(b"potluck mask seed" + seed).digest()


# -- the server ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenedSum:
    """A sum without masks, and the members that revealed wrong shares."""

    vector: Vector
    wrong: tuple[int, ...] = ()


def open_sum(
    group: SumGroup,
    ciphers: Ciphers,
    public: Mapping[int, Announcement],
    vectors: Mapping[int, Vector],
    revealed: Mapping[int, Mapping[int, bytes]],
) -> OpenedSum:
    """Remove the masks from the sum of vectors.

    `revealed` has the shares of stage 4: by the member that sent them, then by the member whose secret they are of.
    """
    if len(vectors) < group.threshold or len(revealed) < group.threshold:
        raise SumFailed(
            f"{len(vectors)} of {len(group.members)} clients sent a vector and {len(revealed)} revealed shares, "
            f"fewer than the {group.threshold} that the sum needs"
        )
    lengths = {len(vector) for vector in vectors.values()}
    if len(lengths) > 1:
        raise SumFailed("the clients' vectors differ in length")
    (length,), total, accused = lengths, np.zeros(max(lengths), dtype=np.uint64), set[int]()
    for member in sorted(vectors):
        total += vectors[member]
    for member in group.members:
        secret = _find(group, ciphers, public[member], member, member in vectors, revealed, accused)
        if member in vectors:
            total -= expand(ciphers, secret, length, group.width)
            continue
        for other in sorted(vectors):
            total -= pairwise_mask(ciphers, secret, public[other].mask, other < member, length, group.width)
    return OpenedSum(reduce(total, group.width), tuple(sorted(accused)))


def _find(
    group: SumGroup,
    ciphers: Ciphers,
    public: Announcement,
    member: int,
    sent: bool,
    revealed: Mapping[int, Mapping[int, bytes]],
    wrong: set[int],
) -> bytes:
    """Return a sender's seed, or the secret mask key of a member that dropped out."""

    def is_right(secret: bytes) -> bool:
        return hash_seed(secret) == public.seed_hash if sent else ciphers.public_key(secret) == public.mask

    shares = {
        group.place(sender): shares[member]
        for sender, shares in revealed.items()
        if len(shares.get(member, b"")) == SHARE_BYTES
    }
    secret, accused = find_secret(shares, group.threshold, is_right)
    if secret is None:
        kind = "own mask" if sent else "pairwise masks"
        raise SumFailed(f"the shares of client {member}'s {kind} are wrong or too few")
    wrong |= {group.members[place - 1] for place in accused}
    return secret


# -- arithmetic ----------------------------------------------------------------------------------------------


def expand(ciphers: Ciphers, key: bytes, count: int, width: int) -> Vector:
    """Expand a key to `count` uniform numbers below 2^(8·width)."""
    return unpack(ciphers.stream(key, count * width), width)


def pairwise_mask(
    ciphers: Ciphers, secret: bytes, public: bytes, positive: bool, count: int, width: int
) -> Vector:
    """Return the mask of a pair, which one party adds and the other subtracts."""
    mask = expand(ciphers, ciphers.shared_key(secret, public, MASKS), count, width)
    return mask if positive else np.negative(mask)


def reduce(vector: Vector, width: int) -> Vector:
    """Return numbers modulo 2^(8·width)."""
    return vector if width == 8 else vector & np.uint64((1 << (8 * width)) - 1)


def pack(vector: Vector, width: int) -> bytes:
    """Return the lower `width` bytes of every number, little-endian."""
    rows = vector.astype("<u8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(rows[:, :width]).tobytes()


def unpack(data: bytes, width: int) -> Vector:
    """Return the numbers that `pack` packed."""
    rows = np.zeros((len(data) // width, 8), dtype=np.uint8)
    rows[:, :width] = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
    numbers: Vector = rows.view("<u8").reshape(-1).astype(np.uint64, copy=False)
    return numbers


def signed(vector: Vector, width: int) -> NDArray[np.int64]:
    """Return the numbers between -2^(8·width-1) and 2^(8·width-1) that residues stand for."""
    shift = np.uint64(64 - 8 * width)
    return (vector << shift).view(np.int64) >> np.int64(shift)


def protocol_bytes(members: int) -> tuple[int, int]:
    """Return the bytes of keys, sealed shares and revealed shares that one member sends, and those that it receives."""
    keys, boxes = 3 * KEY_BYTES, members * (2 * SHARE_BYTES + TAG_BYTES)
    return keys + boxes + members * SHARE_BYTES, members * keys + boxes


__all__ = [
    "Announcement",
    "BrokenBox",
    "OpenedSum",
    "Party",
    "Secrets",
    "SumFailed",
    "SumGroup",
    "open_sum",
    "protocol_bytes",
]
