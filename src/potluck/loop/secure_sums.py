"""The server's side of secure sums: it forms groups, asks for each stage, and opens the sums."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from potluck.core.errors import PotluckError
from potluck.core.method import Method, payload_types
from potluck.core.payload import Payload, PayloadError
from potluck.core.supports import holds
from potluck.core.task import ClientInfo, Context
from potluck.core.tree import Flat
from potluck.loop.dispatch import Dispatcher
from potluck.loop.records import PendingJob
from potluck.privacy.ciphers import Ciphers, SecretCiphers, SimulatedCiphers
from potluck.privacy.fixed_form import Form, SumForms, summation
from potluck.privacy.secure_aggregation import Announcement, SumFailed, SumGroup, Vector, open_sum, signed
from potluck.privacy.settings import Privacy
from potluck.privacy.shamir import SHARE_BYTES
from potluck.privacy.sum_stages import (
    BOX_BYTES,
    PUBLIC_BYTES,
    StageRequest,
    read_masked,
    rows_of_bytes,
    split_keys,
    sum_group,
)
from potluck.wire.header import table
from potluck.wire.jobs import Answer, Failure, FailureKind

Reply = TypeVar("Reply")


@dataclass(frozen=True)
class ClientSum:
    """An opened sum: its members, and a client that stands for all of them."""

    info: ClientInfo
    members: tuple[ClientInfo, ...]
    by_samples: bool


@dataclass
class _Group:
    """The clients of one sum while its stages go on."""

    form: Form
    pending: dict[int, PendingJob] = field(default_factory=dict)
    public: dict[int, Announcement] = field(default_factory=dict)
    boxes: dict[int, list[bytes]] = field(default_factory=dict)
    vectors: dict[int, Vector] = field(default_factory=dict)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)

    reasons: dict[int, str] = field(default_factory=dict)
    """Why a member did not answer the last stage."""

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.pending))

    def fail(self, client: int, reason: str, kind: FailureKind = "lost") -> None:
        """Take a client out of the sum; its job has no answer."""
        pending = self.pending.pop(client)
        pending.result = Failure(
            pending.job.id, client, f"secure sum in round {pending.job.round}: {reason}", kind
        )
        self.public.pop(client)

    def fail_all(self, reason: str, kind: FailureKind = "lost") -> None:
        """The sum is lost, and with it the answers of all members."""
        for client in list(self.pending):
            self.fail(client, reason, kind)


class SecureSumServer:
    """Turns the announcements of a round's clients into the averages that their sums give."""

    def __init__(
        self, method: Method[Any, Any, Any], dispatcher: Dispatcher, settings: Privacy, *, real: bool
    ) -> None:
        sums = method.supports.sums
        assert sums is not None
        self.dispatcher, self.settings, self.per = dispatcher, settings, sums.per
        self.forms = SumForms(method, payload_types(method)[1], dispatcher.task)
        self.by_samples = holds(method.supports.max_share, method)
        self.ciphers: Ciphers = SecretCiphers() if real else SimulatedCiphers()

    def open(self, arrived: Sequence[PendingJob], context: Context) -> dict[int, ClientSum]:
        """Replace the announcements among the results by averages, or by failures; return the sums by client."""
        groups = self._groups(arrived)
        self._deal(groups, context)
        self._mask(groups, context)
        self._reveal(groups, context)
        opened: dict[int, ClientSum] = {}
        for group in groups:
            if group.pending and (opened_sum := self._open(group, context)) is not None:
                opened |= dict.fromkeys(group.vectors, opened_sum)
        return opened

    # -- groups ---------------------------------------------------------------------------------------------

    def _groups(self, arrived: Sequence[PendingJob]) -> list[_Group]:
        """Group clients by architecture, where the method needs it, and by the form of their answers."""
        groups: dict[str, dict[int, tuple[PendingJob, Form, Announcement]]] = {}
        for pending in arrived:
            result, info = pending.result, self.dispatcher.task.clients[pending.job.client]
            if not isinstance(result, Answer):
                continue
            if result.sums is None:
                self._check_empty(pending, result.payload)
                continue
            try:
                entry = (pending, *self._announcement(result.sums))
            except PayloadError as error:
                pending.result = Failure(pending.job.id, info.index, str(error), "invalid")
                continue
            groups.setdefault(info.architecture if self.per == "architecture" else "", {})[info.index] = entry
        return [self._of_one_form(entries) for _, entries in sorted(groups.items())]

    def _check_empty(self, pending: PendingJob, payload: Payload | None) -> None:
        """Without an announcement only an answer that holds nothing is accepted."""
        if payload is not None and any(payload.flatten()):
            reason = "the answer is not masked, and privacy.secure_sums is set"
            pending.result = Failure(pending.job.id, pending.job.client, reason, "invalid")

    def _announcement(self, sums: Flat) -> tuple[Form, Announcement]:
        limit = int(self.dispatcher.schedule.max_payload_mb * 2**20)
        form = self.forms.read_form(
            table(sums.layout, "announcement").get("form"), limit, self.settings.sum_bytes
        )
        (keys,) = rows_of_bytes(sums, "keys", 1, PUBLIC_BYTES)
        return form, split_keys(keys)

    def _of_one_form(self, entries: Mapping[int, tuple[PendingJob, Form, Announcement]]) -> _Group:
        """The group of the most frequent form; clients of another one fail."""
        form = Counter(form for _, form, _ in entries.values()).most_common(1)[0][0]
        group = _Group(form)
        for client, (pending, own, keys) in sorted(entries.items()):
            group.pending[client], group.public[client] = pending, keys
            if own != form:
                group.fail(client, "its answer has another form than the others'", "invalid")
        return group

    # -- stages ---------------------------------------------------------------------------------------------

    def _deal(self, groups: Sequence[_Group], context: Context) -> None:
        """Get sealed shares of every member; without one the others deal again."""
        open_groups = list(groups)
        while open_groups:
            for group in open_groups:
                if 0 < len(group.pending) < self.settings.sum_clients:
                    count = len(group.pending)
                    group.fail_all(
                        f"{count} clients answered, fewer than privacy.sum_clients = {self.settings.sum_clients}"
                    )
            requests = {
                client: StageRequest("deal", group.members, group.public)
                for group in open_groups
                for client in group.members
            }
            unfinished = list[_Group]()
            read: Callable[[Answer, _Group], list[bytes]] = lambda answer, group: rows_of_bytes(  # noqa: E731
                answer.sums, "boxes", len(group.public), BOX_BYTES
            )
            boxes = self._ask(open_groups, requests, read, context)
            for group in open_groups:
                group.boxes = {client: boxes[client] for client in group.members if client in boxes}
                if missing := set(group.members) - boxes.keys():
                    unfinished.append(group)
                    for client in missing:
                        group.fail(client, group.reasons.get(client, "no shares"))
            open_groups = unfinished

    def _mask(self, groups: Sequence[_Group], context: Context) -> None:
        """Get masked answers. Who sends none drops out of the sum, if enough are left."""
        requests, count = dict[int, StageRequest](), dict[int, int]()
        for group in groups:
            total = sum(self.forms.weight(self._info(client).samples) for client in group.members)
            for client in group.members:
                requests[client] = StageRequest("mask", group.members, group.public, total)
            count[id(group)] = sum(math.prod(shape) for _, shape in group.form)
        read: Callable[[Answer, _Group], Vector] = lambda answer, group: read_masked(  # noqa: E731
            answer.sums, count[id(group)], self.settings.sum_bytes
        )
        vectors = self._ask(groups, requests, read, context)
        for group in groups:
            group.vectors = {client: vectors[client] for client in group.members if client in vectors}

    def _reveal(self, groups: Sequence[_Group], context: Context) -> None:
        """Get the shares that open the sum, from those that sent a masked answer."""
        requests = dict[int, StageRequest]()
        for group in groups:
            if not group.pending:
                continue
            survivors, members = tuple(group.vectors), group.members
            if len(survivors) < (least := self._sum_group(group, context).threshold):
                group.fail_all(
                    f"{len(survivors)} of {len(members)} clients sent a masked answer, and its threshold is {least}"
                )
                continue
            for client in survivors:
                place = members.index(client)
                boxes = {sender: group.boxes[sender][place] for sender in members}
                requests[client] = StageRequest("reveal", members, group.public, 0.0, boxes, survivors)
        read: Callable[[Answer, _Group], dict[int, bytes]] = lambda answer, group: dict(  # noqa: E731
            zip(
                group.members,
                rows_of_bytes(answer.sums, "shares", len(group.members), SHARE_BYTES),
                strict=True,
            )
        )
        shares = self._ask(groups, requests, read, context)
        for group in groups:
            group.shares = {client: shares[client] for client in group.vectors if client in shares}

    def _ask(
        self,
        groups: Sequence[_Group],
        requests: Mapping[int, StageRequest],
        read: Callable[[Answer, _Group], Reply],
        context: Context,
    ) -> dict[int, Reply]:
        """Send a stage to all groups at once; return what could be read, and add the bytes to the clients' answers."""
        of = {client: group for group in groups for client in group.pending}
        jobs = [
            self.dispatcher.submit("sum", client, context, sums=request.flat())
            for client, request in sorted(requests.items())
        ]
        replies, seconds = dict[int, Reply](), 0.0
        for job, result in zip(jobs, self.dispatcher.results(jobs), strict=True):
            client, group = job.client, of[job.client]
            if isinstance(result, Failure):
                group.reasons[client] = result.reason
                continue
            _count_bytes(group.pending[client], result)
            seconds = max(seconds, self.dispatcher.clock.upload(self._info(client), result.bytes_up))
            try:
                replies[client] = read(result, group)
            except PayloadError as error:
                group.reasons[client] = str(error)
        self.dispatcher.progress.clock += seconds
        return replies

    # -- the sum --------------------------------------------------------------------------------------------

    def _open(self, group: _Group, context: Context) -> ClientSum | None:
        """Remove the masks, and give every sender the average of all as its answer."""
        members = [self._info(client) for client in group.vectors]
        total = sum(self.forms.weight(self._info(client).samples) for client in group.members)
        scheme = summation(self.settings, total, len(group.members))
        try:
            parties = self._sum_group(group, context)
            opened = open_sum(parties, self.ciphers, group.public, group.vectors, group.shares)
            payload = self.forms.average(group.form, signed(opened.vector, scheme.width), scheme, members)
        except PotluckError as error:
            group.fail_all(str(error).rstrip("."), "lost" if isinstance(error, SumFailed) else "invalid")
            return None
        if opened.wrong:
            context.note("wrong_shares", len(opened.wrong))
        for client in set(group.members) - group.vectors.keys():
            group.fail(client, group.reasons.get(client, "no masked answer"))
        for pending in group.pending.values():
            assert isinstance(pending.result, Answer)
            pending.result = replace(pending.result, payload=payload, sums=None)
        first = members[0]
        name = f"the sum of {len(members)} clients from {first.name}"
        info = replace(first, name=name, samples=sum(member.samples for member in members))
        return ClientSum(info, tuple(members), self.by_samples)

    def _sum_group(self, group: _Group, context: Context) -> SumGroup:
        return sum_group(self.settings, context.round, group.members)

    def _info(self, client: int) -> ClientInfo:
        return self.dispatcher.task.clients[client]


def _count_bytes(pending: PendingJob, stage: Answer) -> None:
    answer = pending.result
    assert isinstance(answer, Answer)
    pending.result = replace(
        answer, bytes_up=answer.bytes_up + stage.bytes_up, bytes_down=answer.bytes_down + stage.bytes_down
    )
