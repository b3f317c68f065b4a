"""Keep a server or a node alive: start it, watch it, start it again, say plainly what happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from potluck.core.errors import PotluckError
from potluck.flower.deploy.keys import CA, CERTIFICATE, KEY
from potluck.flower.deploy.processes import Processes, free_ports, program, wait_until_up
from potluck.flower.node.file import read_node

Say = Callable[[str], None]

REFUSED = (
    " Is the server up, and does it know this node's key (potluck server keys NODE.key.pub)? A node that was "
    "killed is let in again after about a minute."
)


def server_commands(folder: Path, host: str, port: int, *, insecure: bool) -> dict[str, list[str]]:
    """The server, and apart from it the program that starts runs, so that a run survives the server's restart."""
    here = "127.0.0.1" if host == "0.0.0.0" else host
    safe = ["--insecure"]
    root = ["--insecure"]
    if not insecure:
        missing = [name for name in (CA, CERTIFICATE, KEY) if not (folder / name).exists()]
        if missing:
            raise PotluckError(
                f"{str(folder / missing[0])!r} is missing; make certificates with: potluck server keys --host NAME"
            )
        safe = ["--ssl-ca-certfile", str(folder / CA), "--ssl-certfile", str(folder / CERTIFICATE)]
        safe += ["--ssl-keyfile", str(folder / KEY), "--enable-supernode-auth"]
        root = ["--root-certificates", str(folder / CA)]
    link = ["--host", host, "--port", str(port), "--database", str(folder / "state.db")]
    link += ["--isolation", "process", "--disable-runtime-dependency-installation"]
    return {
        "server": [program("flower-superlink"), *safe, *link],
        "runner": [program("flower-superexec"), *root, "--runtime-api-address", f"{here}:{port}"],
    }


def node_command(path: Path, server: str, ca: Path | None, key: Path | None) -> list[str]:
    """The SuperNode of a node file."""
    read_node(path)
    (port,) = free_ports(1)
    safe = ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    if key is not None:
        safe += ["--auth-supernode-private-key", str(key)]
    config = f'node-file="{path.resolve()}"'
    link = ["--superlink", server, "--host", "127.0.0.1", "--port", str(port), "--node-config", config]
    return [program("flower-supernode"), *safe, *link]


def keep_alive(
    home: Path,
    commands: dict[str, list[str]],
    say: Say,
    *,
    up: tuple[str, str] | None = None,
    pause: float = 5.0,
    tries: int | None = None,
) -> None:
    """Run programs until interrupted, or until one ended `tries` times; a program that ends is started again."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    ended = 0
    with Processes(home) as processes:
        for name, command in _first(processes, commands, up):
            processes.start(name, command)
            say(f"{name} started; its log is {home / name}.log")
        while tries is None or ended < tries:
            time.sleep(1)
            for name in [name for name, process in processes.running.items() if process.poll() is not None]:
                code = processes.running[name].returncode
                words = processes.last_words(name)
                say(f"{name} ended with code {code}: {words}{REFUSED if 'Exit Code: 305' in words else ''}")
                ended += 1
                processes.stop(name)
                if tries is None or ended < tries:
                    time.sleep(pause)
                    processes.start(name, commands[name])
                    say(f"{name} started again")


def _first(
    processes: Processes, commands: dict[str, list[str]], up: tuple[str, str] | None
) -> Sequence[tuple[str, list[str]]]:
    """All programs; where the others need the first one, they come when it answers."""
    (first, command), *others = commands.items()
    if up is None:
        return [(first, command), *others]
    processes.start(first, command)
    wait_until_up(processes, *up)
    return others
