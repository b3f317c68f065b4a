"""Flags shared by commands that run experiments. Every flag is a field of the experiment."""

from __future__ import annotations

from typing import Annotated

import typer

Data = Annotated[
    str | None, typer.Option("--data", help="digits, cifar10, folder:PATH, … (see potluck datasets)")
]
DataRoot = Annotated[str | None, typer.Option("--data-root", help="where data files lie; else POTLUCK_DATA")]
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
Engine = Annotated[str | None, typer.Option("--engine", help="serial | pool | flower")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", help="worker processes of the pool, per device; 0: one per core, or by trial"),
]
Memory = Annotated[
    float | None,
    typer.Option(
        "--memory",
        help="gigabytes that clients may hold, per device; others go to disk; 0: half of what is free",
    ),
]
Server = Annotated[
    str | None, typer.Option("--server", help="flower: HOST:PORT of a server; else all on this machine")
]
Authority = Annotated[
    str | None, typer.Option("--ca", help="flower: the server's authority certificate (ca.crt)")
]
Simulation = Annotated[
    bool | None,
    typer.Option("--simulation/--no-simulation", help="flower: on this machine, in Ray's workers"),
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
Assign = Annotated[str | None, typer.Option("--assign", help="who gets which model: cycle | memory")]
CheckpointEvery = Annotated[
    int | None, typer.Option("--checkpoint-every", help="rounds between checkpoints; 0: none")
]
KeepAnswers = Annotated[
    bool | None,
    typer.Option("--keep-answers/--no-keep-answers", help="keep what clients send, for potluck leak"),
]
Seed = Annotated[int | None, typer.Option("--seed", help="a result depends on the experiment and this")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="any setting: --set training.lr=0.1 (repeat for more)")
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="csv | tensorboard | mlflow | wandb (repeat for more)"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, only the result")]


def silent(_: str) -> None:
    """What a command with `--quiet` says of its runs: nothing."""
