"""A node's connection to the server: `python -m potluck.flower.deploy.supernode`.

It speaks Flower's fleet protocol as Flower's SuperNode does, with the node's key and heartbeats. It hands each message
to the node's worker (`node_worker`) and returns the answer. The app that came with a run is neither downloaded nor run.
The program ends, with a sentence in the log, when the server has not answered for a while; `potluck node start` starts
it again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from potluck.flower.content import content_bytes, to_content
from potluck.flower.deploy.clock import clock_problem
from potluck.flower.polling import Polling

log = logging.getLogger(__name__)

MAX_SILENCE = 75.0
"""Seconds without an answer from the server; it considers a node gone after 60."""
SUSPENDED = 10.0
"""Seconds between two checks, each due after one, that show that this process was stopped meanwhile."""
DISCONNECTED = 75
"""Exit code of a SuperNode that lost its server."""
POLLING = (0.1, 3.0)
"""Shortest and longest interval in seconds between two requests for a message."""
PULL_BACKOFF = 0.05
"""Seconds until an object is asked for again that the server is still receiving."""
MAX_ATTEMPTS = 3
"""How often a message is handed to a worker that ends while it has the message."""
WORKER_TIMEOUT = 120.0
"""Seconds to wait for a worker that is being started again."""


class ServerWatch:
    """Notes when the server last answered."""

    def __init__(self, max_silence: float = MAX_SILENCE, now: Callable[[], float] = time.monotonic) -> None:
        self.max_silence, self.now = max_silence, now
        self.answered_at: float | None = None
        self._checked_at = now()

    def record_answer(self) -> None:
        """Note that the server has answered."""
        self.answered_at = self.now()

    def lost(self) -> float | None:
        """Return the seconds since the last answer if they exceed the limit, which they never do before the first."""
        gap, self._checked_at = self.now() - self._checked_at, self.now()
        if gap > SUSPENDED and self.answered_at is not None:
            self.answered_at += gap  # this process was stopped: nothing could be received
        silence = 0.0 if self.answered_at is None else self.now() - self.answered_at
        return silence if silence > self.max_silence else None


def watched_client(client: type[Any], watch: ServerWatch) -> type[Any]:
    """Extend Flower's fleet client to note every answer to an activation or a heartbeat."""

    class Watched(client):  # type: ignore[misc]
        def ActivateNode(self, request: Any) -> Any:
            return self._noted(super().ActivateNode(request))

        def SendNodeHeartbeat(self, request: Any) -> Any:
            return self._noted(super().SendNodeHeartbeat(request))

        def _noted(self, response: Any) -> Any:
            watch.record_answer()
            return response

    return Watched


class Fleet(NamedTuple):
    """The calls of Flower's fleet connection, in the order in which it yields them."""

    node_id: int
    receive: Callable[[], Any]
    send: Callable[[Any, Any, float], tuple[set[str], str]]
    get_run: Callable[[int], Any]
    get_fab: Callable[[str, int], Any]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


class WorkerLink:
    """The connection to the node's worker, which connects to a port of the loopback interface with a shared secret."""

    def __init__(self, port: int, secret: bytes, config: dict[str, Any]) -> None:
        self._listener = Listener(("127.0.0.1", port), authkey=secret)
        self._header = json.dumps(config).encode()
        self._changed = threading.Condition()
        self._connection: Connection[Any, Any] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """The port that the worker connects to."""
        return int(self._listener.address[1])

    def ask(self, data: bytes | None) -> tuple[dict[str, Any], bytes]:
        """Hand over a message (None: one of another app); returns the header and the bytes of the answer.

        A worker that ends meanwhile gets the message again when it is back: its journal gives one answer per job.
        """
        for _ in range(MAX_ATTEMPTS):
            connection = self._wait()
            if connection is None:
                break
            try:
                connection.send_bytes(self._header)
                connection.send_bytes(b"" if data is None else data)
                return json.loads(connection.recv_bytes()), connection.recv_bytes()
            except (EOFError, OSError):
                log.warning("The worker ended with a message; it gets it again.")
                self._drop(connection)
        return {"error": "the node's worker ended with this message", "crashed": True}, b""

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except Exception as error:  # a process without the secret, or a worker that ended at once
                log.info("A connection was not accepted (%s).", error or type(error).__name__)
                continue
            with self._changed:
                self._connection = connection
                self._changed.notify_all()

    def _wait(self) -> Connection[Any, Any] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._connection is not None, WORKER_TIMEOUT)
            return self._connection

    def _drop(self, connection: Connection[Any, Any]) -> None:
        connection.close()
        with self._changed:
            if self._connection is connection:
                self._connection = None


def serve(fleet: Fleet, worker: WorkerLink, polling: Polling) -> NoReturn:
    """Answer the server's messages, one after another."""
    from flwr.supercore.run import RunNotRunningException

    while True:
        try:
            received = fleet.receive()
            if received is None:
                polling.wait()
                continue
            answer(fleet, worker, *received)
        except RunNotRunningException:
            log.info("The run has ended; its message is ignored.")
        except Exception:
            log.exception("A message could not be answered.")
            polling.wait()
            continue
        polling.reset()


def answer(fleet: Fleet, worker: WorkerLink, message: Any, tree: Any) -> None:
    """Fetch a message's content, let the worker answer it, and send the reply."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

    started, run = time.monotonic(), message.metadata.run_id
    received = pull_and_inflate_object_from_tree(
        tree,
        partial(fleet.pull_object, run),
        partial(fleet.confirm, run),
        return_type=Message,
        initial_backoff=PULL_BACKOFF,
    )
    received.metadata.__dict__["_message_id"] = tree.object_id
    header, data = worker.ask(content_bytes(received.content) if received.has_content() else None)
    if reason := header.get("error"):
        crashed = header.get("crashed")
        code = ErrorCode.CLIENT_APP_CRASHED if crashed else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        reply = Message(Error(code, str(reason)), reply_to=received)
    else:
        reply = Message(to_content(data), reply_to=received)
    send(fleet, reply, time.monotonic() - started)


def send(fleet: Fleet, reply: Any, seconds: float) -> None:
    """Send a reply and those of its objects that the server does not have."""
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import push_objects

    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        objects = get_all_nested_objects(reply)
        missing, session = fleet.send(reply, get_object_tree(reply), seconds)
        push = partial(fleet.push_object, reply.metadata.run_id, session)
        push_objects(objects, push, object_ids_to_push=missing)


def main() -> NoReturn:
    """Run until the connection ends."""
    from flwr.supernode import fleet_http_connection

    connection: Any = fleet_http_connection
    options = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    watch = ServerWatch()
    connection.FleetHttpClient = watched_client(connection.FleetHttpClient, watch)
    threading.Thread(target=_watch, args=(watch, os.getppid()), daemon=True).start()
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(0)
    )  # the server is told that the node leaves
    if options.ca is not None and (problem := clock_problem(options.server, options.ca)):
        exit_disconnected(problem)
    worker = WorkerLink(options.port, options.secret.read_bytes(), json.loads(options.config))
    try:
        with connection.http_request_response(
            options.server,
            options.ca is None,
            options.ca and options.ca.read_bytes(),
            options.key and _key_pair(options.key),
        ) as calls:
            fleet = Fleet(*calls)
            log.info("Connected to %s as node %s.", options.server, fleet.node_id)
            serve(fleet, worker, Polling(*POLLING))
    except (SystemExit, KeyboardInterrupt) as end:
        sys.stdout.flush()
        os._exit(end.code if isinstance(end, SystemExit) and isinstance(end.code, int) else 0)
    exit_disconnected("the connection to the server was given up")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, help="HOST:PORT")
    parser.add_argument(
        "--port", required=True, type=int, help="where the worker connects, on the loopback interface"
    )
    parser.add_argument("--secret", required=True, type=Path, help="shared with the worker")
    parser.add_argument("--config", required=True, help="the node's configuration as JSON")
    parser.add_argument("--ca", type=Path, help="the server's ca.crt; without it there is no TLS")
    parser.add_argument("--key", type=Path, help="the node's private key")
    return parser.parse_args()


def _key_pair(path: Path) -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    private: Any = load_ssh_private_key(path.read_bytes(), None)
    return private, private.public_key()


def _watch(watch: ServerWatch, supervisor: int) -> None:
    while (silence := watch.lost()) is None:
        if os.getppid() != supervisor:
            exit_disconnected("the program that started this node is gone")
        time.sleep(1)
    exit_disconnected(f"the server has not answered for {silence:.0f} seconds")


def exit_disconnected(reason: str) -> NoReturn:
    """End at once: threads of Flower may wait without end."""
    log.error("%s", reason)
    sys.stdout.flush()
    os._exit(DISCONNECTED)


if __name__ == "__main__":
    main()
