"""A reverse proxy for nodes: it passes what nodes need of Flower's server, within limits, and nothing else of it.

Flower's server has one port for everything, and its control part asks for no password. So it listens on the loopback
interface alone, and this proxy is what other machines can reach: `/v1/fleet/…` goes through, anything else is
answered 403. Flower's server bounds neither bodies nor connections; the proxy does (`ProxyLimits`), and passes a
request on when all of it has come. `python -m potluck.flower.deploy.fleet_proxy` starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from potluck.flower.deploy.connection_limits import (
    MEGABYTE,
    SMALL_BODY,
    Connections,
    LimitedListener,
    ProxyLimits,
)

FLEET = "/v1/fleet/"
HOP_BY_HOP_HEADERS = {
    b"host",
    b"connection",
    b"content-length",
    b"keep-alive",
    b"transfer-encoding",
    b"upgrade",
    b"te",
    b"trailer",
}
"""Headers that belong to one connection and are not passed on."""
PATIENCE = 60.0
"""Seconds that the server may take to answer."""
CLOSE = (b"connection", b"close")
"""The header of an answer to a request that was not read to its end."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Refused(Exception):
    """A request that is beyond a limit: status and reason."""


@dataclass
class Body:
    """The body of a request so far; its bytes beyond the first `SMALL_BODY` count against the limits of its address."""

    connections: Connections
    host: str
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    counted: int = 0

    def add(self, data: bytes) -> None:
        """Append a piece, or refuse it."""
        limits = self.connections.limits
        if self.size + len(data) > limits.body_mb * MEGABYTE:
            raise Refused(413, f"a request may have {limits.body_mb:g} MB")
        more = max(0, self.size + len(data) - SMALL_BODY) - self.counted
        if more and not self.connections.buffer(self.host, more):
            raise Refused(503, "too many requests at once; try again")
        self.counted += more
        self.size += len(data)
        self.pieces.append(data)

    async def drain(self) -> AsyncIterator[bytes]:
        """Yield the pieces, which are kept no longer than that."""
        self.pieces.reverse()
        while self.pieces:
            yield self.pieces.pop()

    def close(self) -> None:
        """Drop what is left."""
        self.pieces.clear()
        self.connections.release(self.host, self.counted)
        self.counted = 0


class FleetProxy:
    """The application: a complete request to the server's fleet part goes on as it came."""

    def __init__(self, server: str, ca: str | None, connections: Connections, transport: Any = None) -> None:
        import httpx

        verify: Any = ssl.create_default_context(cafile=ca) if ca else False
        self.connections, self.limits = connections, connections.limits
        self._client = httpx.AsyncClient(
            base_url=f"{'https' if ca else 'http'}://{server}",
            verify=verify,
            timeout=PATIENCE,
            limits=httpx.Limits(max_connections=None),  # slow answers must not take the others' connections
            transport=transport,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        address = tuple(scope.get("client") or ("", 0))
        self.connections.begin(address)
        try:
            await self._answer(scope, receive, send)
        finally:
            self.connections.end(address)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        import httpx

        if not allowed(scope["path"], scope["raw_path"]):
            await _respond(send, 403, "this address is for nodes", CLOSE)
            return
        url = httpx.URL(scope["raw_path"].decode("ascii"), query=scope["query_string"] or None)
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP_BY_HOP_HEADERS]
        body = Body(self.connections, (scope.get("client") or ("",))[0])
        try:
            await self._read(scope, receive, body)
            headers.append((b"content-length", b"%d" % body.size))
            request = self._client.build_request(scope["method"], url, headers=headers, content=body.drain())
            answer = await self._client.send(request, stream=True)
        except Refused as refused:
            body.close()  # at once: what it held must not have another request refused
            await _respond(send, *refused.args, CLOSE)
            return
        except httpx.TransportError as error:
            await _respond(send, 502, f"the server does not answer ({type(error).__name__})")
            return
        finally:
            body.close()
        passed = [(name, value) for name, value in answer.headers.raw if name.lower() not in _NOT_RETURNED]
        try:
            await self._send(
                send, {"type": "http.response.start", "status": answer.status_code, "headers": passed}
            )
            async for piece in answer.aiter_raw():
                await self._send(send, {"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            await answer.aclose()
        await self._send(send, {"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, message: MutableMapping[str, Any]) -> None:
        """Send a piece of an answer; a node that does not take it for too long loses its connection."""
        await asyncio.wait_for(send(message), self.limits.idle_seconds)

    async def _read(self, scope: Scope, receive: Receive, body: Body) -> None:
        """Read the whole body, within the limits of size, time and rate."""
        if _declared(scope) > self.limits.body_mb * MEGABYTE:
            raise Refused(413, f"a request may have {self.limits.body_mb:g} MB")
        now = asyncio.get_running_loop().time
        ends, checked, before = now() + self.limits.body_seconds, now() + self.limits.rate_seconds, 0
        more = True
        while more:
            timeout = min(self.limits.idle_seconds, ends - now(), checked - now())
            try:
                piece = await asyncio.wait_for(receive(), max(timeout, 0.0))
            except TimeoutError:
                if now() < checked or now() >= ends:
                    raise Refused(408, "the request did not come to its end") from None
                piece = {"type": "http.request", "more_body": True}
            if piece["type"] == "http.disconnect":
                raise Refused(400, "the request was cut off")
            body.add(piece.get("body", b""))
            more = piece.get("more_body", False)
            if more and now() >= checked:
                if body.size - before < 1000 * self.limits.body_rate * self.limits.rate_seconds:
                    raise Refused(
                        408, f"less than {self.limits.body_rate:g} kB of the request came per second"
                    )
                checked, before = now() + self.limits.rate_seconds, body.size


_NOT_RETURNED = HOP_BY_HOP_HEADERS - {b"content-length"}


def _declared(scope: Scope) -> int:
    """Return the length that a request says it has; 0 if it says none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def allowed(path: str, raw: bytes) -> bool:
    """Return whether a path is of the fleet part, however it is written; what needs decoding or climbs up is not."""
    return path.startswith(FLEET) and raw == path.encode() and ".." not in path and "//" not in path


async def _respond(send: Send, status: int, reason: str, *headers: tuple[bytes, bytes]) -> None:
    listed = [(b"content-type", b"text/plain"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": reason.encode()})


async def _close_idle(connections: Connections) -> None:
    while True:
        await asyncio.sleep(min(1.0, connections.limits.header_seconds / 4))
        connections.close_idle()


def _raise_file_limit() -> None:
    """Allow as many open files as this process may have: each connection needs one here and one to the server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(given: argparse.Namespace, limits: ProxyLimits) -> None:
    """Serve until a signal ends it."""
    import uvicorn

    connections = Connections(limits)
    config = uvicorn.Config(
        FleetProxy(given.server, given.ca, connections),
        loop="asyncio",  # the listener below is Python's
        http="h11",  # bounds the size of a header
        ssl_certfile=given.certificate,
        ssl_keyfile=given.key,
        timeout_keep_alive=int(limits.idle_seconds),
        proxy_headers=False,
        access_log=False,
        log_level="warning",
        lifespan="off",
    )
    watch = asyncio.create_task(_close_idle(connections))
    with LimitedListener.bound(given.host, given.port, connections) as listener:
        await uvicorn.Server(config).serve(sockets=[listener])
    watch.cancel()


def main() -> None:
    """Start the proxy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--server", required=True, help="where Flower's server listens")
    for name in ("--ca", "--certificate", "--key"):
        parser.add_argument(name)
    parser.add_argument("--limit", action="append", default=[], help="NAME=NUMBER of a limit")
    options = parser.parse_args()
    _raise_file_limit()
    asyncio.run(serve(options, ProxyLimits.parse(options.limit)))


if __name__ == "__main__":
    main()
