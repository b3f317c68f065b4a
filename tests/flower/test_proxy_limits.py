"""The fleet proxy as a process of its own, flooded: what it refuses never reaches the server behind it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from potluck.cli import app
from potluck.core.errors import PotluckError
from potluck.flower.deploy.connection_limits import SMALL_BODY, Connections, LimitedListener, ProxyLimits
from potluck.flower.deploy.fleet_proxy import Body, Refused
from potluck.flower.deploy.processes import free_ports

pytestmark = pytest.mark.timeout(120)
MEGABYTE = 1 << 20


class Server(ThreadingHTTPServer):
    """A server that counts what reaches it."""

    requests = received = 0


class Counting(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.requests, self.server.received = (
            self.server.requests + 1,
            self.server.received + len(data),
        )
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d" % len(data))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


LIMITS = ProxyLimits(body_mb=4, body_seconds=4, header_seconds=3, per_address=20, buffered_mb=8)


@dataclass
class Proxy:
    """A proxy with small limits: its port, the server behind it, and its process."""

    port: int
    server: Server
    process: int


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with started(LIMITS) as proxy:
        yield proxy


@contextmanager
def started(limits: ProxyLimits) -> Iterator[Proxy]:
    (port,) = free_ports(1)
    server = Server(("127.0.0.1", 0), Counting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [sys.executable, "-m", "potluck.flower.deploy.fleet_proxy", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--server", f"127.0.0.1:{server.server_address[1]}"]
    command += [word for text in limits.texts() for word in ("--limit", text)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment)
    try:
        wait_for(lambda: answer(port, b"POST /other HTTP/1.1\r\nhost: x\r\n\r\n").startswith(b"HTTP/1.1 403"))
        yield Proxy(port, server, process.pid)
    finally:
        process.terminate()
        process.wait(30)
        server.shutdown()
        server.server_close()


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def opened(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def answer(port: int, data: bytes, source: str = "127.0.0.1") -> bytes:
    """What comes back first, or nothing where there is no connection."""
    with suppress(OSError), opened(port, source) as connection:
        connection.sendall(data)
        return connection.recv(200)
    return b""


def closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection."""
    connection.settimeout(0.01)
    try:
        return connection.recv(1000) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


POST = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


def chunk(size: int) -> bytes:
    return b"%x\r\n" % size + b"x" * size + b"\r\n"


def flood(port: int, megabytes: int) -> bytes:
    """Send a chunked body without an end; returns what the proxy answers when it stops listening."""
    sent = 0
    with opened(port) as connection:
        connection.sendall(CHUNKED)
        try:
            while sent < megabytes * MEGABYTE:
                connection.sendall(chunk(MEGABYTE))
                sent += MEGABYTE
        except OSError:
            pass
        with suppress(OSError):
            return connection.recv(200) or b"closed"
    return b"closed"


def complete(size: int) -> bytes:
    return CHUNKED + chunk(size) + b"0\r\n\r\n"


def test_bodies_are_bounded_whether_they_say_their_length_or_not(proxy: Proxy) -> None:
    requests = proxy.server.requests
    assert answer(proxy.port, complete(3 * MEGABYTE)).startswith(b"HTTP/1.1 200")
    assert proxy.server.received == 3 * MEGABYTE
    before = resident(proxy.process)

    declared = POST + b"content-length: 3000000000\r\n\r\n"
    assert answer(proxy.port, declared).startswith(b"HTTP/1.1 413")
    floods = [threading.Thread(target=flood, args=(proxy.port, 200)) for _ in range(4)]
    for each in floods:
        each.start()
    for each in floods:
        each.join()

    assert proxy.server.requests == requests + 1
    if sys.platform == "linux":
        assert resident(proxy.process) - before < 64 * MEGABYTE
    assert answer(proxy.port, complete(1)).startswith(b"HTTP/1.1 200")


def test_unfinished_bodies_of_all_requests_together_are_bounded(proxy: Proxy) -> None:
    requests = proxy.server.requests
    with opened(proxy.port) as first, opened(proxy.port) as second:
        for slow in (first, second):
            slow.sendall(CHUNKED + chunk(7 * MEGABYTE // 2))
        time.sleep(0.5)
        assert answer(proxy.port, complete(2 * MEGABYTE)).startswith(b"HTTP/1.1 503")
    wait_for(lambda: answer(proxy.port, complete(2 * MEGABYTE)).startswith(b"HTTP/1.1 200"))
    assert proxy.server.requests == requests + 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address")
def test_an_address_that_holds_unfinished_bodies_starves_no_other() -> None:
    limits = ProxyLimits(body_mb=4, buffered_mb=32, address_mb=8, body_rate=1e-3)
    with started(limits) as proxy, ExitStack() as connections_held:
        before = resident(proxy.process)

        def refused_after_another_attack() -> bool:
            attacker = connections_held.enter_context(opened(proxy.port, "127.0.0.2"))
            with suppress(OSError):
                attacker.sendall(CHUNKED + chunk(7 * MEGABYTE // 2))
            return answer(proxy.port, complete(2 * MEGABYTE), "127.0.0.2").startswith(b"HTTP/1.1 503")

        wait_for(refused_after_another_attack)  # two are held, with 7 MB, as soon as both have arrived

        assert answer(proxy.port, complete(2 * MEGABYTE)).startswith(b"HTTP/1.1 200")
        assert answer(proxy.port, complete(60 << 10), "127.0.0.2").startswith(b"HTTP/1.1 200")
        assert (
            resident(proxy.process) - before < 24 * MEGABYTE
        )  # 7 held, 2 passed on, and buffers of TLS and HTTP


def test_a_body_below_the_rate_ends_before_its_deadline() -> None:
    limits = ProxyLimits(body_seconds=100, body_rate=50, rate_seconds=1)
    with started(limits) as proxy, opened(proxy.port) as slow, opened(proxy.port) as quick:
        began = time.monotonic()
        for connection in (slow, quick):
            connection.sendall(CHUNKED)
        slow.settimeout(0.02)
        response = b""
        while not response and time.monotonic() - began < 30:
            with suppress(TimeoutError):
                slow.sendall(chunk(1))
                response = slow.recv(1000)
            quick.sendall(chunk(100_000))
        assert response.startswith(b"HTTP/1.1 408")
        quick.settimeout(0.05)
        with pytest.raises(TimeoutError):
            quick.recv(1000)
        assert time.monotonic() - began < 30
        assert proxy.server.requests == 0


def test_small_bodies_count_for_nobody() -> None:
    connections = Connections(ProxyLimits(buffered_mb=4, address_mb=1))
    full, second_body = Body(connections, "a"), Body(connections, "b")
    full.add(bytes(MEGABYTE + SMALL_BODY))
    assert connections.buffered == {"a": MEGABYTE}
    small = Body(connections, "a")
    small.add(bytes(SMALL_BODY))
    with pytest.raises(Refused, match="too many requests at once"):
        small.add(b"x")
    second_body.add(bytes(MEGABYTE + SMALL_BODY))
    for body in (full, second_body, small):
        body.close()
    assert connections.buffered == {}


def test_a_trickled_body_ends_at_its_deadline_and_never_reaches_the_server(proxy: Proxy) -> None:
    requests, began = proxy.server.requests, time.monotonic()
    with opened(proxy.port) as slow, suppress(OSError):
        slow.sendall(CHUNKED)
        while time.monotonic() - began < 30 and not closed_or_answered(slow):
            slow.sendall(chunk(1))
            time.sleep(0.1)
    assert 3.0 < time.monotonic() - began < 20
    assert proxy.server.requests == requests


def closed_or_answered(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        data = connection.recv(1000)
    except TimeoutError:
        return False
    return data == b"" or data.startswith(b"HTTP/1.1 408")


def test_connections_without_a_request_are_closed_and_counted_per_address(proxy: Proxy) -> None:
    silent = [opened(proxy.port) for _ in range(20)]
    silent[0].sendall(POST)  # a header without an end
    surplus = opened(proxy.port)
    wait_for(lambda: closed(surplus))
    assert not any(closed(each) for each in silent[1:])
    wait_for(lambda: all(closed(each) for each in silent), 30)
    assert answer(proxy.port, complete(1)).startswith(b"HTTP/1.1 200")
    for each in [*silent, surplus]:
        each.close()
    if sys.platform == "linux":
        wait_for(lambda: len(list(Path(f"/proc/{proxy.process}/fd").iterdir())) < 20)


def test_one_address_does_not_take_the_places_of_others() -> None:
    connections = Connections(ProxyLimits(connections=3, per_address=2), now=lambda: 0.0)
    pairs = [socket.socketpair() for _ in range(5)]
    hosts = ["a", "a", "a", "b", "c"]
    admitted = [
        connections.admit(near, (host, index))
        for index, ((near, _), host) in enumerate(zip(pairs, hosts, strict=True))
    ]
    assert [each is not None for each in admitted] == [True, True, False, True, False]
    assert admitted[0] is not None
    admitted[0].close()
    assert len(connections) == 2
    for each in [*admitted, *(far for _, far in pairs)]:
        if each is not None:
            each.close()
    assert len(connections) == 0


def test_a_connection_with_a_request_is_not_idle() -> None:
    clock = [0.0]
    connections = Connections(ProxyLimits(header_seconds=5, idle_seconds=50), now=lambda: clock[0])
    near, far = socket.socketpair()
    connection = connections.admit(near, ("a", 1))
    far.settimeout(1)
    assert connection is not None
    connections.begin(("a", 1))
    clock[0] = 1000.0
    connections.close_idle()
    connections.end(("a", 1))
    clock[0] = 1049.0
    connections.close_idle()
    connection.send(b"still open")
    assert far.recv(20) == b"still open"
    clock[0] = 1051.0
    connections.close_idle()
    assert far.recv(20) == b""
    connection.close()
    far.close()


def test_a_listener_passes_over_connections_beyond_the_limit() -> None:
    connections = Connections(ProxyLimits(per_address=1))
    with LimitedListener.bound("127.0.0.1", 0, connections) as listener:
        listener.listen()
        listener.setblocking(False)
        port = listener.getsockname()[1]
        with opened(port), opened(port) as second:
            wait_for(lambda: len(connections) or accept(listener))
            wait_for(lambda: accept(listener) or closed(second))


accepted: list[socket.socket] = []


def accept(listener: LimitedListener) -> bool:
    try:
        accepted.append(listener.accept()[0])
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("text", ["body_mb", "body_mb=x", "body_mb=0", "bodies=3"])
def test_a_limit_that_is_none_is_a_sentence(text: str) -> None:
    with pytest.raises(PotluckError, match=rf"--limit '{text}' is not valid; .* one of: body_mb, "):
        ProxyLimits.parse([text])


def test_a_limit_without_the_proxy_has_no_effect(tmp_path: Path) -> None:
    arguments = ["server", "start", "--insecure", "--folder", str(tmp_path), "--limit", "body_mb=3"]
    with pytest.raises(PotluckError, match="--limit has no effect without the proxy for nodes"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
