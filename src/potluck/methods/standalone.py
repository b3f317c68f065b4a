"""Standalone: every client trains alone. The reference that federation has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from potluck.method import Client, ClientInfo, Context, EmptyPayload, Method, Update


@dataclass
class Standalone(Method[None, EmptyPayload, EmptyPayload]):
    """No exchange: local training only, with the same data, steps and schedule as the other methods."""

    name: ClassVar[str] = "standalone"
    summary: ClassVar[str] = "no federation: each client trains on its own data"

    def init_server(self, ctx: Context) -> None:
        """Keep no state."""

    def broadcast(self, state: None, client: ClientInfo, ctx: Context) -> EmptyPayload:
        """Send nothing."""
        return EmptyPayload()

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        """Train the local epochs on the cross-entropy."""
        me.fit()
        return EmptyPayload()

    def server(self, state: None, updates: Sequence[Update[EmptyPayload]], ctx: Context) -> None:
        """Learn nothing."""
