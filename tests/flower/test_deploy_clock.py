"""A node compares its clock with the server's before it connects."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from potluck.flower.deploy import clock, keys
from potluck.flower.deploy.clock import clock_problem, seconds_ahead
from potluck.flower.deploy.keys import CA, CERTIFICATE, KEY, make_certificates
from potluck.flower.deploy.processes import free_ports
from potluck.flower.deploy.supernode import DISCONNECTED

pytestmark = pytest.mark.timeout(120)


@contextmanager
def server_ahead(folder: Path, seconds: float) -> Iterator[str]:
    """A server with TLS whose clock is ahead of this machine's."""

    class Dated(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(403)
            self.send_header("Date", formatdate(time.time() + seconds, usegmt=True))
            self.end_headers()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dated)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("server")
    make_certificates(folder, ["127.0.0.1"])
    return folder


@pytest.mark.parametrize("seconds", [-3600, -100, 0, 3600])
def test_seconds_ahead_are_those_to_the_servers_date(certificates: Path, seconds: int) -> None:
    with server_ahead(certificates, seconds) as address:
        ahead = seconds_ahead(address, certificates / CA)
    assert ahead == pytest.approx(-seconds, abs=2.0)


def test_a_clock_within_what_signatures_allow_is_no_problem(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = {}
    for ahead in (-3600.0, -299.0, 0.0, 4.0, 3600.0, None):
        monkeypatch.setattr(clock, "seconds_ahead", lambda *_, ahead=ahead: ahead)
        reply[ahead] = clock_problem("127.0.0.1:1", certificates / CA)
    assert [bool(sentence) for sentence in reply.values()] == [True, False, False, False, True, False]
    assert "differs from the server's by 3600 s (it is behind it); correct it" in reply[-3600.0]
    assert "differs from the server's by 3600 s (it is ahead of it); correct it" in reply[3600.0]


def test_certificate_of_the_future_is_no_obstacle_to_the_comparison_and_a_foreign_one_is(
    tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(keys.datetime.datetime):  # type: ignore[misc]
        @classmethod
        def now(cls, tz: object = None) -> object:
            return super().now(tz) + keys.datetime.timedelta(days=2)

    monkeypatch.setattr(keys.datetime, "datetime", Later)
    make_certificates(tmp_path, ["127.0.0.1"])
    monkeypatch.undo()
    with server_ahead(tmp_path, 2 * 86400) as address:
        with pytest.raises(ssl.SSLError, match="not yet valid"):
            ssl.create_default_context(cafile=tmp_path / CA).wrap_socket(
                socket.create_connection(("127.0.0.1", int(address.split(":")[1]))),
                server_hostname="127.0.0.1",
            )
        assert seconds_ahead(address, tmp_path / CA) == pytest.approx(-2 * 86400, abs=2.0)
        assert seconds_ahead(address, certificates / CA) is None
    assert seconds_ahead(f"127.0.0.1:{free_ports(1)[0]}", certificates / CA) is None


def test_a_node_with_a_wrong_clock_says_by_how_much_and_ends(tmp_path: Path, certificates: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 32)
    (port,) = free_ports(1)
    with server_ahead(certificates, -600) as address:
        command = [sys.executable, "-m", "potluck.flower.deploy.supernode", "--server", address]
        command += ["--port", str(port), "--secret", str(secret), "--config", "{}"]
        command += ["--ca", str(certificates / CA)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert ended.returncode == DISCONNECTED
    assert "ERROR: this machine's clock differs from the server's by 60" in ended.stdout
