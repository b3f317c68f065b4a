"""The fleet proxy and the node watchdog: allowed requests, and when a connection counts as lost."""

from __future__ import annotations

import asyncio
import inspect
import stat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx

from potluck.core.errors import PotluckError
from potluck.flower.deploy.connection_limits import Connections, ProxyLimits
from potluck.flower.deploy.fleet_proxy import FleetProxy, allowed
from potluck.flower.deploy.keys import make_node_key, name_in_key
from potluck.flower.deploy.serve import is_loopback, make_secret, node_commands, server_commands
from potluck.flower.deploy.supernode import ServerWatch, watched_client
from support.own_nodes import write_node


def echo() -> Any:
    """A server that says what it was asked, in pieces."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            piece = await receive()
            body += piece.get("body", b"")
            if not piece.get("more_body"):
                break
        names = {name.decode() for name, _ in scope["headers"]}
        text = f"{scope['method']} {scope['path']} {'x-key' in names} {len(body)}".encode()
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-from", b"server")]})
        await send({"type": "http.response.body", "body": text[:5], "more_body": True})
        await send({"type": "http.response.body", "body": text[5:]})

    return app


def make_proxy(server: str, transport: Any = None, **limits: float) -> FleetProxy:
    return FleetProxy(server, None, Connections(ProxyLimits(**limits)), transport)


def ask(path: str, upstream: Any = None, **more: Any) -> httpx.Response:
    async def once() -> httpx.Response:
        behind = httpx.ASGITransport(app=upstream or echo())
        front = httpx.ASGITransport(app=make_proxy("127.0.0.1:1", behind))
        async with httpx.AsyncClient(transport=front, base_url="http://proxy") as client:
            return await client.post(path, **more)

    return asyncio.run(once())


def test_what_nodes_need_goes_through_as_it_came() -> None:
    response = ask("/v1/fleet/push-object", content=b"x" * 3_000_000, headers={"x-key": "node"})
    assert (response.status_code, response.headers["x-from"]) == (201, "server")
    assert response.text == "POST /v1/fleet/push-object True 3000000"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/health",
        "/docs",
        "/",
        "/v1/fleet",
        "/V1/fleet/x",
    ],
)
def test_nothing_else_goes_through(path: str) -> None:
    def never(*_: Any) -> None:
        pytest.fail("the server was asked")

    assert ask(path, never).status_code == 403


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/v1/fleet/../control/start-run", b"/v1/fleet/../control/start-run"),
        ("/v1/fleet/../control/start-run", b"/v1/fleet/%2e%2e/control/start-run"),
        ("/v1/fleet/x", b"/v1/fleet/%78"),
        ("/v1/fleet//control", b"/v1/fleet//control"),
    ],
)
def test_a_path_that_is_written_in_another_way_is_not_the_fleets(path: str, raw: bytes) -> None:
    assert not allowed(path, raw)


def test_a_server_that_is_away_gives_an_error_that_nodes_wait_for() -> None:
    async def once() -> httpx.Response:
        front = httpx.ASGITransport(app=make_proxy("127.0.0.1:1"))
        async with httpx.AsyncClient(transport=front, base_url="http://proxy") as client:
            return await client.post("/v1/fleet/pull-messages")

    assert asyncio.run(once()).status_code == 502  # Flower's node tries again at 502, 503 and 504


def test_unfinished_request_is_closed_after_a_time_limit() -> None:
    responses: list[Any] = []
    pieces = [{"type": "http.request", "body": b"x", "more_body": True}]

    async def receive() -> Any:
        return pieces.pop() if pieces else await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        responses.append(message)

    async def once() -> None:
        scope = {
            "type": "http", "method": "POST", "path": "/v1/fleet/x", "raw_path": b"/v1/fleet/x", "query_string": b"",
            "headers": [],
        }  # fmt: skip
        await asyncio.wait_for(
            make_proxy("127.0.0.1:1", httpx.ASGITransport(app=echo()), idle_seconds=0.2)(
                scope, receive, send
            ),
            60,
        )

    asyncio.run(once())
    assert responses[0]["status"] == 408


def test_the_servers_connection_is_given_back_when_a_node_goes_in_the_middle_of_an_answer() -> None:
    closed: list[bool] = []

    class Stream(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield b"half"
            yield b"an answer"

        async def aclose(self) -> None:
            closed.append(True)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise OSError("the node is gone")

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def once() -> None:
        behind = httpx.MockTransport(lambda request: httpx.Response(200, stream=Stream()))
        scope = {
            "type": "http", "method": "POST", "path": "/v1/fleet/x", "raw_path": b"/v1/fleet/x", "query_string": b"",
            "headers": [],
        }  # fmt: skip
        with pytest.raises(OSError, match="the node is gone"):
            await make_proxy("127.0.0.1:1", behind)(scope, receive, send)

    asyncio.run(once())
    assert closed == [True]


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_a_server_for_other_machines_keeps_its_control_part_to_itself(tmp_path: Path) -> None:
    served = server_commands(tmp_path, "0.0.0.0", 8000, insecure=True)
    assert (value(served.commands["server"], "--host"), value(served.commands["server"], "--port")) == (
        "127.0.0.1",
        "8001",
    )
    assert (value(served.commands["proxy"], "--host"), value(served.commands["proxy"], "--port")) == (
        "0.0.0.0",
        "8000",
    )
    assert served.control == value(served.commands["proxy"], "--server") == "127.0.0.1:8001"
    assert "only from this machine, at 127.0.0.1:8001" in served.description
    server_command = server_commands(tmp_path, "0.0.0.0", 8000, insecure=True, expose=True)
    assert (value(server_command.commands["server"], "--host"), server_command.control) == (
        "0.0.0.0",
        "127.0.0.1:8000",
    )
    assert "proxy" not in server_command.commands
    assert "proxy" not in server_commands(tmp_path, "127.0.0.1", 8000, insecure=True).commands
    assert [is_loopback(host) for host in ("localhost", "::1", "127.8.8.8", "10.0.0.1", "server")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_a_node_runs_no_app_of_the_servers(tmp_path: Path) -> None:
    path = write_node(tmp_path / "n", "own", "mlp-1+6", 1)
    commands = node_commands(path, "127.0.0.1:1", None, None)
    assert "potluck.flower.deploy.supernode" in commands["node"]
    assert "potluck.flower.deploy.node_worker" in commands["worker"]
    secret = Path(value(commands["node"], "--secret"))
    assert secret == Path(value(commands["worker"], "--secret"))
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    assert make_secret(secret).read_bytes() == secret.read_bytes()
    assert len(secret.read_bytes()) == 32
    secret.write_bytes(b"")  # a process that was killed while it wrote
    assert len(make_secret(secret).read_bytes()) == 32
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_connection_is_lost_when_the_server_was_not_heard_for_too_long() -> None:
    clock = [0.0]
    watch = ServerWatch(75, now=lambda: clock[0])

    class Client:
        def ActivateNode(self, request: str) -> str:
            return request

        def SendNodeHeartbeat(self, request: str) -> str:
            if request == "gone":
                raise httpx.ConnectError("no route")
            return request

    def lost_at(time: float) -> float | None:
        """Check once a second, as the connection does."""
        while clock[0] < time - 1:
            clock[0] += 1
            watch.lost()
        clock[0] = time
        return watch.lost()

    client = watched_client(Client, watch)()
    assert lost_at(1000) is None  # a server that never answered was not lost
    assert client.ActivateNode("hello") == "hello"
    assert lost_at(1070) is None
    assert client.SendNodeHeartbeat("here") == "here"
    assert lost_at(1140) is None
    with pytest.raises(httpx.ConnectError):
        client.SendNodeHeartbeat("gone")
    assert lost_at(1146) == 76.0


def test_flower_still_has_what_the_connection_uses() -> None:
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
    from flwr.supernode import fleet_http_connection

    assert fleet_http_connection.FleetHttpClient.SendNodeHeartbeat
    assert fleet_http_connection.http_request_response
    assert "initial_backoff" in inspect.signature(pull_and_inflate_object_from_tree).parameters


def test_a_connection_that_was_stopped_is_not_lost() -> None:
    clock = [0.0]
    watch = ServerWatch(now=lambda: clock[0])
    watch.record_answer()
    clock[0] = 100.0  # stopped by a signal, and continued
    assert watch.lost() is None
    for second in range(101, 176):
        clock[0] = float(second)
        assert watch.lost() is None
    clock[0] = 176.0
    assert watch.lost() == 76.0


def test_a_public_key_carries_its_nodes_name(tmp_path: Path) -> None:
    public = make_node_key(tmp_path / "node.key", "hospital-a")
    assert name_in_key(public) == "hospital-a"
    public.write_text(public.read_text().rsplit(" ", 1)[0])
    with pytest.raises(PotluckError, match="no public key with a name; .* pass --name"):
        name_in_key(public)
