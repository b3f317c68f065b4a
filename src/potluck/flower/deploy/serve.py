"""Keep a server or a node alive: start it, watch it, start it again, say plainly what happens."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.files import read_text
from potluck.flower.deploy.connection_limits import ProxyLimits
from potluck.flower.deploy.keys import CA, CERTIFICATE, KEY
from potluck.flower.deploy.processes import Processes, free_ports, program_path, require_flower, wait_until_up
from potluck.flower.node.config import read_node

Say = Callable[[str], None]
Commands = dict[str, list[str]]

REFUSED = (
    " Is the server up, and does it know this node's key (potluck server keys NODE.key.pub)? A node that was "
    "killed is let in again after about a minute."
)
TOO_EARLY = " This machine's clock is more than five minutes behind the server's: correct it."
SECRET, SECRET_BYTES = "runner.secret", 32


CONTROL, DEFAULT_CONTROL = "control-address", "127.0.0.1:8000"
"""The file in which a server says where it takes runs and keys, and the address without options."""


def record_control(folder: Path, address: str) -> None:
    """Write down where a server takes runs and keys, for other commands on this machine."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONTROL).write_text(f"{address}\n", encoding="utf-8")
    except OSError as error:
        raise PotluckError(f"{str(folder / CONTROL)!r} cannot be written: {error.strerror}.") from None


def recorded_control(folder: Path) -> str:
    """Return where the server of this folder takes keys: where it was started last, or the address without options."""
    file = folder / CONTROL
    return (read_text(file).strip() if file.is_file() else "") or DEFAULT_CONTROL


@dataclass(frozen=True)
class ServerPrograms:
    """The programs of a server, the address of its control part, and the sentence that says where it can be reached."""

    commands: Commands
    control: str
    description: str


def server_commands(
    folder: Path,
    host: str,
    port: int,
    *,
    insecure: bool,
    control: int = 0,
    expose: bool = False,
    limits: ProxyLimits | None = None,
) -> ServerPrograms:
    """Return the server, and apart from it the program that starts runs, so that a run survives the server's restart.

    On any but the loopback interface the server's own port stays on loopback (`control`, or the next one), and
    a proxy for nodes listens at `port`, with limits; unless all of it is to be exposed.
    """
    inside = is_loopback(host) or expose
    if inside and limits is not None:
        raise PotluckError(
            "--limit has no effect without the proxy for nodes; pass --host 0.0.0.0 and leave out --expose-control."
        )
    link_host, link_port = (host, port) if inside else ("127.0.0.1", control or port + 1)
    address = f"{'127.0.0.1' if link_host == '0.0.0.0' else link_host}:{link_port}"
    safe, root, tls = _security(folder, insecure=insecure)
    secret_option = ["--superexec-auth-secret-file", str(make_secret(folder / SECRET))]
    link = [
        "--host",
        link_host,
        "--port",
        str(link_port),
        "--database",
        str(folder / "state.db"),
        *secret_option,
    ]
    link += ["--isolation", "process", "--disable-runtime-dependency-installation"]
    commands = {
        "server": [program_path("flower-superlink"), *safe, *link],
        "runner": [program_path("flower-superexec"), *root, *secret_option, "--runtime-api-address", address],
    }
    if inside:
        return ServerPrograms(commands, address, f"Serving on {host}:{port}. Stop with Ctrl-C.")
    outside = ["--host", host, "--port", str(port), "--server", address, *tls]
    outside += [word for text in (limits or ProxyLimits()).texts() for word in ("--limit", text)]
    commands["proxy"] = [sys.executable, "-m", "potluck.flower.deploy.fleet_proxy", *outside]
    description = f"Nodes come in at {host}:{port}; runs and keys only from this machine, at {address}."
    return ServerPrograms(commands, address, f"{description} Stop with Ctrl-C.")


def _security(folder: Path, *, insecure: bool) -> tuple[list[str], list[str], list[str]]:
    """Return the options of the server, of the program that starts runs, and of the proxy."""
    if insecure:
        return ["--insecure"], ["--insecure"], []
    _check_present(folder)
    ca, certificate, key = (str(folder / name) for name in (CA, CERTIFICATE, KEY))
    server = ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key]
    return (
        [*server, "--enable-supernode-auth"],
        ["--root-certificates", ca],
        ["--ca", ca, "--certificate", certificate, "--key", key],
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_present(folder: Path) -> None:
    missing = [name for name in (CA, CERTIFICATE, KEY) if not (folder / name).exists()]
    if missing:
        raise PotluckError(
            f"{str(folder / missing[0])!r} is missing; make certificates with: potluck server keys --host NAME"
        )


def make_secret(path: Path) -> Path:
    """Make the secret that two programs of one machine share, so that other users' programs get no job."""
    if not path.exists() or path.stat().st_size != SECRET_BYTES:  # one that was cut short is no secret
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        fresh.replace(path)
    return path


def node_commands(path: Path, server: str, ca: Path | None, key: Path | None) -> Commands:
    """Return the commands of a node: its connection to the server, and the worker that answers messages."""
    require_flower()
    file = read_node(path)
    (port,) = free_ports(1)
    secret = make_secret(file.state_folder() / "flower" / SECRET)
    config = {"node-file": str(path.resolve())}
    return {
        "node": connection_command(server, port, secret, config, ca=ca, key=key),
        "worker": worker_command([port], secret, 1),
    }


def connection_command(
    server: str,
    port: int,
    secret: Path,
    config: Mapping[str, Any],
    *,
    ca: Path | None = None,
    key: Path | None = None,
) -> list[str]:
    """Return the command that connects a node to the server; its worker connects to `port`."""
    safe = ["--ca", str(ca)] if ca is not None else []
    safe += ["--key", str(key)] if key is not None else []
    local = ["--port", str(port), "--secret", str(secret), "--config", json.dumps(dict(config))]
    return [sys.executable, "-m", "potluck.flower.deploy.supernode", "--server", server, *local, *safe]


def worker_command(ports: Sequence[int], secret: Path, processes: int) -> list[str]:
    """Return the command that answers the messages of the nodes whose connections listen on these ports."""
    listed = ",".join(map(str, ports))
    own = ["--ports", listed, "--secret", str(secret), "--processes", str(processes)]
    return [sys.executable, "-m", "potluck.flower.deploy.node_worker", *own]


def supervise(
    home: Path,
    commands: Commands,
    say: Say,
    *,
    ready_at: tuple[str, str] | None = None,
    pause: float = 5.0,
    tries: int | None = None,
) -> None:
    """Run programs until interrupted, or until one ended `tries` times; a program that ends is started again."""
    os.umask(0o077)  # what they write is their owner's alone
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    exits = 0
    with Processes(home) as processes:
        for name, command in _first(processes, commands, ready_at):
            processes.start(name, command)
            say(f"{name} started; its log is {home / name}.log")
        full = False
        while tries is None or exits < tries:
            time.sleep(1)
            full = _watch_space(home, say, was_full=full)
            for name in [name for name, process in processes.running.items() if process.poll() is not None]:
                code = processes.running[name].returncode
                words = processes.last_error(name)
                hint = TOO_EARLY if "not yet valid" in words else REFUSED if "Exit Code: 305" in words else ""
                say(f"{name} ended with code {code}: {words}{hint}")
                exits += 1
                processes.stop(name)
                if tries is None or exits < tries:
                    time.sleep(pause)
                    processes.start(name, commands[name])
                    say(f"{name} started again")


MIN_SPACE = 1 << 20
"""Free bytes below which a disk counts as full: not even a small log entry may fit."""


def _watch_space(home: Path, say: Say, *, was_full: bool) -> bool:
    """Say when the disk has become full and when it has space again; return whether it is full."""
    full = shutil.disk_usage(home).free < MIN_SPACE
    if full and not was_full:
        say(f"The disk of {home} is full; jobs wait until there is space.")
    if was_full and not full:
        say(f"There is space on the disk of {home} again.")
    return full


def _first(
    processes: Processes, commands: Commands, ready_at: tuple[str, str] | None
) -> Sequence[tuple[str, list[str]]]:
    """Return the programs to start; if the others need the first one, start it and wait until it answers."""
    (first, command), *remaining = commands.items()
    if ready_at is None:
        return [(first, command), *remaining]
    processes.start(first, command)
    wait_until_up(processes, *ready_at)
    return remaining
