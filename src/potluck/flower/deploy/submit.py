"""Submit an experiment to a Flower server or simulation and follow it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment
from potluck.flower.deploy.processes import (
    COLOUR,
    Processes,
    free_ports,
    program_path,
    require_flower,
    wait_until_up,
)
from potluck.flower.deploy.serve import SECRET, connection_command, make_secret, worker_command
from potluck.loop.callbacks import Callback, Step
from potluck.loop.records import StepRecord
from potluck.runs import folder
from potluck.runs.folder import lock_folder

CONNECTION = "potluck"
SERVER, WORKER = "server", "worker"
"""Names of programs that every run on this machine needs; the others are its nodes."""
_FRAME = re.compile("[\u2500-\u257f]+")
PATIENCE = 90.0
"""Seconds for one call: Flower's command waits for ever at a server that has stopped."""


def connect(processes: Processes, address: str, ca: str) -> None:
    """Tell Flower's command which server to talk to."""
    link: dict[str, Any] = {"address": address}
    link |= {"root-certificates": str(Path(ca).resolve())} if ca else {"insecure": True}
    text = tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: link}})
    (processes.home / "config.toml").write_text(text, encoding="utf-8")


def run_flwr(processes: Processes, *arguments: str) -> str:
    """Flower's own command; its complaint becomes ours."""
    try:
        completed = subprocess.run(
            [program_path("flwr"), *arguments],
            env=processes.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise PotluckError(
            f"The Flower server did not answer within {PATIENCE:g} seconds; is it up?"
        ) from None
    if completed.returncode:
        raise PotluckError(f"Flower refused: {plain_words(completed.stderr + completed.stdout)}")
    return completed.stdout


def plain_words(text: str) -> str:
    """Return what Flower's command printed on one line, without the frame that it draws around errors."""
    lines = [_FRAME.sub(" ", line).strip() for line in COLOUR.sub("", text).splitlines()]
    return " ".join(
        " ".join(line.split())
        for line in lines
        if line not in ("", "Error") and not line.startswith("Using SuperLink")
    )


MAX_OUTAGE = 900.0
"""Seconds that a server may be away before its follower gives up."""
QUERY_INTERVAL = 15.0
"""Seconds between two questions to the server: each is a process of its own."""


class RunInterrupted(PotluckError):
    """The server's app is gone without a word, so nothing is wrong with the run: it can go on."""


@dataclass
class RunFollower:
    """Tells the callbacks of each round, until there is a summary or a reason why there is none.

    A run that is `patient` goes on without a node that has died, once all have taken part.
    """

    processes: Processes
    out: Path
    callbacks: Sequence[Callback] = ()
    tolerates_lost_nodes: bool = False
    max_outage: float = MAX_OUTAGE
    query_interval: float = QUERY_INTERVAL
    ask: Callable[[Processes, str], dict[str, Any] | None] = field(
        default=lambda processes, run: query_run(processes, run)
    )
    seen: int = 0
    submitted: int = 0
    _completed: int = 0
    _reported: str = ""

    @property
    def error_file(self) -> Path:
        """Where the server's app leaves the sentence of what went wrong; what an earlier one says is past."""
        return self.processes.home / f"trouble-{self.submitted}"

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.out / folder.SUMMARY).exists()

    def report_new_rounds(self) -> bool:
        """Tell the callbacks of rounds that are new; says whether there were any."""
        before = self.seen
        self._tell()
        return self.seen > before

    def follow(self, run: str) -> None:
        """Until the run has ended; `RunEnded` if it has not come to its end."""
        looked = heard = time.monotonic()
        while not self.finished:
            self._raise_trouble()
            self._tell()
            self._check_processes()
            self._report_waiting()
            if time.monotonic() - looked > self.query_interval:
                status = self.ask(self.processes, run)
                looked = time.monotonic()
                heard = heard if status is None else looked
                if status is not None:
                    self._check_status(status)
                elif looked - heard > self.max_outage:
                    raise PotluckError(
                        f"The Flower server has not answered for {looked - heard:.0f} seconds; when it is back, go on "
                        f"with: potluck resume {self.out}"
                    )
            time.sleep(0.5)
        self._tell()

    def _report_waiting(self) -> None:
        """Print for whom the run waits, once per outage."""
        sentence = folder.read_waiting(self.out)
        if sentence and sentence != self._reported:
            print(sentence, file=sys.stderr)
        self._reported = sentence

    def _raise_trouble(self) -> None:
        if self.error_file.exists():
            raise PotluckError(self.error_file.read_text(encoding="utf-8"))

    def _check_processes(self) -> None:
        """Programs that were started here and have died; a run on a server elsewhere has none."""
        dead = self.processes.dead()
        if not dead:
            return
        nodes = self.processes.running.keys() - {SERVER, WORKER}
        needed = not nodes - dead.keys() or dead.keys() & {SERVER, WORKER}
        if needed or not (self.tolerates_lost_nodes and self.seen):
            raise PotluckError(f"A Flower process died: {next(iter(dead.values()))}")

    def _check_status(self, listing: dict[str, Any]) -> None:
        """Raise for a run that the server calls finished but that left no summary, with its reason if it has one."""
        status = str(listing.get("status", ""))
        if not status.startswith("finished"):
            return
        time.sleep(1.0)  # the app may be about to write down what was wrong
        if self.finished:
            return
        self._raise_trouble()
        if "completed" in status:
            self._completed += 1
            if self._completed > 1:  # it was there when the server was asked before
                raise PotluckError(
                    f"The run has come to its end on the server, but {str(self.out)!r} holds no summary here; look for "
                    "it on the server's own machine, and hand runs in there."
                )
            return
        if "stopped" in status:
            raise PotluckError(
                f"Somebody stopped the run on the server; go on with: potluck resume {self.out}"
            )
        reason = str(listing.get("status-details", "")).partition("ServerApp failed with exception: ")[2]
        if reason and not reason.startswith("The connection to the server was lost"):
            raise PotluckError(reason)
        raise RunInterrupted(f"The run on the Flower server ended early ({status})")

    def _tell(self) -> None:
        rows = folder.read_lines(self.out / folder.ROUNDS)
        for row in rows[self.seen :]:
            for callback in self.callbacks:
                callback.on_step(Step(StepRecord(**row), None, (), (), _no_fetch))
        self.seen = max(self.seen, len(rows))


def query_run(processes: Processes, run: str) -> dict[str, Any] | None:
    """Return what the server says of a run; None where it cannot be asked now."""
    try:
        runs = json.loads(run_flwr(processes, "list", CONNECTION, "--run-id", run, "--format", "json"))
        return dict(runs["runs"][0])
    except (
        PotluckError,
        ValueError,
        LookupError,
        TypeError,
    ):  # Flower's command says what is wrong in many ways
        return None


def _no_fetch(client: int) -> dict[str, Any]:
    raise PotluckError("On the flower engine a client's state stays on its node.")


MAX_SOCKET_PATH = 40
"""Ray puts sockets below its folder, whose full names may have some 100 characters."""


def check_simulation(experiment: Experiment) -> None:
    """Refuse what a simulation cannot do, before anything is started."""
    settings = experiment.engine
    if settings.name != "flower":
        raise PotluckError(
            f"engine.simulation needs engine.name = 'flower', not {settings.name!r}; pass --engine flower."
        )
    if settings.server or settings.nodes:
        raise PotluckError(
            "engine.simulation has no nodes of their own; leave out engine.server (--server) and engine.nodes."
        )
    if settings.device != "cpu":
        raise PotluckError(
            f"engine.simulation works on the CPU, not on engine.device = {settings.device!r}; use serial."
        )
    require_flower()
    if importlib.util.find_spec("ray") is None:
        raise PotluckError("--simulation needs Ray; install it with: pip install 'potluck[simulation]'")


def simulation_config(experiment: Experiment) -> str:
    """Return the number of clients, one core each, in the form of `flwr run --federation-config`."""
    words = [f"num-supernodes={experiment.partition.clients}", "client-resources-num-cpus=1"]
    words += ["client-resources-num-gpus=0.0", "init-args-log-to-driver=false"]
    if experiment.engine.workers:
        words.append(f"init-args-num-cpus={experiment.engine.workers}")
    return " ".join(words)


def ray_environment(home: Path) -> dict[str, str]:
    """Ray without telemetry, with its files in a folder that goes with the run, if its sockets can be there."""
    place = {"RAY_TMPDIR": str(home)} if len(str(home)) <= MAX_SOCKET_PATH else {}
    return {"RAY_USAGE_STATS_ENABLED": "0", **place}


MAX_LOSSES = 4
"""How often a run may be lost without a new round, before it is given up."""
MAX_STALL = 1800.0
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
        with lock_folder(out):
            pass  # no other process works there
    with tempfile.TemporaryDirectory(prefix="potluck-flower-") as home, Processes(Path(home)) as processes:
        address = settings.server or _start_all(processes, experiment)
        connect(processes, address, settings.ca)
        tolerates_lost_nodes = experiment.schedule.on_failure == "continue"
        follower = RunFollower(processes, out.resolve(), callbacks, tolerates_lost_nodes=tolerates_lost_nodes)
        run_until_finished(follower, lambda again: _submit(follower, experiment, resume or again, command))


def run_until_finished(
    follower: RunFollower, submit: Callable[[bool], str], *, pause: float = 5.0, max_stall: float = MAX_STALL
) -> None:
    """Submit a run and follow it; one whose process was lost is submitted again, to go on from its checkpoint.

    It is given up when it was lost `TRIES` times, for `stuck` seconds, without a new round.
    """
    run, losses, rounds_seen, report_new_rounds = submit(False), 0, -1, time.monotonic()
    while True:
        try:
            return follower.follow(run)
        except KeyboardInterrupt:
            with suppress(PotluckError):  # a server that goes on without us must not go on with our run
                run_flwr(follower.processes, "stop", run, CONNECTION)
            raise
        except RunInterrupted as error:
            if follower.seen != rounds_seen:
                losses, rounds_seen, report_new_rounds = 0, follower.seen, time.monotonic()
            losses += 1
            if losses >= MAX_LOSSES and time.monotonic() - report_new_rounds >= max_stall:
                raise PotluckError(
                    f"{error}, {losses} times without a new round; look at the server's log, then go on with --resume."
                ) from None
            print(f"{error}; going on from its last checkpoint.", file=sys.stderr)
            resumed = _once_more(follower, submit, pause)
            if resumed is None:
                return follower.follow(run)
            run = resumed


def _once_more(follower: RunFollower, submit: Callable[[bool], str], pause: float) -> str | None:
    """Submit again when the server is back, and the lost process, if it still lives, has let go of the folder.

    That process may be well: a server that was away can have taken a run whose submission nobody heard of. It is left
    to its work as long as there are new rounds; None where it has brought the run to its end.
    """
    ends = time.monotonic() + follower.max_outage
    while True:
        time.sleep(pause)
        if follower.report_new_rounds():
            ends = time.monotonic() + follower.max_outage
        try:
            with lock_folder(follower.out):
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
        try:
            run_flwr(processes, "supernode", "register", str(public_key), CONNECTION, "--name", name)
        except PotluckError as error:
            raise PotluckError(
                f"{public_key} was not registered at {address}: {str(error).removeprefix('Flower refused: ')} Pass "
                "--server the address for runs and keys that potluck server start prints."
            ) from None


def _start_all(processes: Processes, experiment: Experiment) -> str:
    """Start a server and one node per client on the loopback interface; in a simulation the server alone."""
    simulation, clients = experiment.engine.simulation, experiment.partition.clients
    port, *ports = free_ports(1 if simulation else 1 + clients)
    address, options = f"127.0.0.1:{port}", ("--insecure", "--host", "127.0.0.1")
    link = [*options, "--port", str(port), "--disable-runtime-dependency-installation"]
    if simulation:
        processes.extra_environment = ray_environment(processes.home)
        link.append("--simulation")
    processes.start(SERVER, [program_path("flower-superlink"), *link])
    wait_until_up(processes, address)
    if simulation:
        return address
    secret = make_secret(processes.home / SECRET)
    workers = min(experiment.engine.workers or len(os.sched_getaffinity(0)), clients)
    processes.start(WORKER, worker_command(ports, secret, workers))
    for index, own in enumerate(ports):
        config = {"partition-id": index, "num-partitions": clients}
        processes.start(f"node-{index}", connection_command(address, own, secret, config))
    return address


def _submit(follower: RunFollower, experiment: Experiment, resume: bool, command: str) -> str:
    """Hand the app over; gives Flower's id of the run."""
    import potluck.flower

    processes = follower.processes
    follower.submitted += 1
    config = {
        "experiment": json.dumps(experiment.model_dump(mode="json", exclude_none=True)),
        "out": str(follower.out),
        "resume": resume,
        "command": command,
        "trouble": str(follower.error_file),
    }
    path = processes.home / "run.toml"
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    app = Path(potluck.flower.__file__).parent / "app"
    options = ["--run-config", str(path), "--format", "json"]
    if experiment.engine.simulation:
        options += ["--federation-config", simulation_config(experiment)]
    answer = run_flwr(processes, "run", str(app), CONNECTION, *options)
    try:
        reply = json.loads(answer)
        return str(reply["run-id"])
    except (ValueError, LookupError, TypeError):
        raise PotluckError(f"Flower refused: {_complaint(answer)}") from None


def _complaint(answer: str) -> str:
    try:
        return str(json.loads(answer)["error-message"])
    except (ValueError, LookupError, TypeError):
        return " ".join(answer.split())
