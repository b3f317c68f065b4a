"""The stages of a secure sum on a client, and the messages of each stage.

A client keeps its answer and sends public keys. The server then asks three times: for sealed shares of the client's
secrets (`deal`), for its masked answer (`mask`), and for the shares that open the sum of the masked answers (`reveal`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.payload import Payload, PayloadError
from potluck.core.tree import Flat
from potluck.privacy.ciphers import KEY_BYTES, TAG_BYTES, Ciphers, Draw
from potluck.privacy.fixed_form import SumForms, summation
from potluck.privacy.secure_aggregation import (
    Announcement,
    Party,
    Secrets,
    SumFailed,
    SumGroup,
    Vector,
    pack,
    unpack,
)
from potluck.privacy.settings import Privacy
from potluck.privacy.shamir import SHARE_BYTES
from potluck.wire import bounded_list, integer, number, string, table

KEPT = "secure sum"
"""The private entry in which a client keeps its answer and its secrets."""
STAGES = ("deal", "mask", "reveal")
PUBLIC_BYTES, BOX_BYTES = 3 * KEY_BYTES, 2 * SHARE_BYTES + TAG_BYTES
MAX_MEMBERS = 1 << 20


def threshold(settings: Privacy, members: int) -> int:
    """Return how many members must stay: more than half, the configured share, and the fewest of any sum."""
    share = math.ceil(settings.sum_threshold * members - 1e-9)
    return min(members, max(members // 2 + 1, share, settings.sum_clients))


def sum_group(settings: Privacy, round_number: int, members: Sequence[int]) -> SumGroup:
    """Return the group of a sum: all parties agree on it."""
    return SumGroup(
        f"round {round_number}", tuple(members), threshold(settings, len(members)), settings.sum_bytes
    )


# -- messages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageRequest:
    """What the server asks of a member: the stage, all members with their public keys, and what the stage needs."""

    stage: str
    members: tuple[int, ...]
    public: Mapping[int, Announcement]
    total: float = 0.0
    boxes: Mapping[int, bytes] | None = None
    survivors: tuple[int, ...] = ()

    def flat(self) -> Flat:
        """Return the request as it travels."""
        tensors = {"keys": stack_bytes([_join(self.public[member]) for member in self.members])}
        if self.boxes is not None:
            tensors["boxes"] = stack_bytes([self.boxes[member] for member in self.members])
        facts = {"stage": self.stage, "members": [*self.members], "total": self.total}
        return Flat(tensors, {**facts, "survivors": [*self.survivors]})

    @staticmethod
    def read(flat: Flat | None) -> StageRequest:
        """Read a request; raise `PayloadError` for anything else."""
        if flat is None:
            raise PayloadError("A job of a secure sum lacks its request.")
        facts = table(flat.layout, "request")
        stage = string(facts.get("stage"), "stage")
        members = _numbers(facts.get("members"), "members")
        if stage not in STAGES or list(members) != sorted({*members}):
            raise PayloadError("A request of a secure sum has an unknown stage or unordered members.")
        keys = rows_of_bytes(flat, "keys", len(members), PUBLIC_BYTES)
        boxes = rows_of_bytes(flat, "boxes", len(members), BOX_BYTES) if "boxes" in flat.tensors else None
        return StageRequest(
            stage,
            members,
            {member: split_keys(data) for member, data in zip(members, keys, strict=True)},
            number(facts.get("total"), "total", low=0.0),
            None if boxes is None else dict(zip(members, boxes, strict=True)),
            _numbers(facts.get("survivors"), "survivors"),
        )


def _numbers(value: Any, what: str) -> tuple[int, ...]:
    return tuple(integer(entry, what) for entry in bounded_list(value, what, MAX_MEMBERS))


def _join(keys: Announcement) -> bytes:
    return keys.mask + keys.channel + keys.seed_hash


def split_keys(data: bytes) -> Announcement:
    """Return the public keys that `PUBLIC_BYTES` bytes hold."""
    return Announcement(data[:KEY_BYTES], data[KEY_BYTES : 2 * KEY_BYTES], data[2 * KEY_BYTES :])


def stack_bytes(rows: Sequence[bytes]) -> Tensor:
    """Return byte strings of one length as the rows of a tensor."""
    joined = np.frombuffer(b"".join(rows), dtype=np.uint8).copy()
    return torch.from_numpy(joined).view(len(rows), -1)


def rows_of_bytes(flat: Flat | None, name: str, rows: int, size: int) -> list[bytes]:
    """Return the rows of a tensor of bytes; raise for another form."""
    tensor = None if flat is None else flat.tensors.get(name)
    if tensor is None or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (rows, size):
        raise PayloadError(f"A message of a secure sum lacks {rows} times {size} bytes of {name}.")
    return [row.numpy().tobytes() for row in tensor.cpu()]


# -- on the client ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumParty:
    """A client's part in secure sums; `draw` gives random bytes for a purpose."""

    forms: SumForms
    settings: Privacy
    ciphers: Ciphers
    draw: Callable[[Client, str], Draw]

    def keep(self, me: Client, answer: Payload) -> Flat | None:
        """Keep an answer on the client and return what is sent instead; None for an answer without content."""
        tensors = self.forms.spread(answer, me.info.samples)
        me.private.pop(KEPT, None)
        if tensors is None:
            return None
        secrets = Secrets.draw(self.draw(me, "sum secrets"))
        stored = {"secrets": stack_bytes([secrets.mask, secrets.channel, secrets.seed]), "tensors": tensors}
        me.private[KEPT] = stored
        party = Party(sum_group(self.settings, 0, [0, 1, 2]), 0, secrets, self.ciphers)
        form = [[name, [*tensor.shape]] for name, tensor in tensors.items()]
        return Flat({"keys": stack_bytes([_join(party.announce())])}, {"form": form})

    def answer(self, me: Client, round_number: int, flat: Flat | None) -> Flat:
        """Answer a stage."""
        request, stored = StageRequest.read(flat), me.private.get(KEPT)
        if stored is None:
            raise SumFailed("This client has no answer for a secure sum.")
        if len(request.members) < self.settings.sum_clients:
            raise SumFailed(
                f"A secure sum of {len(request.members)} clients is below privacy.sum_clients = "
                f"{self.settings.sum_clients}."
            )
        group = sum_group(self.settings, round_number, request.members)
        mask, channel, seed = rows_of_bytes(Flat(stored), "secrets", 3, KEY_BYTES)
        party = Party(group, me.info.index, Secrets(mask, channel, seed), self.ciphers)
        if me.info.index not in group.members:
            raise SumFailed("This client is no member of the sum that it is asked for.")
        if request.stage == "deal":
            boxes = party.deal(request.public, self.draw(me, "sum shares"))
            return Flat({"boxes": stack_bytes([boxes[member] for member in group.members])})
        if request.stage == "mask":
            return Flat({"masked": self._masked(me, party, request, stored["tensors"])})
        shares = party.reveal(request.public, request.boxes or {}, request.survivors)
        return Flat({"shares": stack_bytes([shares[member] for member in group.members])})

    def _masked(self, me: Client, party: Party, request: StageRequest, tensors: dict[str, Tensor]) -> Tensor:
        scheme = summation(self.settings, request.total, len(request.members))
        vector = self.forms.quantise(tensors, self.forms.weight(me.info.samples), scheme)
        masked = pack(party.mask(request.public, vector), scheme.width)
        return torch.from_numpy(np.frombuffer(masked, dtype=np.uint8).copy())


def read_masked(flat: Flat | None, count: int, width: int) -> Vector:
    """Return the numbers of a masked answer."""
    tensor = None if flat is None else flat.tensors.get("masked")
    if tensor is None or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (count * width,):
        raise PayloadError(f"A masked answer has not {count} numbers of {width} bytes.")
    return unpack(tensor.cpu().numpy().tobytes(), width)


def seeded_bytes(me: Client, purpose: str) -> Draw:
    """Draw bytes from the client's seeded stream, for simulations."""
    rng = me.rng(purpose)
    return lambda count: bytes(torch.randint(0, 256, (count,), generator=rng, dtype=torch.uint8).tolist())
