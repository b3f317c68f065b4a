"""Flags that several commands share. Every flag of an experiment is one of its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

Data = Annotated[
    str | None,
    typer.Option("--data", help="digits, cifar10, folder:PATH, sites:PATH, … (see potluck datasets)"),
]
DataRoot = Annotated[
    str | None, typer.Option("--data-root", help="folder of data files; default: POTLUCK_DATA")
]
Label = Annotated[str | None, typer.Option("--label", help="the column of a table to predict")]
Groups = Annotated[
    str | None, typer.Option("--groups", help="the column of a table that names each row's client")
]
Text = Annotated[str | None, typer.Option("--text", help="the column of a table that holds texts")]
Missing = Annotated[
    str | None, typer.Option("--missing", help="refuse | impute: what to do with missing values of a table")
]
ImageSize = Annotated[int | None, typer.Option("--image-size", help="resize images to this size")]
Partition = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="iid | dirichlet:0.1 | pathological:2 | contiguous | natural | skew:rotate=45 | file:PATH",
    ),
]
Models = Annotated[str | None, typer.Option("--models", help="a group (small5) or a list (cnn-1,resnet18)")]
Clients = Annotated[int | None, typer.Option("--clients", help="number of clients")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="number of rounds")]
Participation = Annotated[
    float | None, typer.Option("--participation", help="share of clients per round, in (0, 1]")
]
LearningRate = Annotated[float | None, typer.Option("--lr", help="learning rate of local training")]
Epochs = Annotated[int | None, typer.Option("--epochs", help="epochs of local training per round")]
Engine = Annotated[str | None, typer.Option("--engine", help="serial | pool | flower")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", help="worker processes of the pool, per device; 0: one per core, or found by a trial"
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        "--memory",
        help="gigabytes of memory for clients, per device; others are kept on disk; 0: half of the free memory",
    ),
]
Server = Annotated[
    str | None, typer.Option("--server", help="flower: HOST:PORT of a server; default: all on this machine")
]
Authority = Annotated[
    str | None, typer.Option("--ca", help="flower: the server's authority certificate (ca.crt)")
]
Simulation = Annotated[
    bool | None,
    typer.Option("--simulation/--no-simulation", help="flower: simulation on this machine, in Ray's workers"),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu | cuda | mps | several: cuda:0,cuda:1")]
Vectorize = Annotated[
    str | None,
    typer.Option("--vectorize", help="off | on | auto: train clients of one architecture together"),
]
Fleet = Annotated[
    str | None,
    typer.Option("--fleet", help="devices: uniform | phones | silos | long-tail | FILE.toml | FILE.csv"),
]
Assign = Annotated[
    str | None, typer.Option("--assign", help="assignment of models to clients: cycle | memory")
]
Safeguard = Annotated[
    str | None,
    typer.Option(
        "--safeguard", help="off | select | ensemble: clients also train alone, and use what is better"
    ),
]
CheckpointEvery = Annotated[
    int | None, typer.Option("--checkpoint-every", help="rounds between checkpoints; 0: none")
]
KeepAnswers = Annotated[
    bool | None,
    typer.Option("--keep-answers/--no-keep-answers", help="store what clients send, for potluck leak"),
]
Seed = Annotated[int | None, typer.Option("--seed", help="seed of all random numbers")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="any setting: --set training.lr=0.1 (repeat for more)")
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="csv | tensorboard | mlflow | wandb (repeat for more)"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print only the result")]


Command = TypeVar("Command", bound=Callable[..., None])
Flags = Mapping[str, Any]
"""Values of setting flags, by the names of flags; None where a flag is not given."""

SETTING_FLAGS: dict[str, Any] = {
    "data": Data,
    "data_root": DataRoot,
    "label": Label,
    "groups": Groups,
    "text": Text,
    "missing": Missing,
    "image_size": ImageSize,
    "partition": Partition,
    "models": Models,
    "clients": Clients,
    "rounds": Rounds,
    "participation": Participation,
    "lr": LearningRate,
    "epochs": Epochs,
    "engine": Engine,
    "workers": Workers,
    "memory": Memory,
    "server": Server,
    "ca": Authority,
    "simulation": Simulation,
    "device": Device,
    "vectorize": Vectorize,
    "fleet": Fleet,
    "assign": Assign,
    "safeguard": Safeguard,
    "seed": Seed,
    "checkpoint_every": CheckpointEvery,
    "keep_answers": KeepAnswers,
}
"""Types of the flags that set one setting each; their names are those of `potluck.experiment.SHORT_FORMS`."""

OWN_DATA = ("label", "groups", "text", "missing", "image_size")
EXPERIMENT = (
    "data",
    "data_root",
    *OWN_DATA,
    "partition",
    "models",
    "clients",
    "rounds",
    "participation",
    "lr",
    "epochs",
)
ENGINE = ("engine", "workers", "memory", "device")
DEVICES = ("vectorize", "fleet", "assign", "safeguard")


def with_flags(*names: str) -> Callable[[Command], Command]:
    """Declare the setting flags of a command, which receives their values as one parameter `flags`."""

    def declare(command: Command) -> Command:
        command.__dict__["setting_flags"] = names
        return command

    return declare


def parse_seeds(text: str) -> list[int]:
    """Parse a comma-separated list of whole numbers and ranges: `0,1,2`, `0-2`."""
    from potluck.core.errors import PotluckError

    seeds: list[int] = []
    try:
        for entry in text.split(","):
            first, dash, last = entry.strip().partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        seeds = []
    if not seeds:
        raise PotluckError(
            f"--seeds {text!r} is not a comma list of whole numbers or ranges, such as 0,1,2 or 0-2."
        )
    return seeds


def silent(_: str) -> None:
    """Print nothing: the progress of a command with `--quiet`."""
