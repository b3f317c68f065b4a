"""Which node is which client, by the names that nodes register under."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from flwr.app import Message
from flwr.serverapp import Grid

from potluck.core.errors import PotluckError, plain
from potluck.core.files import parse_json, read_text
from potluck.core.payload import PayloadError, Tensors
from potluck.core.tree import Flat
from potluck.flower import record
from potluck.flower.grid import RetryingGrid
from potluck.flower.node.registration import MAX_REGISTRATION, Assignment, ClassNames, Registration
from potluck.flower.polling import Polling
from potluck.flower.transfers import NoReply, Transfers, UploadLimits, reply_source
from potluck.runs.folder import write_atomic
from potluck.wire import Message as WireMessage
from potluck.wire import load_state, save_state, string

log = logging.getLogger(__name__)

LONGEST_POLL = 2.0
"""Seconds between two looks for nodes that have been waited for long."""

REASK_SECONDS = 60.0
"""Seconds after which a node that said nothing of itself, or nothing of use, is asked once more, each time later."""

RETRY_GONE_SECONDS = 5.0
"""Seconds after which a node is asked again that was gone when it was asked, and is there."""

Check = Callable[[Registration], None]
"""Raises the sentence for a node that contradicts the experiment."""


@dataclass(frozen=True)
class Rejection:
    """Why a node does not take part: what it says does not fit, its name is not its own, or it does not want to."""

    why: str
    kind: Literal["misfit", "name", "unwilling"]


class NodeRefused(PotluckError):
    """What a node says that does not take part of its own will."""


class NameMismatch(PotluckError):
    """A node goes by a name that its key is not registered with."""


class NodeGone(PotluckError):
    """What Flower says in the place of a node that was there a moment ago."""


class NodeRegistry:
    """The nodes of a run by name. Asking a node for its registration is the first message it gets here."""

    def __init__(
        self,
        grid: Grid | RetryingGrid,
        assignment: Assignment,
        limit: int,
        *,
        uploads: UploadLimits | None = None,
        poll_interval: float = 0.2,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.assignment, self.limit = grid, assignment, limit
        self.transfers = Transfers(reply_source(grid), limit, uploads)
        self.registrations: list[Registration] = []
        self.rejected: dict[int, Rejection] = {}
        self.asked: dict[int, list[str]] = {}
        """The messages under way to nodes that have not said yet who they are."""
        self.check: Check = lambda registration: None
        self._polling = Polling(poll_interval, max(LONGEST_POLL, poll_interval), sleep=sleep)
        self._ids: dict[str, int] = {}
        self._connected: dict[int, str] = {}
        self._asks: Counter[int] = Counter()
        self._again: dict[int, float] = {}
        self._missing: set[str] = set()

    question = "registration"

    def introduction(self, message: WireMessage) -> Any:
        """Read the answer to the first question."""
        return Registration.read(message, self.limit)

    def pause(self) -> None:
        """Let some time pass before the nodes are looked at again."""
        self._polling.wait()

    # -- who takes part -------------------------------------------------------------------------------

    def admit(self, admitted: dict[str, Registration]) -> None:
        """Add the nodes that have introduced themselves since; of two with one name, the first that is still there."""
        for node, registration in self._introduced():
            if registration.name in admitted and self._ids[registration.name] in self._connected:
                reason = f"Two nodes are called {registration.name!r}; give each its own name."
                self.reject(node, Rejection(reason, "name"))
            else:
                admitted[registration.name], self._ids[registration.name] = registration, node
                self.rejected.pop(node, None)

    def exclude(self, name: str, why: str) -> None:
        """Leave out a node that had been let in."""
        self.reject(self._ids.pop(name), Rejection(why, "misfit"))

    def begin(self, people: Sequence[Any], *, missing: bool = False) -> None:
        """These are the clients, in this order; `missing` are those whose nodes have to be found yet."""
        self.registrations = list(people)
        self._missing = {registration.name for registration in people} if missing else set()

    def reachable(self) -> set[int]:
        """Return the clients whose nodes are connected now, after looking for missing ones among new nodes."""
        self.poll()
        self._connected = {info.node_id: info.name for info in self.grid.get_nodes()}
        return {
            client
            for client, registration in enumerate(self.registrations)
            if self._ids.get(registration.name) in self._connected
        }

    def missing(self) -> list[str]:
        """Return the clients whose nodes are not there."""
        return sorted(self._missing, key=natural_key)

    def node(self, client: int) -> int | None:
        """Return the present node id of a client, if it was ever seen."""
        return self._ids.get(self.registrations[client].name)

    def mark_missing(self, client: int) -> None:
        """Note that a client's node did not answer: look out for one that comes back under its name."""
        self._missing.add(self.registrations[client].name)

    def poll(self) -> None:
        """Find missing clients among nodes that are new; does not wait for anybody."""
        if not self._missing:
            return
        before = {registration.name: registration for registration in self.registrations}
        for node, registration in self._introduced():
            if registration.name not in self._missing:
                continue
            if reason := _changed(before[registration.name], registration):
                self.reject(node, Rejection(reason, "misfit"))
                continue
            self._ids[registration.name] = node
            self._missing.discard(registration.name)
            self.rejected.pop(node, None)

    def initial_weights(self, client: int, wait: float) -> Tensors:
        """Return the weights that this client's kind of model starts from, drawn from the run's seed."""
        name, ends = self.registrations[client].name, time.monotonic() + wait
        numbers: list[str] = []
        while time.monotonic() < ends:
            if not numbers and (node := self.node(client)) is not None:
                messages = [self._query(WireMessage({"ask": "first weights"}), node)]
                numbers = [number for number in self.grid.push_messages(messages) if number]
            for _, reply in self.transfers.poll(numbers):
                try:
                    return dict(_held(self._read(reply, self.limit)).tensors)
                except NodeGone:
                    numbers = []
                except PotluckError as error:
                    raise PotluckError(f"Node {name!r} sent no first weights: {error}") from None
            self.pause()
        raise PotluckError(f"Node {name!r} sent no first weights within engine.wait = {wait:g} seconds.")

    # -- questions and answers ------------------------------------------------------------------------

    def _introduced(self) -> Iterable[tuple[int, Any]]:
        """Ask nodes that were not asked yet, and give those that have answered since and may take part."""
        self._connected = {info.node_id: info.name for info in self.grid.get_nodes()}
        ids, now = set(self._ids.values()), time.monotonic()
        self._ask([node for node in self._connected if node not in ids and now >= self._again.get(node, now)])
        nodes = {number: node for node, numbers in self.asked.items() for number in numbers}
        for number, reply in self.transfers.poll(list(nodes), MAX_REGISTRATION):
            node = nodes[number]
            if (numbers := self.asked.pop(node, None)) is None:
                continue  # it had been asked twice
            self.transfers.forget(numbers)
            try:
                registration = self.introduction(self._read(reply, MAX_REGISTRATION))
                self._check_name(node, registration.name)
                self.check(registration)
            except NodeGone:  # it says nothing of the node, which is asked again when it is back
                self._again[node] = time.monotonic() + RETRY_GONE_SECONDS
            except PayloadError as error:
                reason = f"A node's registration could not be read: {error}"
                self.reject(node, Rejection(reason, "misfit"))
            except NodeRefused as error:
                self.reject(node, Rejection(str(error), "unwilling"))
            except NameMismatch as error:
                self.reject(node, Rejection(str(error), "name"))
            except PotluckError as error:
                self.reject(node, Rejection(str(error), "misfit"))
            else:
                yield node, registration

    def _ask(self, nodes: list[int]) -> None:
        """Ask for registrations. Who was silent is asked again, each time later: the question may have got lost."""
        ask = WireMessage({"ask": self.question})
        numbers = self.grid.push_messages([self._query(ask, node) for node in nodes]) if nodes else []
        for node, number in zip(nodes, numbers, strict=True):
            if number:
                self.asked.setdefault(node, []).append(number)
                self._again[node] = time.monotonic() + REASK_SECONDS * 2 ** self._asks[node]
                self._asks[node] += 1

    def reject(self, node: int, rejection: Rejection) -> None:
        """Leave a node out, and tell it and the run's log why."""
        rejection = replace(rejection, why=plain(rejection.why))
        before, self.rejected[node] = self.rejected.get(node), rejection
        if before == rejection:
            return
        log.warning("Node %s is excluded: %s", node, rejection.why)
        if rejection.kind != "unwilling":
            self.grid.push_messages([self._query(WireMessage({"ask": "leave", "why": rejection.why}), node)])

    def _read(self, reply: Message | NoReply, limit: int) -> WireMessage:
        if isinstance(reply, NoReply):
            raise PayloadError(f"{reply.reason[:1].upper()}{reply.reason[1:].rstrip('.')}.")
        if reply.has_error() and reply.error.code in record.NODE_GONE_CODES:
            raise NodeGone(record.error_reason(reply.error))
        if reply.has_error():
            raise NodeRefused(f"A node could not take part: {record.error_reason(reply.error)}")
        message = record.read(reply, limit)
        if "refusal" in message.facts:
            raise NodeRefused(string(message.facts["refusal"], "a refusal"))
        return message

    def _check_name(self, node: int, name: str) -> None:
        """Check that a key takes part under the name it was registered with, and no other."""
        bound = self._connected.get(node, "")
        if bound and bound != name:
            raise NameMismatch(
                f"The node whose key is registered as {bound!r} calls itself {name!r}; put its registered name into "
                "its node.toml."
            )

    def _query(self, message: WireMessage, node: int) -> Message:
        return Message(record.to_record(self.assignment.attach_to(message)), node, "query")


class ClassNameRegistry(NodeRegistry):
    """The same nodes, asked for the names of their classes before anything is agreed on."""

    question = "class names"
    collected: Sequence[ClassNames] = ()

    def begin(self, people: Sequence[Any], *, missing: bool = False) -> None:
        """Keep the names; no client has a number yet."""
        self.collected = tuple(people)

    def introduction(self, message: WireMessage) -> Any:
        """Read the names of a node's classes."""
        return ClassNames.read(message)


def _changed(before: Registration, now: Registration) -> str | None:
    """Return the sentence for a node that is not what it was when the run began."""
    for field in fields(Registration):
        was, is_now = getattr(before, field.name), getattr(now, field.name)
        if was != is_now:
            values = f" ({is_now}, not {was})" if isinstance(was, int | str) else ""
            return (
                f"Node {now.name!r} has another {field.name} than when this run began{values}; a run goes on with "
                "the same data and models."
            )
    return None


def _held(message: WireMessage) -> Flat:
    if message.state is None:
        raise PayloadError("A node's answer holds no weights.")
    return message.state


def natural_key(name: str) -> tuple[str, int]:
    """client-2 before client-10: the text, then the number at its end."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


NODES = "nodes.json"
WEIGHTS = "first-weights"
MAX_SENTENCES = 100
"""The most sentences about nodes that were left out."""


@dataclass(frozen=True)
class NodeList:
    """The clients as they registered, in their order, and why other nodes were left out."""

    clients: Sequence[Registration]
    rejected: Sequence[str] = ()

    def write(self, run: Path) -> None:
        """Into the run's folder."""
        facts = {
            "clients": [asdict(entry) for entry in self.clients],
            "left_out": [*dict.fromkeys(self.rejected)][:MAX_SENTENCES],
        }
        write_atomic(run / NODES, json.dumps(facts, indent=1) + "\n")

    @staticmethod
    def read(run: Path, limit: int) -> NodeList | None:
        """Return what the folder of a run says of its clients; None for one that has none yet."""
        path = run / NODES
        if not path.exists():
            return None
        try:
            facts = parse_json(read_text(path, max(limit, 1 << 30)))
            people = [
                Registration.read(WireMessage({"registration": entry}), limit) for entry in facts["clients"]
            ]
            return NodeList(people, [str(entry) for entry in facts["left_out"]])
        except (PayloadError, ValueError, LookupError, TypeError):
            raise PotluckError(
                f"{str(path)!r} was changed and cannot be read; restore it, or start again in another folder."
            ) from None


class InitialWeights:
    """First weights by client: those that the run's folder holds, else what the client's node sends."""

    def __init__(self, run: Path, ask: Callable[[int], Tensors]) -> None:
        self.folder, self._ask = run / WEIGHTS, ask
        self._found: dict[int, Tensors] = {}

    def __call__(self, client: int) -> Tensors:
        """Return the weights that this client's kind of model starts from."""
        path = self._path(client)
        if not path.exists():
            self._found[client] = self._ask(client)
            return self._found[client]
        return dict(load_state(path).tensors)

    def write(self) -> None:
        """Keep what was sent: a run that is resumed need not find the same node."""
        for client, tensors in self._found.items():
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self._path(client).with_suffix(".new")
            save_state(temporary, Flat(tensors, None))
            temporary.replace(self._path(client))

    def _path(self, client: int) -> Path:
        return self.folder / f"{client}.safetensors"
