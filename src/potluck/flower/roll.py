"""Which node is which client: names are the nodes' own and fixed, Flower's node ids are not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from potluck.core.errors import PotluckError, plain
from potluck.core.payload import PayloadError, Tensors
from potluck.core.tree import Flat
from potluck.flower import record
from potluck.flower.node.assignment import Assignment
from potluck.flower.node.registration import Registration
from potluck.flower.patient import PatientGrid
from potluck.loop.letter import Letter, text

SILENT = 60.0
"""Seconds after which a node that said nothing of itself is asked once more."""


class Roll:
    """The nodes of a run by name. Asking a node for its registration is the first message it gets."""

    def __init__(
        self,
        grid: Grid | PatientGrid,
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
        self._asked: dict[int, list[str]] = {}
        self._again: dict[int, float] = {}
        self._missing: set[str] = set()
        self._refused: dict[int, str] = {}
        self._garbled: dict[int, str] = {}

    def gather(self, count: int, wait: float) -> list[Registration]:
        """Wait until `count` nodes have introduced themselves; they become the clients, in the order of names.

        A node that cannot take part is left out, whatever it says. Where so many have spoken that the run waits for
        just those, it ends with what they said; otherwise others may still come.
        """
        found: dict[str, Registration] = {}
        ends = time.monotonic() + wait
        while len(found) < count:
            for node, registration in self._introduced():
                if registration.name in found and self._ids[registration.name] != node:
                    self._leave_out(
                        node,
                        f"Two nodes are called {registration.name!r}; give each its own name.",
                        self._refused,
                    )
                else:
                    found[registration.name], self._ids[registration.name] = registration, node
            if len(found) < count:
                spoken = len(found) + len(self._refused)
                if self._refused and spoken >= count and not self._asked:
                    raise PotluckError(next(iter(self._refused.values())))
                if time.monotonic() > ends:
                    raise PotluckError(self._too_few(len(found), count, wait))
                self._sleep(self._poll)
        self.registrations = [found[name] for name in sorted(found, key=natural)]
        return self.registrations

    def _too_few(self, found: int, count: int, wait: float) -> str:
        first = next(iter((self._refused | self._garbled).values()), "")
        return (
            f"{found} of {count} nodes answered within engine.wait = {wait:g} seconds; start the "
            f"others (potluck node start) or raise engine.wait.{' One was left out: ' if first else ''}{first}"
        )

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
        ask, name = Letter({"ask": "first weights"}), self.registrations[client].name
        (number,) = self.grid.push_messages([self._query(ask, self.node(client))])
        ends = time.monotonic() + wait
        while time.monotonic() < ends:
            for _, reply in record.pulled(self.grid, [number]):
                try:
                    return dict(_held(self._read(reply)).tensors)
                except PotluckError as error:
                    raise PotluckError(f"Node {name!r} sent no first weights: {error}") from None
            self._sleep(self._poll)
        raise PotluckError(f"Node {name!r} sent no first weights within engine.wait = {wait:g} seconds.")

    def _introduced(self) -> Iterable[tuple[int, Registration]]:
        """Ask nodes that were not asked yet, and give those that have answered since and may take part."""
        known = {*self._asked, *self._ids.values(), *self._garbled}
        if not self.registrations:
            known |= set(self._refused)  # later on, who comes back may have been mended
        names = {info.node_id: info.name for info in self.grid.get_nodes()}
        self._ask([node for node in names if node not in known or self._silent(node)])
        nodes = {number: node for node, numbers in self._asked.items() for number in numbers}
        for number, reply in record.pulled(self.grid, list(nodes)):
            node = nodes[number]
            if self._asked.pop(node, None) is None:
                continue  # it had been asked twice
            try:
                registration = Registration.read(self._read(reply), self.limit)
                _check_name(names.get(node, ""), registration.name)
            except PayloadError as error:  # nobody waits for what makes no sense
                self._leave_out(node, f"A node's registration could not be read: {error}", self._garbled)
            except PotluckError as error:
                self._leave_out(node, str(error), self._refused)
            else:
                yield node, registration

    def _ask(self, nodes: list[int]) -> None:
        """Ask for registrations. Who was silent is asked again, each time later: the question may have got lost."""
        ask = Letter({"ask": "registration"})
        numbers = self.grid.push_messages([self._query(ask, node) for node in nodes]) if nodes else []
        for node, number in zip(nodes, numbers, strict=True):
            if number:
                self._asked.setdefault(node, []).append(number)
                self._again[node] = time.monotonic() + SILENT * 2 ** (len(self._asked[node]) - 1)

    def _silent(self, node: int) -> bool:
        return node in self._asked and time.monotonic() > self._again[node]

    def _leave_out(self, node: int, why: str, among: dict[int, str]) -> None:
        """A node's trouble is not the run's, but whoever looks after the run may want to know."""
        before, among[node] = among.get(node), plain(why)
        if before != among[node]:
            print(f"Node {node} is left out: {among[node]}", flush=True)

    def _read(self, reply: Message | None) -> Letter:
        if reply is None:
            raise PayloadError("The message could not be read.")
        if reply.has_error():
            raise PotluckError(f"A node could not take part: {record.reason(reply.error)}")
        letter = record.read(reply, self.limit)
        if "refusal" in letter.facts:
            raise PotluckError(text(letter.facts["refusal"], "a refusal"))
        return letter

    def _query(self, letter: Letter, node: int) -> Message:
        return Message(record.to_record(self.assignment.on(letter)), node, "query")


def _check_name(bound: str, said: str) -> None:
    """A key that was registered under a name takes part under no other."""
    if bound and bound != said:
        raise PotluckError(
            f"The node whose key is registered as {bound!r} calls itself {said!r}; put its registered name into its "
            "node.toml."
        )


def _held(letter: Letter) -> Flat:
    if letter.state is None:
        raise PayloadError("A node's answer holds no weights.")
    return letter.state


def natural(name: str) -> tuple[str, int]:
    """client-2 before client-10: the text, then the number at its end."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
