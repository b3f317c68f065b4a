"""A method of a user's own whose client 1 always raises."""

from __future__ import annotations

from potluck.core.client import Client
from potluck.core.payload import Nothing
from potluck.methods.standalone import Standalone


class Troubled(Standalone):
    """Standalone training that finds no room on one client."""

    def client(self, me: Client, message: Nothing) -> Nothing:
        if me.info.name == "client-1":
            raise RuntimeError(f"no room for {me.info.name}")
        return super().client(me, message)
