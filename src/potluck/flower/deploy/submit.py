"""Hand an experiment to a Flower server and follow it, on this machine alone or with nodes elsewhere."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment
from potluck.flower.deploy.processes import Processes, free_ports, program, wait_until_up
from potluck.flower.deploy.simulation import ray_environment, simulated
from potluck.loop.callbacks import Callback, Step
from potluck.loop.records import StepRecord
from potluck.runs import folder

CONNECTION = "potluck"


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
    with tempfile.TemporaryDirectory(prefix="potluck-flower-") as home, Processes(Path(home)) as processes:
        address = settings.server or _start_all(processes, experiment)
        run = _submit(processes, experiment, address, out.resolve(), resume, command)
        try:
            follow(processes, run, out, callbacks, patient=experiment.schedule.on_failure == "continue")
        except KeyboardInterrupt:
            if settings.server:  # a server that goes on without us must not go on with our run
                flwr(processes, "stop", run, CONNECTION)
            raise


def connect(processes: Processes, address: str, ca: str) -> None:
    """Tell Flower's command which server to talk to."""
    link: dict[str, Any] = {"address": address}
    link |= {"root-certificates": str(Path(ca).resolve())} if ca else {"insecure": True}
    text = tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: link}})
    (processes.home / "config.toml").write_text(text, encoding="utf-8")


def flwr(processes: Processes, *arguments: str) -> str:
    """Flower's own command; its complaint becomes ours."""
    done = subprocess.run(
        [program("flwr"), *arguments],
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PotluckError(f"Flower refused: {' '.join((done.stderr + done.stdout).split())}")
    return done.stdout


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


def _submit(
    processes: Processes, experiment: Experiment, address: str, out: Path, resume: bool, command: str
) -> str:
    """Hand the app over; gives Flower's id of the run."""
    import potluck.flower

    connect(processes, address, experiment.engine.ca)
    config = {
        "experiment": json.dumps(experiment.model_dump(mode="json", exclude_none=True)),
        "out": str(out),
        "resume": resume,
        "command": command,
        "trouble": str(processes.home / "trouble"),
    }
    path = processes.home / "run.toml"
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    app = Path(potluck.flower.__file__).parent / "app"
    how = ["--run-config", str(path), "--format", "json"]
    if experiment.engine.simulation:
        how += ["--federation-config", simulated(experiment)]
    answer = flwr(processes, "run", str(app), CONNECTION, *how)
    told = json.loads(answer)
    if "run-id" not in told:
        raise PotluckError(f"Flower refused: {told.get('error-message', answer)}")
    return str(told["run-id"])


def follow(
    processes: Processes, run: str, out: Path, callbacks: Sequence[Callback], *, patient: bool
) -> None:
    """Tell the callbacks of each round, until there is a summary or a reason why there is none.

    A run that is `patient` goes on without a node that has died, once all have taken part.
    """
    trouble, seen, looked = processes.home / "trouble", 0, time.monotonic()
    while not (out / folder.SUMMARY).exists():
        if trouble.exists():
            raise PotluckError(trouble.read_text(encoding="utf-8"))
        seen = _tell(out, seen, callbacks)
        dead = processes.dead()
        if dead and ("server" in dead or not (patient and seen) or len(dead) == len(processes.running) - 1):
            raise PotluckError(f"A Flower process died: {next(iter(dead.values()))}")
        if time.monotonic() - looked > 30:
            looked = time.monotonic()
            _check_alive(processes, run)
        time.sleep(0.5)
    _tell(out, seen, callbacks)


def _tell(out: Path, seen: int, callbacks: Sequence[Callback]) -> int:
    rows = folder.read_lines(out / folder.ROUNDS)
    for row in rows[seen:]:
        for callback in callbacks:
            callback.on_step(Step(StepRecord(**row), None, (), (), _no_fetch))
    return len(rows)


def _check_alive(processes: Processes, run: str) -> None:
    """A server app that was killed leaves no word; the server knows that its run is over."""
    listed = json.loads(flwr(processes, "list", CONNECTION, "--run-id", run, "--format", "json"))
    status = str(listed["runs"][0]["status"])
    if status.startswith("finished") and "completed" not in status:
        raise PotluckError(f"The run on the Flower server ended early ({status}); go on with --resume.")


def _no_fetch(client: int) -> dict[str, Any]:
    raise PotluckError("On the flower engine a client's state stays on its node.")
