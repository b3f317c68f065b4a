"""Flower's own simulation: one server, and clients in Ray's workers instead of nodes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment
from potluck.flower.deploy.processes import need_flower

SOCKETS = 40
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
    need_flower()
    if importlib.util.find_spec("ray") is None:
        raise PotluckError("--simulation needs Ray; install it with: pip install 'potluck[simulation]'")


def simulated(experiment: Experiment) -> str:
    """How many clients, and one core for each that is at work, in the words of `flwr run --federation-config`."""
    words = [f"num-supernodes={experiment.partition.clients}", "client-resources-num-cpus=1"]
    words += ["client-resources-num-gpus=0.0", "init-args-log-to-driver=false"]
    if experiment.engine.workers:
        words.append(f"init-args-num-cpus={experiment.engine.workers}")
    return " ".join(words)


def ray_environment(home: Path) -> dict[str, str]:
    """Ray without telemetry, with its files in a folder that goes with the run, if its sockets can be there."""
    place = {"RAY_TMPDIR": str(home)} if len(str(home)) <= SOCKETS else {}
    return {"RAY_USAGE_STATS_ENABLED": "0", **place}
