"""Answer the messages of this machine's nodes: `python -m potluck.flower.deploy.node_worker`.

The program imports Potluck once and forks processes that stay: each keeps data, models and methods of its nodes in
memory from message to message. A process is replaced after a failure, when a node's file or code changed, after
`--messages` messages, and when it has grown. A node's state on disk stays the truth (`flower.node.journal`).
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
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any, NoReturn

MAX_MESSAGES = 1000
"""Messages that one process answers."""
MAX_GROWTH = 512 << 20
"""Bytes by which a process may grow beyond twice its size after the first message."""
CHECK_SECONDS = 1.0
"""Seconds between two looks at connections that ended and at the supervisor."""


@dataclass
class Process:
    """A forked process that answers messages, one at a time."""

    pid: int
    connection: Connection[Any, Any]
    busy: Link | None = None

    def end(self) -> None:
        """Kill the process and wait for it."""
        self.connection.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


@dataclass
class Slot:
    """The place of one process; it is forked when first needed."""

    process: Process | None = None
    files: tuple[Any, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether a message is being answered."""
        return self.process is not None and self.process.busy is not None

    def clear(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.end()
            self.process = None


@dataclass(eq=False)
class Link:
    """The connection to one node's SuperNode."""

    port: int
    secret: bytes
    slot: Slot
    connection: Connection[Any, Any] | None = None

    def connect(self) -> None:
        """Connect, if the SuperNode listens."""
        with suppress(Exception):  # it is being started
            self.connection = Client(("127.0.0.1", self.port), authkey=self.secret)

    def drop(self) -> None:
        """Close the connection: the SuperNode hands a message that was not answered over again."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


@dataclass
class Dispatcher:
    """Hands messages of SuperNodes to processes; a node's messages always go to the same one."""

    links: list[Link] = field(default_factory=list)
    messages: int = MAX_MESSAGES
    """After how many messages a process is replaced."""

    def step(self) -> None:
        """Wait for something to happen, and do it."""
        for link in self.links:
            if link.connection is None:
                link.connect()
        ready: dict[Any, Link] = {}
        for link in self.links:
            if link.connection is not None and not link.slot.busy:
                ready[link.connection] = link
        busy: dict[Any, Slot] = {}
        for slot in self._slots():
            if slot.process is not None and slot.busy:
                busy[slot.process.connection] = slot
        for connection in wait([*ready, *busy], CHECK_SECONDS):
            if connection in busy:
                self._finish(busy[connection])
            elif not ready[connection].slot.busy:
                self._begin(ready[connection])

    def close(self) -> None:
        """End all processes."""
        for slot in self._slots():
            slot.clear()

    def _slots(self) -> list[Slot]:
        return list({id(link.slot): link.slot for link in self.links}.values())

    def _begin(self, link: Link) -> None:
        slot = link.slot
        assert link.connection is not None
        try:
            header, data = link.connection.recv_bytes(), link.connection.recv_bytes()
        except (EOFError, OSError):
            link.drop()
            return
        files = fingerprint(json.loads(header))
        if files != slot.files:
            slot.clear()
            slot.files = files
        if slot.process is None:
            slot.process = fork(self.links, self.messages)
        slot.process.busy = link
        try:
            slot.process.connection.send_bytes(header)
            slot.process.connection.send_bytes(data)
        except OSError:
            self._lose(slot)

    def _finish(self, slot: Slot) -> None:
        process = slot.process
        assert process is not None
        assert process.busy is not None
        link = process.busy
        try:
            header, data = process.connection.recv_bytes(), process.connection.recv_bytes()
        except (EOFError, OSError):
            self._lose(slot)
            return
        process.busy = None
        if json.loads(header)["last"]:
            slot.clear()
        if link.connection is not None:
            try:
                link.connection.send_bytes(header)
                link.connection.send_bytes(data)
            except OSError:
                link.drop()

    def _lose(self, slot: Slot) -> None:
        """Handle a process that ended with a message."""
        assert slot.process is not None
        link = slot.process.busy
        slot.clear()
        if link is not None:
            link.drop()


def fingerprint(config: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells whether a node's file, or code beside it, has changed."""
    path = config.get("node-file")
    if not path:
        return ()
    files = [Path(path), *sorted(Path(path).parent.glob("*.py"))]
    entries = []
    for file in files:
        with suppress(OSError):
            status = file.stat()
            entries.append((str(file), status.st_mtime_ns, status.st_size))
    return tuple(entries)


def fork(links: list[Link], messages: int) -> Process:
    """Start a process that answers messages with what this one has imported."""
    parent_end, child_end = Pipe()
    flush_output()
    pid = os.fork()
    if pid:
        child_end.close()
        return Process(pid, parent_end)
    try:
        parent_end.close()
        for link in links:
            link.drop()
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        answer_messages(child_end, messages)
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(1)
    raise AssertionError


def answer_messages(connection: Connection[Any, Any], messages: int) -> NoReturn:
    """Answer until the dispatcher ends, or until this process should be replaced, at most so many messages."""
    from potluck.flower.node.host import NodeHost

    host, first = NodeHost(), 0
    for count in range(1, messages + 1):
        try:
            config, data = json.loads(connection.recv_bytes()), connection.recv_bytes()
        except EOFError:
            os._exit(0)
        reply, error = b"", ""
        try:
            reply = host.answer(data or None, config)
        except Exception as failure:
            traceback.print_exc()
            error = f"{type(failure).__name__} in the node's worker; its log says more"
        size = resident_bytes()
        first = first or size
        last = bool(error) or host.failed or count == messages or size > 2 * first + MAX_GROWTH
        connection.send_bytes(json.dumps({"error": error, "last": last}).encode())
        connection.send_bytes(reply)
        flush_output()
    os._exit(0)


def resident_bytes() -> int:
    """Return the memory of this process; 0 where there is no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def flush_output() -> None:
    """Write what was printed to the log; on a full disk it is written later."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def main() -> None:
    """Answer messages until the program that started this one is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ports", required=True, help="where the SuperNodes listen, separated by commas")
    parser.add_argument("--secret", required=True, type=Path, help="shared with the SuperNodes")
    parser.add_argument("--processes", type=int, default=1, help="how many processes answer messages")
    parser.add_argument(
        "--messages", type=int, default=MAX_MESSAGES, help="messages after which a process is replaced"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s", stream=sys.stdout)
    import potluck.flower.node.host  # noqa: F401 - imported once, for all forks

    slots = [Slot() for _ in range(options.processes)]
    secret, ports = options.secret.read_bytes(), options.ports.split(",")
    links = [Link(int(port), secret, slots[index % len(slots)]) for index, port in enumerate(ports)]
    dispatcher, supervisor = Dispatcher(links, options.messages), os.getppid()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        while os.getppid() == supervisor:
            dispatcher.step()
    finally:
        dispatcher.close()


if __name__ == "__main__":
    main()
