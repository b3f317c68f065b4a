"""The nodes' door: a reverse proxy that passes what nodes need of Flower's server, and nothing else of it.

Flower's server has one port for everything, and its control part asks for no password. So it listens on the loopback
interface alone, and this door stands where other machines can reach it: `/v1/fleet/…` goes through, anything else is
answered 403. `python -m potluck.flower.deploy.fleet_proxy` starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

FLEET = "/v1/fleet/"
HOP_BY_HOP_HEADERS = {
    b"host",
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"upgrade",
    b"te",
    b"trailer",
}
"""Headers that belong to one connection and are not passed on."""
PATIENCE = 60.0
"""Seconds that the server may take to answer, and a node to send the next piece of what it says."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def make_proxy(
    server: str, ca: str | None, transport: Any = None
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The application: every request to the server's fleet part, as it came; nothing is kept in memory."""
    import httpx

    verify: Any = ssl.create_default_context(cafile=ca) if ca else False
    client = httpx.AsyncClient(
        base_url=f"{'https' if ca else 'http'}://{server}",
        verify=verify,
        timeout=PATIENCE,
        limits=httpx.Limits(max_connections=None),  # whoever is slow must not take the others' places
        transport=transport,
    )

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if not allowed(scope["path"], scope["raw_path"]):
            await _respond(send, 403, b"this door is for nodes")
            return
        url = httpx.URL(scope["raw_path"].decode("ascii"), query=scope["query_string"] or None)
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP_BY_HOP_HEADERS]
        asked = client.build_request(scope["method"], url, headers=headers, content=_body(receive))
        try:
            said = await client.send(asked, stream=True)
        except TimeoutError:
            await _respond(send, 408, b"the request did not come to its end")
            return
        except httpx.TransportError as error:
            await _respond(send, 502, f"the server does not answer ({type(error).__name__})".encode())
            return
        theirs = [(name, value) for name, value in said.headers.raw if name.lower() not in HOP_BY_HOP_HEADERS]
        await send({"type": "http.response.start", "status": said.status_code, "headers": theirs})
        try:
            async for piece in said.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            await said.aclose()
        await send({"type": "http.response.body", "body": b""})

    return answer


def allowed(path: str, raw: bytes) -> bool:
    """Whether a path is of the fleet part, however it is written; what needs decoding or climbs up is not."""
    return path.startswith(FLEET) and raw == path.encode() and ".." not in path and "//" not in path


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        piece = await asyncio.wait_for(receive(), PATIENCE)
        if piece["type"] == "http.disconnect":
            return
        yield piece.get("body", b"")
        more = piece.get("more_body", False)


async def _respond(send: Send, status: int, words: bytes) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]}
    )
    await send({"type": "http.response.body", "body": words})


def main() -> None:
    """Stand until told to end."""
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--server", required=True, help="where Flower's server listens")
    for name in ("--ca", "--certificate", "--key"):
        parser.add_argument(name)
    given = parser.parse_args()
    uvicorn.run(
        make_proxy(given.server, given.ca),
        host=given.host,
        port=given.port,
        ssl_certfile=given.certificate,
        ssl_keyfile=given.key,
        access_log=False,
        log_level="warning",
        lifespan="off",
    )


if __name__ == "__main__":
    main()
