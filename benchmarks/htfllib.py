"""Compare Potluck with HtFLlib, from a clone of your own: `make bench-htfllib CHECKOUT=DIR`.

The work is that of HtFLlib's script: 6,000 images of CIFAR-10 dealt to 20 clients by Dirichlet 0.1, cnn-1 … cnn-5 in
turn, one epoch in batches of 10 (a last batch that is not full is left out), every client tested in every round. Its
own servers run from the clone with the defaults of its `main.py`, on two threads; the clients' rows are written down
as it reads them. Between its rounds Potluck's pool of two workers does the same rounds with the same settings.
A figure is the seconds of a round by the clock; the first of each is not counted.

The five networks are given to HtFLlib in the form of its own CNNs. `torchvision` and `h5py` are imported there for
other networks and for a file of results; where they are missing, empty modules stand in for them.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import os
import sys
import time
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, closing, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.population import CNNS, pool_engine
from benchmarks.results import Row, Spread, machine, ratio, store_rows
from potluck.core.errors import PotluckError, unknown
from potluck.core.random import one_thread
from potluck.experiment import Experiment, parse_experiment
from potluck.federation.federation import Federation
from potluck.federation.population import build_federation
from potluck.loop.loop import Loop
from potluck.models import build_model
from potluck.worker.memory import retain_freed_memory

PART, GOAL, TRIALS = "HtFLlib on 2 threads ÷ pool of 2", 2.5, 7
ROUNDS = 1000
"""As many are planned on both sides; FedKD's compression follows the plan."""
UNUSED = ("torchvision", "h5py")


@dataclass(frozen=True)
class Pair:
    """A server of HtFLlib, and the method of ours with what makes it do the same."""

    module: str
    server: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = "local"
    """HtFLlib tests after the server's message; where that changes nothing, right after training is the same."""
    training: Mapping[str, Any] = field(default_factory=dict)
    shared: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


CLIPPED = {"clip_norm": 10.0}
PAIRS = {
    "Local": Pair("serverlocal", "Local", "standalone"),
    "FedGH": Pair(
        "servergh",
        "FedGH",
        "fedgh",
        {"server_mode": "pooled", "server_passes": 100},
        "received",
        arguments={"server_epochs": 100},
    ),
    "LG-FedAvg": Pair("serverlg", "LG_FedAvg", "lg-fedavg", {}, "received"),
    "FedProto": Pair(
        "serverproto",
        "FedProto",
        "fedproto",
        {"collect": "training", "prediction": "proto_all"},
        "received",
    ),
    "FML": Pair("serverfml", "FML", "fml", {"htfllib_compat": True}, "local", CLIPPED, CNNS[0]),
    "FedKD": Pair(
        "serverkd", "FedKD", "fedkd", {"htfllib_compat": True, "uplink": "params"}, "local", CLIPPED, CNNS[0]
    ),
}


class PaperCNN(nn.Module):
    """cnn-1 … cnn-5 as HtFLlib writes its own CNNs: rectified, then pooled, and a last layer `fc` that it takes off."""

    def __init__(self, name: str, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        network: Any = build_model(name, shape, classes)
        layers: list[nn.Module] = []
        for conv in (network.conv1, network.conv2):
            layers += [nn.Conv2d(conv.in_channels, conv.out_channels, 5), nn.ReLU(True), nn.MaxPool2d(2)]
        layers.append(nn.Flatten())
        for dense in (network.fc1, network.fc2):
            layers += [nn.Linear(dense.in_features, dense.out_features), nn.ReLU(True)]
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(network.feature_dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = self.fc(self.layers(x))
        return scores


# -- HtFLlib ---------------------------------------------------------------------------------------------------


def open_checkout(checkout: Path) -> Path:
    """The folder of HtFLlib's programs, from which its modules are imported from now on."""
    system = checkout.resolve() / "system"
    needed = ["main.py", *(f"flcore/servers/{pair.module}.py" for pair in PAIRS.values())]
    if missing := [name for name in needed if not (system / name).is_file()]:
        raise PotluckError(
            f"--checkout {str(checkout)!r} is no clone of HtFLlib (it has no system/{missing[0]}); clone "
            "github.com/TsingZ0/HtFLlib and name the folder."
        )
    for name in UNUSED:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
    sys.path.insert(0, str(system))
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # it saves and loads whole networks
    warnings.simplefilter("ignore")  # as its own program does
    return system


def default_arguments(main: Path) -> dict[str, Any]:
    """The defaults of its command line, read from its source: the program itself imports far more than runs here."""
    defaults = {}
    for node in ast.walk(ast.parse(main.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            words = [word.value for word in node.args if isinstance(word, ast.Constant)]
            default = {keyword.arg: keyword.value for keyword in node.keywords}.get(
                "default", ast.Constant(None)
            )
            with suppress(ValueError):
                defaults[str(words[-1]).lstrip("-")] = ast.literal_eval(default)
    return defaults


def make_server(name: str, federation: Federation, experiment: Experiment, system: Path) -> Any:
    """HtFLlib's server with its clients, whose rows lie beside the working folder."""
    pair, task = PAIRS[name], federation.task
    try:
        networks = importlib.import_module("flcore.trainmodel.models")
        server = getattr(importlib.import_module(f"flcore.servers.{pair.module}"), pair.server)
    except (ImportError, AttributeError) as error:
        raise PotluckError(
            f"HtFLlib in {str(system.parent)!r} could not be imported: {error}; install what is missing, or take "
            "another version of it."
        ) from None
    networks.PaperCNN = PaperCNN  # type: ignore[attr-defined]  # networks are named there as code
    arguments = {
        **default_arguments(system / "main.py"),
        "algorithm": name,
        "dataset": "Rows",
        "device": "cpu",
        "num_clients": len(task.clients),
        "num_classes": task.num_classes,
        "feature_dim": task.feature_dim,
        "batch_size": experiment.training.batch_size,
        "local_learning_rate": experiment.training.lr,
        "local_epochs": experiment.training.epochs,
        "global_rounds": experiment.schedule.rounds,
        "models": [f"PaperCNN({name!r}, {task.input_shape!r}, {task.num_classes})" for name in CNNS],
        **pair.arguments,
    }
    return server(argparse.Namespace(**arguments), 0)


def write_rows(federation: Federation, folder: Path) -> None:
    """Every client's rows, as HtFLlib's own script writes them."""
    for index, member in enumerate(federation.members):
        for kind, samples in (("train", member.train), ("test", member.test)):
            x, y = samples.take(slice(None))
            place = folder / "dataset" / "Rows" / kind
            place.mkdir(parents=True, exist_ok=True)
            rows: Any = {"x": x.contiguous().numpy(), "y": y.numpy()}
            np.savez_compressed(place / f"{index}.npz", data=rows)


# -- in turns --------------------------------------------------------------------------------------------------


class EnoughRounds(Exception):
    """Ends HtFLlib's program, which knows no other way to stop early."""


class Turns:
    """Stands where HtFLlib tests its clients, once in every round: there its round ends, and ours has its turn."""

    def __init__(self, evaluate: Callable[[], None], step: Callable[[], None], trials: int) -> None:
        self.evaluate, self.step, self.trials = evaluate, step, trials
        self.theirs: list[float] = []
        self.ours: list[float] = []
        self.began = 0.0

    def __call__(self) -> None:
        """Note the round that ended, do one of ours, and let the next begin."""
        if self.began:
            self.theirs.append(time.perf_counter() - self.began)
            with one_thread():
                started = time.perf_counter()
                self.step()
                self.ours.append(time.perf_counter() - started)
        if len(self.ours) > self.trials:
            raise EnoughRounds
        self.began = time.perf_counter()
        self.evaluate()


def describe(pair: Pair, data: str, images: int, clients: int) -> Experiment:
    """The work as an experiment of ours."""
    return parse_experiment(
        {
            "method": {"name": pair.method, **pair.options},
            "data": {"name": data, "limit": images, "split": "75:25"},
            "partition": {"rule": "dirichlet:0.1", "clients": clients},
            "models": {"names": CNNS, **({"shared": pair.shared} if pair.shared else {})},
            "training": {"epochs": 1, "batch_size": 10, "lr": 0.01, "drop_last": True, **pair.training},
            "schedule": {"rounds": ROUNDS},
            "evaluate": {"protocol": pair.protocol},
        }
    )


def rounds_in_turns(name: str, experiment: Experiment, system: Path, trials: int) -> Turns:
    """Rounds of HtFLlib and of the pool; everything is written to a temporary folder."""
    method = experiment.build_method()
    federation = build_federation(experiment, method)
    with TemporaryDirectory(prefix="htfllib-") as folder, closing(pool_engine(method, federation)) as engine:
        loop = Loop(method, federation.task, engine, experiment.schedule, experiment.evaluate)
        write_rows(federation, Path(folder))
        work = Path(folder) / "system"  # it looks for its data in ../dataset
        work.mkdir()
        torch.set_num_threads(2)
        with chdir(work), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            server = make_server(name, federation, experiment, system)
            turns = Turns(server.evaluate, loop.step, trials)
            server.evaluate = turns
            with suppress(EnoughRounds):
                server.train()
    return turns


def rows_of(name: str, turns: Turns) -> list[Row]:
    """The seconds of both, and what one is of the other; the first round warmed up."""
    peer_seconds, own_seconds = turns.theirs[1:], turns.ours[1:]
    return [
        Row(PART, f"{name}, a round of HtFLlib", Spread.of(peer_seconds), "s"),
        Row(PART, f"{name}, a round of the pool", Spread.of(own_seconds), "s"),
        Row(PART, name, ratio(peer_seconds, own_seconds), goal=GOAL, at_least=True),
    ]


def measure(options: argparse.Namespace) -> list[Row]:
    """The rows of every method that was asked for, shown as they come."""
    names = options.methods.split(",") if options.methods else list(PAIRS)
    for name in names:
        if name not in PAIRS:
            raise unknown("method of HtFLlib", name, PAIRS)
    if options.trials < 1:
        raise PotluckError(f"--trials {options.trials} counts no round; set 1 or more.")
    if options.store is not None and set(names) != set(PAIRS):
        raise PotluckError("--store replaces the rows of all methods; leave --methods out.")
    system = open_checkout(options.checkout)
    rows: list[Row] = []
    for name in names:
        experiment = describe(PAIRS[name], options.data, options.images, options.clients)
        for row in rows_of(name, rounds_in_turns(name, experiment, system, options.trials)):
            rows.append(row)
            print(row, flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the table's rows, and keep them where told."""
    words = argparse.ArgumentParser(description=main.__doc__)
    words.add_argument("--checkout", type=Path, required=True, help="your clone of HtFLlib")
    words.add_argument("--methods", default="", help=f"some of {','.join(PAIRS)}, for a quick look")
    words.add_argument("--trials", type=int, default=TRIALS, help="rounds that count")
    words.add_argument("--data", default="cifar10", help="other images, for a quick look")
    words.add_argument("--images", type=int, default=6000, help="how many of them")
    words.add_argument("--clients", type=int, default=20, help="how many clients")
    words.add_argument("--store", type=Path, help="a table in which the rows of this part are replaced")
    options = words.parse_args(arguments)
    retain_freed_memory()
    print(machine(), flush=True)
    try:
        rows = measure(options)
        if options.store is not None:
            store_rows(options.store, rows)
    except PotluckError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
