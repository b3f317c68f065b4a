"""Hand an experiment to a Flower server and follow it, on this machine alone or with nodes elsewhere."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import tomli_w

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment
from potluck.flower.deploy.command import CONNECTION, connect, flwr
from potluck.flower.deploy.follow import Follower, RunEnded
from potluck.flower.deploy.processes import Processes, free_ports, program, wait_until_up
from potluck.flower.deploy.simulation import ray_environment, simulated
from potluck.loop.callbacks import Callback
from potluck.runs import folder
from potluck.runs.folder import locked

TRIES = 4
"""How often a run may be lost without a new round, before it is given up."""
STUCK = 1800.0
"""Seconds without a new round before it is given up: a machine in trouble can lose a run often in a few minutes."""


def run_on_flower(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    command: str = "",
    callbacks: Sequence[Callback] = (),
) -> None:
    """Run an experiment on a server (`engine.server`), or on one that lives as long as this call.

    Everything that was started here is stopped when it returns, whatever ended it.
    """
    settings = experiment.engine
    if settings.nodes and not settings.server:
        raise PotluckError(
            "engine.nodes needs engine.server: start one (potluck server start) and pass --server HOST:PORT."
        )
    if (out / folder.SUMMARY).exists():
        raise PotluckError(f"--out {str(out)!r} already holds a finished run; choose another folder.")
    if out.exists():
        with locked(out):
            pass  # nobody else is at work there
    with tempfile.TemporaryDirectory(prefix="potluck-flower-") as home, Processes(Path(home)) as processes:
        address = settings.server or _start_all(processes, experiment)
        connect(processes, address, settings.ca)
        patient = experiment.schedule.on_failure == "continue"
        follower = Follower(processes, out.resolve(), callbacks, patient=patient)
        run_to_the_end(follower, lambda again: _submit(follower, experiment, resume or again, command))


def run_to_the_end(
    follower: Follower, submit: Callable[[bool], str], *, pause: float = 5.0, stuck: float = STUCK
) -> None:
    """Submit a run and follow it; one whose process was lost is submitted again, to go on from its checkpoint.

    It is given up when it was lost `TRIES` times, for `stuck` seconds, without a new round.
    """
    run, lost, done, news = submit(False), 0, -1, time.monotonic()
    while True:
        try:
            return follower.follow(run)
        except KeyboardInterrupt:
            with suppress(PotluckError):  # a server that goes on without us must not go on with our run
                flwr(follower.processes, "stop", run, CONNECTION)
            raise
        except RunEnded as ended:
            if follower.seen != done:
                lost, done, news = 0, follower.seen, time.monotonic()
            lost += 1
            if lost >= TRIES and time.monotonic() - news >= stuck:
                raise PotluckError(
                    f"{ended}, {lost} times without a new round; look at the server's log, then go on with --resume."
                ) from None
            print(f"{ended}; going on from its last checkpoint.", file=sys.stderr)
            again = _once_more(follower, submit, pause)
            if again is None:
                return follower.follow(run)
            run = again


def _once_more(follower: Follower, submit: Callable[[bool], str], pause: float) -> str | None:
    """Submit again when the server is back, and the lost process, if it still lives, has let go of the folder.

    That process may be well: a server that was away can have taken a run whose submission nobody heard of. It is left
    to its work as long as there are new rounds; None where it has brought the run to its end.
    """
    ends = time.monotonic() + follower.away
    while True:
        time.sleep(pause)
        if follower.news():
            ends = time.monotonic() + follower.away
        try:
            with locked(follower.out):
                if follower.finished:
                    return None
            return submit(True)
        except PotluckError:
            if time.monotonic() > ends:
                raise


def register(public_key: Path, name: str, address: str, ca: Path) -> None:
    """Let a node in: its public key becomes known to the running server, and its name is bound to it."""
    with tempfile.TemporaryDirectory(prefix="potluck-flower-") as home:
        processes = Processes(Path(home))
        connect(processes, address, str(ca))
        flwr(processes, "supernode", "register", str(public_key), CONNECTION, "--name", name)


def _start_all(processes: Processes, experiment: Experiment) -> str:
    """A server and one node per client, all on the loopback interface; in a simulation the server alone."""
    simulation, clients = experiment.engine.simulation, experiment.partition.clients
    port, *ports = free_ports(1 if simulation else 1 + clients)
    address, here = f"127.0.0.1:{port}", ("--insecure", "--host", "127.0.0.1")
    database = str(processes.home / "state.db")
    link = [*here, "--port", str(port), "--database", database, "--disable-runtime-dependency-installation"]
    if simulation:
        processes.extra = ray_environment(processes.home)
        link.append("--simulation")
    processes.start("server", [program("flower-superlink"), *link])
    wait_until_up(processes, address)
    for index, own in enumerate(ports):
        config = f"partition-id={index} num-partitions={clients}"
        node = (*here, "--superlink", address, "--port", str(own), "--node-config", config)
        processes.start(f"node-{index}", [program("flower-supernode"), *node])
    return address


def _submit(follower: Follower, experiment: Experiment, resume: bool, command: str) -> str:
    """Hand the app over; gives Flower's id of the run."""
    import potluck.flower

    processes = follower.processes
    follower.submitted += 1
    config = {
        "experiment": json.dumps(experiment.model_dump(mode="json", exclude_none=True)),
        "out": str(follower.out),
        "resume": resume,
        "command": command,
        "trouble": str(follower.trouble),
    }
    path = processes.home / "run.toml"
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    app = Path(potluck.flower.__file__).parent / "app"
    how = ["--run-config", str(path), "--format", "json"]
    if experiment.engine.simulation:
        how += ["--federation-config", simulated(experiment)]
    answer = flwr(processes, "run", str(app), CONNECTION, *how)
    try:
        told = json.loads(answer)
        return str(told["run-id"])
    except (ValueError, LookupError, TypeError):
        raise PotluckError(f"Flower refused: {_complaint(answer)}") from None


def _complaint(answer: str) -> str:
    try:
        return str(json.loads(answer)["error-message"])
    except (ValueError, LookupError, TypeError):
        return " ".join(answer.split())
