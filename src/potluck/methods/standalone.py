"""Standalone: every client trains alone. The reference that federation has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from potluck.core import Client, ClientInfo, Context, Method, Nothing, Update


@dataclass
class Standalone(Method[None, Nothing, Nothing]):
    """No exchange: local training only, with the same data, steps and schedule as the other methods."""

    name: ClassVar[str] = "standalone"
    summary: ClassVar[str] = "no federation: each client trains on its own data"
    no_average: ClassVar[str] = "exchanges nothing"

    def init_server(self, ctx: Context) -> None:
        """The server holds nothing."""

    def broadcast(self, state: None, client: ClientInfo, ctx: Context) -> Nothing:
        """Nothing is sent."""
        return Nothing()

    def client(self, me: Client, message: Nothing) -> Nothing:
        """Local epochs on the cross-entropy."""
        me.fit()
        return Nothing()

    def server(self, state: None, updates: Sequence[Update[Nothing]], ctx: Context) -> None:
        """Nothing to learn."""
