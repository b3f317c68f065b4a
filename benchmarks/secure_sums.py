"""Measure secure sums: accuracy, bytes, time, exactness and leaks: `python -m benchmarks.secure_sums`.

Digits, 900 rows, ten clients of one small network, dealt by Dirichlet(0.5), four rounds of five epochs, each method
with and without `privacy.secure_sums`. Leaks are those of `potluck leak`, on what the server sees.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from potluck import api
from potluck.analysis.leak import find_leaks
from potluck.core import tree
from potluck.core.random import one_thread
from potluck.engines.serial import SerialEngine
from potluck.experiment import Experiment, parse_experiment
from potluck.federation.population import build_federation
from potluck.loop.loop import Loop
from potluck.loop.secure_sums import SecureSumServer
from potluck.privacy.fixed_form import summation
from potluck.privacy.settings import Privacy
from potluck.runs.folder import write_atomic
from potluck.runs.writer import provenance
from potluck.worker.worker import Worker

METHODS: dict[str, dict[str, Any]] = {
    "fedproto": {},
    "fedgh": {"server_mode": "averaged"},
    "lg-fedavg": {},
    "fedavg": {},
    "pfedafm": {},
    "fd": {},
    "fedcgs": {},
}
SEEDS = (0, 1, 2)
WITHOUT_LEAKS = ("pfedafm",)
SOLVED = ("fedgh", "fedcgs")
"""Methods whose state is trained on sums, or solved from them: no bound follows from that of the sums."""


def experiment(method: str, seed: int, *, sums: bool, quick: bool = False) -> Experiment:
    """Return the experiment of one row."""
    return parse_experiment(
        {
            "seed": seed,
            "method": {"name": method, **METHODS[method]},
            "data": {"name": "digits", "limit": 200 if quick else 900},
            "partition": {"clients": 4 if quick else 10, "rule": "dirichlet:0.5"},
            "models": {"names": "small-mlp"},
            "training": {"epochs": 1 if quick else 5, "lr": 0.1},
            "schedule": {"rounds": 2 if quick else 4},
            "engine": {"name": "serial", "keep_answers": True, "checkpoint_every": 4},
            **({"privacy": {"secure_sums": True}} if sums else {}),
        }
    )


def measure_run(method: str, seed: int, *, sums: bool, quick: bool = False) -> dict[str, Any]:
    """Run once; return accuracy, bytes of a client and round, and leaks."""
    with TemporaryDirectory() as folder:
        run = api.run(experiment(method, seed, sums=sums, quick=quick), out=Path(folder) / "run")
        rounds, clients = len(run.rounds), run.summary["clients"]
        leaks = [] if method in WITHOUT_LEAKS else find_leaks(run.path).scores
    return {
        "method": method,
        "seed": seed,
        "sums": sums,
        "accuracy": run.summary["final_accuracy"],
        "bytes_up": run.summary["bytes_up"] / rounds / clients,
        "bytes_down": run.summary["bytes_down"] / rounds / clients,
        "leaks": [
            {"question": score.question, "score": score.score, "chance": score.chance} for score in leaks
        ],
    }


class RealMasks(SerialEngine):
    """The serial engine, whose clients and server use the cryptography of nodes."""

    remote = True


def first_round(
    method: str, *, sums: bool, quick: bool = False
) -> tuple[dict[str, torch.Tensor], Loop, float]:
    """Return the server's state after one round with real masks, and the seconds of the stages of the sum."""
    secured = experiment(method, 0, sums=sums, quick=quick)
    built = secured.build_method()
    federation = build_federation(secured, built)
    privacy = Privacy(secure_sums=True) if sums else None
    worker = Worker(built, federation.client, privacy=privacy, secret_masks=True)
    loop = Loop(
        built, federation.task, RealMasks(worker), secured.schedule, secured.evaluate, privacy=privacy
    )
    seconds = [0.0]
    if loop.sums is not None:
        _time_sums(loop.sums, seconds)
    loop.step()
    state = tree.flatten(loop.progress.state).tensors
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}, loop, seconds[0]


def _time_sums(server: SecureSumServer, seconds: list[float]) -> None:
    original = server.open

    def timed(*arguments: Any) -> Any:
        started = time.process_time()
        opened = original(*arguments)
        seconds[0] += time.process_time() - started
        return opened

    server.__dict__["open"] = timed


def measure_exactness(method: str, *, quick: bool = False) -> dict[str, Any]:
    """Return the largest difference to the plain state after one round, the stated bound, and the processor time."""
    plain, _, _ = first_round(method, sums=False, quick=quick)
    summed, loop, seconds = first_round(method, sums=True, quick=quick)
    assert loop.sums is not None
    weights = [loop.sums.forms.weight(info.samples) for info in loop.task.clients if info.samples]
    how = summation(Privacy(secure_sums=True), sum(weights), len(weights))
    per_class = any(role == "held" for role in loop.sums.forms.roles.values())
    return {
        "method": method,
        "difference": max(float((plain[name] - summed[name]).abs().max()) for name in plain),
        # Of a class vector with a single sender; of weights, over all clients.
        "bound": None if method in SOLVED else how.error(len(weights), 1.0 if per_class else sum(weights)),
        "seconds": seconds,
        "clients": len(weights),
    }


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything."""
    rows = list(_rows(quick=quick))
    exactness = [measure_exactness(method, quick=quick) for method in METHODS]
    return {"made": {**provenance(), "load": os.getloadavg()[0]}, "rows": rows, "exactness": exactness}


def _rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    for method in METHODS:
        for seed in SEEDS[:1] if quick else SEEDS:
            for sums in (False, True):
                yield measure_run(method, seed, sums=sums, quick=quick)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="shows that everything works")] = False,
    store: Annotated[Path | None, typer.Option("--store", help="JSON file to write")] = None,
) -> None:
    """Measure secure sums; about ten minutes on a free core."""
    with one_thread():
        rows = measure(quick=quick)
    text = json.dumps(rows, indent=1) + "\n"
    if store is None:
        typer.echo(text)
    else:
        write_atomic(store, text)


if __name__ == "__main__":
    typer.run(main)
