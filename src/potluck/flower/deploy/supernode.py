"""Flower's SuperNode under watch: `python -m potluck.flower.deploy.supernode` with the flags of `flower-supernode`.

Flower's own program can lose its server and stay: its main loop returns while a thread of it lives on, or the thread
that tells the server of this node dies. Then nobody starts it again, and the node is gone for good. This one ends, with
a sentence in the log, as soon as the server has not heard it for a while; `potluck node start` starts it again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

UNHEARD = 75.0
"""Seconds without an answer from the server; it takes a node for gone after 60."""

LOST = 75
"""Exit code of a SuperNode that lost its server."""


class Watch:
    """Notes when the server last answered; `lost` says since how many seconds it has not, if that is too long."""

    def __init__(self, patience: float = UNHEARD, now: Callable[[], float] = time.monotonic) -> None:
        self.patience, self.now = patience, now
        self.heard: float | None = None

    def note(self) -> None:
        """The server has answered."""
        self.heard = self.now()

    def lost(self) -> float | None:
        """Seconds of silence after the first answer, where patience is over."""
        silence = 0.0 if self.heard is None else self.now() - self.heard
        return silence if silence > self.patience else None


def main() -> NoReturn:
    """Run the SuperNode until it, or its connection, ends."""
    from flwr.supernode import fleet_http_connection as connection
    from flwr.supernode.cli.flower_supernode import flower_supernode

    watch = Watch()
    connection.FleetHttpClient = watched(connection.FleetHttpClient, watch)
    threading.Thread(target=_wait, args=(watch, os.getppid()), daemon=True).start()
    flower_supernode()
    leave("the SuperNode gave its connection up")


def watched(client: type[Any], watch: Watch) -> type[Any]:
    """Flower's client for the server, which notes what is answered."""

    class Watched(client):  # type: ignore[misc]
        def ActivateNode(self, request: Any) -> Any:
            return self._noted(super().ActivateNode(request))

        def SendNodeHeartbeat(self, request: Any) -> Any:
            return self._noted(super().SendNodeHeartbeat(request))

        def _noted(self, response: Any) -> Any:
            watch.note()
            return response

    return Watched


def _wait(watch: Watch, supervisor: int) -> None:
    while (silence := watch.lost()) is None:
        if os.getppid() != supervisor:
            leave("whoever started this node is gone")
        time.sleep(1)
    leave(f"the server has not answered for {silence:.0f} seconds")


def leave(reason: str) -> NoReturn:
    """End at once: what is left of Flower's program may wait for ever."""
    print(f"ERROR: {reason}", flush=True)
    os._exit(LOST)


if __name__ == "__main__":
    main()
