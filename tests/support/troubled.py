"""A user's method whose client 1 always raises."""

from __future__ import annotations

from potluck.core.client import Client
from potluck.core.payload import EmptyPayload
from potluck.methods.standalone import Standalone


class Troubled(Standalone):
    """Standalone training that finds no room on one client."""

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        if me.info.name == "client-1":
            raise RuntimeError(f"no room for {me.info.name}")
        return super().client(me, message)
