"""A grid that waits for a server which is away for a while, where Flower's own gives up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import httpx
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from potluck.core.errors import PotluckError

Result = TypeVar("Result")

MAX_OUTAGE = 900.0
"""Seconds that a server may be away."""
CONNECTION_LOST = "The connection to the server was lost"
"""How the sentence of a run begins that can go on from its checkpoint."""
CONNECTION_ERRORS = (httpx.HTTPError, RunNotRunningException)
"""What is wrong with the connection, or with what the server believes of this run, and not with the run itself."""


class ConnectionLost(PotluckError):
    """The server is away for good, or takes this run for over."""


class RetryingGrid:
    """The calls that a run makes, tried again while the server does not answer.

    A message that is sent twice does no harm, for a node gives one answer to one job; an answer that got lost on its
    way here is asked for again when it is overdue.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        max_outage: float = MAX_OUTAGE,
        retry_interval: float = 2.0,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner, self._max_outage, self._retry_interval = grid, max_outage, retry_interval
        self._sleep, self._now = sleep, now

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes that are connected."""
        return self.retry(lambda: self.inner.get_nodes())

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        """Send messages; gives their numbers."""
        listed = list(messages)
        return self.retry(lambda: self.inner.push_messages(listed))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        """Return the answers that are there."""
        listed = list(message_ids)
        return self.retry(lambda: self.inner.pull_messages(listed))

    def retry(self, call: Callable[[], Result]) -> Result:
        """Make a call, again and again while the server does not answer."""
        ends = self._now() + self._max_outage
        while True:
            try:
                return call()
            except httpx.TransportError as error:
                if self._now() > ends:
                    raise ConnectionLost(
                        f"{CONNECTION_LOST}: {type(error).__name__} for {self._max_outage:g} seconds."
                    ) from None
                self._sleep(self._retry_interval)
