"""Which node is which client: names are the nodes' own and fixed, Flower's node ids are not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from potluck.core.errors import PotluckError
from potluck.core.payload import PayloadError, Tensors
from potluck.core.tree import Flat
from potluck.flower import record
from potluck.flower.node.assignment import Assignment
from potluck.flower.node.registration import Registration
from potluck.loop.letter import Letter, text


class Roll:
    """The nodes of a run by name. Asking a node for its registration is the first message it gets."""

    def __init__(
        self,
        grid: Grid,
        assignment: Assignment,
        limit: int,
        *,
        poll: float = 0.5,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.assignment, self.limit = grid, assignment, limit
        self.registrations: list[Registration] = []
        self._poll, self._sleep = poll, sleep
        self._ids: dict[str, int] = {}
        self._asked: dict[int, str] = {}
        self._missing: set[str] = set()

    def gather(self, count: int, wait: float) -> list[Registration]:
        """Wait until `count` nodes have introduced themselves; they become the clients, in the order of names."""
        found: dict[str, Registration] = {}
        ends = time.monotonic() + wait
        while len(found) < count:
            for node, registration in self._introduced():
                if registration.name in found and self._ids[registration.name] != node:
                    raise PotluckError(f"Two nodes are called {registration.name!r}; give each its own name.")
                found[registration.name], self._ids[registration.name] = registration, node
            if len(found) < count:
                if time.monotonic() > ends:
                    raise PotluckError(
                        f"{len(found)} of {count} nodes answered within engine.wait = {wait:g} seconds; start the "
                        "others (potluck node start) or raise engine.wait."
                    )
                self._sleep(self._poll)
        self.registrations = [found[name] for name in sorted(found, key=natural)]
        return self.registrations

    def node(self, client: int) -> int:
        """The present node id of a client."""
        return self._ids[self.registrations[client].name]

    def miss(self, client: int) -> None:
        """A client's node did not answer: look out for one that comes back under its name."""
        self._missing.add(self.registrations[client].name)

    def call(self) -> None:
        """Find missing clients among nodes that are new; does not wait for anybody."""
        if self._missing:
            for node, registration in self._introduced():
                if registration.name in self._missing:
                    self._ids[registration.name] = node
                    self._missing.discard(registration.name)

    def first_weights(self, client: int, wait: float) -> Tensors:
        """The weights that this client's kind of model starts from, drawn from the run's seed."""
        ask = Letter({"ask": "first weights"})
        (number,) = self.grid.push_messages([self._query(ask, self.node(client))])
        ends = time.monotonic() + wait
        while time.monotonic() < ends:
            for reply in self.grid.pull_messages([number]):
                return dict(_held(self._read(reply)).tensors)
            self._sleep(self._poll)
        name = self.registrations[client].name
        raise PotluckError(f"Node {name!r} sent no first weights within engine.wait = {wait:g} seconds.")

    def _introduced(self) -> Iterable[tuple[int, Registration]]:
        """Ask nodes that were not asked yet, and give those that have answered since."""
        known = {*self._asked, *self._ids.values()}
        new = [node for node in self.grid.get_node_ids() if node not in known]
        ask = Letter({"ask": "registration"})
        numbers = self.grid.push_messages([self._query(ask, node) for node in new]) if new else []
        self._asked.update({node: number for node, number in zip(new, numbers, strict=True) if number})
        replies = self.grid.pull_messages(list(self._asked.values())) if self._asked else []
        nodes = {number: node for node, number in self._asked.items()}
        for reply in replies:
            node = nodes[reply.metadata.reply_to_message_id]
            del self._asked[node]
            if not reply.has_error() or self.registrations == []:  # a stranger's trouble is not the run's
                yield node, self._registration(reply)

    def _registration(self, reply: Message) -> Registration:
        letter = self._read(reply)
        try:
            return Registration(**letter.facts["registration"])
        except (KeyError, TypeError) as error:
            raise PayloadError(f"A node's registration could not be read: {error}.") from None

    def _read(self, reply: Message) -> Letter:
        if reply.has_error():
            raise PotluckError(f"A node could not take part: {reply.error.reason}")
        letter = record.from_record(reply.content, self.limit)
        if "refusal" in letter.facts:
            raise PotluckError(text(letter.facts["refusal"], "a refusal"))
        return letter

    def _query(self, letter: Letter, node: int) -> Message:
        return Message(record.to_record(self.assignment.on(letter)), node, "query")


def _held(letter: Letter) -> Flat:
    if letter.state is None:
        raise PayloadError("A node's answer holds no weights.")
    return letter.state


def natural(name: str) -> tuple[str, int]:
    """client-2 before client-10: the text, then the number at its end."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
