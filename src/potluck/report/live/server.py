"""Serve the live page on the loopback address, under a secret token, read-only."""

from __future__ import annotations

import hmac
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from potluck.core.errors import PotluckError
from potluck.report.data import to_json
from potluck.report.live.status import WatchedRuns

HOST = "127.0.0.1"


class LiveServer(ThreadingHTTPServer):
    """Answer requests on the loopback address; without the token every path is 404."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, watched: WatchedRuns, port: int = 0) -> None:
        self.watched, self.token = watched, secrets.token_urlsafe(18)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise PotluckError(
                f"--port {port} cannot be used: {error.strerror}; choose another, or 0."
            ) from None
        except OverflowError:
            raise PotluckError(
                f"--port {port} is not a port; choose one from 1 to 65535, or 0 for any."
            ) from None

    @property
    def address(self) -> str:
        """Return the address to open in a browser."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "potluck", ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        token, _, resource = url.path.removeprefix("/").partition("/")
        if not self._authorised(token) or resource not in ("", "state"):
            self.send_error(404, "Nothing here")
            return
        if not resource:
            self._send(self.server.watched.first_page(), "text/html")
            return
        query = parse_qs(url.query)
        since = (query.get("since") or ["-1"])[0]
        state = self.server.watched.state(
            int(since) if since.isdecimal() else -1, frozenset(query.get("without", ()))
        )
        self._send(to_json(state), "application/json")

    def _authorised(self, token: str) -> bool:
        """Check the token and the host name, so that no other page's script gets here by DNS rebinding."""
        names = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        matches = hmac.compare_digest(token.encode(), self.server.token.encode())
        return matches and self.headers.get("Host", "") in names

    def _send(self, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(200)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # the reader closed the page

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the lines would contain the token."""
