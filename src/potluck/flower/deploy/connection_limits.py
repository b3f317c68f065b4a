"""Limits of the fleet proxy: connections in total and per address, and how long a connection may be without a request.

They are enforced where connections are accepted, before TLS: a connection that never says a word counts from its first
packet and is closed when its time is over.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Self

from potluck.core.errors import PotluckError

MEGABYTE = 1 << 20
SMALL_BODY = 64 << 10
"""Bytes of a body that is never refused for what others have sent: heartbeats, and requests for messages."""


@dataclass(frozen=True)
class ProxyLimits:
    """What one node, one address and all together may take of the proxy."""

    body_mb: float = 16.0
    """Megabytes of one request; Flower's nodes send pieces of 5 MB."""
    body_seconds: float = 180.0
    """Seconds in which a request's body must be complete, as Flower's server allows for a piece."""
    header_seconds: float = 20.0
    """Seconds without a request after which a new connection is closed; TLS and the request's header are within."""
    idle_seconds: float = 75.0
    """Seconds between two requests of a connection, and between two pieces of a body or an answer."""
    connections: float = 1024
    """Connections at once."""
    per_address: float = 128
    """Connections of one address at once."""
    buffered_mb: float = 256.0
    """Megabytes of unfinished bodies together; above, requests are answered 503, and nodes try again."""
    address_mb: float = 64.0
    """Megabytes of unfinished bodies of one address; above, its requests are answered 503."""
    body_rate: float = 20.0
    """Kilobytes per second that a body must bring in every `rate_seconds`."""
    rate_seconds: float = 15.0
    """Seconds over which the rate of a body is measured."""

    @classmethod
    def parse(cls, texts: list[str]) -> Self:
        """Read `name=value` texts."""
        names, values = [each.name for each in fields(cls)], dict[str, float]()
        for text in texts:
            name, _, number = text.partition("=")
            try:
                values[name] = float(number)
            except ValueError:
                values[name] = 0.0
            if name not in names or not 0 < values[name] < float("inf"):
                raise PotluckError(
                    f"--limit {text!r} is not valid; write NAME=NUMBER above 0, with one of: {', '.join(names)}."
                )
        return cls(**values)

    def texts(self) -> list[str]:
        """Return the limits that differ from the defaults, as `parse` reads them."""
        default = type(self)()
        return [
            f"{each.name}={getattr(self, each.name):g}"
            for each in fields(self)
            if getattr(self, each.name) != getattr(default, each.name)
        ]


Address = tuple[str, int]


class Connections:
    """The open connections by address and port, and what each is doing."""

    def __init__(self, limits: ProxyLimits, now: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._now = limits, now
        self._open: dict[Address, _Connection] = {}
        self._by_host: Counter[str] = Counter()
        self.buffered: Counter[str] = Counter()
        """Bytes of unfinished bodies by address."""

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, accepted: socket.socket, address: Address) -> socket.socket | None:
        """Return the connection, counted until it is closed; None where there are too many."""
        host = address[0]
        full = len(self._open) >= self.limits.connections or self._by_host[host] >= self.limits.per_address
        if full:
            with suppress(OSError):
                accepted.close()
            return None
        counted = _Connection(accepted, lambda: self._release(address), self._now())
        self._open[address] = counted
        self._by_host[host] += 1
        return counted

    def begin(self, address: Address) -> None:
        """Note that a request's header is complete."""
        if connection := self._open.get(address):
            connection.requests, connection.served = connection.requests + 1, True

    def end(self, address: Address) -> None:
        """Note that a request was answered."""
        if connection := self._open.get(address):
            connection.requests, connection.since = connection.requests - 1, self._now()

    def buffer(self, host: str, size: int) -> bool:
        """Count bytes of an unfinished body, unless they are too many with the others of its address or of all."""
        address_total = self.buffered[host] + size
        total = self.buffered.total() + size
        if address_total > self.limits.address_mb * MEGABYTE or total > self.limits.buffered_mb * MEGABYTE:
            return False
        self.buffered[host] = address_total
        return True

    def release(self, host: str, size: int) -> None:
        """Count bytes of a body no more."""
        self.buffered[host] -= size
        if not self.buffered[host]:
            del self.buffered[host]

    def close_idle(self) -> None:
        """Close connections that have been without a request for too long."""
        now = self._now()
        for connection in list(self._open.values()):
            limit = self.limits.idle_seconds if connection.served else self.limits.header_seconds
            if not connection.requests and now - connection.since > limit:
                connection.cut()

    def _release(self, address: Address) -> None:
        if self._open.pop(address, None) is not None:
            self._by_host[address[0]] -= 1
            self._by_host += Counter()  # drops addresses without connections


class _Connection(socket.socket):
    """An accepted connection that says when it is closed."""

    def __init__(self, accepted: socket.socket, released: Callable[[], None], since: float) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self._released, self.since = released, since
        self.requests, self.served = 0, False

    def close(self) -> None:
        """Close, and count no more."""
        super().close()
        self._released()

    def cut(self) -> None:
        """End the connection; its transport notices and closes it."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


class LimitedListener(socket.socket):
    """A listening socket that accepts as many connections as the limits allow, and closes others at once."""

    connections: Connections

    @classmethod
    def bound(cls, host: str, port: int, connections: Connections) -> Self:
        """Listen on an interface."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = cls(family, socket.SOCK_STREAM)
        listener.connections = connections
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        return listener

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that is within the limits; raises BlockingIOError if there is none."""
        while True:
            accepted, address = super().accept()
            counted = self.connections.admit(accepted, (str(address[0]), int(address[1])))
            if counted is not None:
                return counted, address
