"""`potluck doctor | new | data`: check this machine, create a project, prepare data."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli import options


def doctor(
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="check this accelerator; default: all (repeat for more)"),
    ] = None,
) -> None:
    """Check this machine: train every kind of method on each device, and measure speed; about a minute."""
    from potluck.doctor import TABLE_HEADER, run_checks, table_row

    typer.echo(TABLE_HEADER)
    failed = False
    for check in run_checks(device or ()):
        typer.echo(table_row(check))
        failed |= not check.ok
    if failed:
        raise typer.Exit(1)


TEMPLATES = Path(__file__).parent / "project"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the project: a new folder")],
) -> None:
    """Create a small project with your own method, models and data, an experiment, and a test."""
    from string import Template

    from potluck.core.errors import PotluckError
    from potluck.runs.folder import write_files

    folder = Path(name)
    label = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")
    if not re.match("[a-z]", label):
        raise PotluckError(
            f"{name!r} is not valid as a project name; use one that begins with a letter, such as fed-mine."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PotluckError(f"{name!r} exists and is not empty; choose another name.")
    words = {"NAME": label, "CLASS": _class_name(folder.name)}
    files = {
        path.name.removesuffix(".txt"): Template(path.read_text(encoding="utf-8")).substitute(words)
        for path in sorted(TEMPLATES.glob("*.txt"))
    }
    write_files(folder, files)
    typer.echo(f"Project: {folder} ({', '.join(files)})")
    python = _python()
    typer.echo(f"Try it: cd {shlex.quote(str(folder))} && {python} experiment.py")
    install = "" if find_spec("pytest") else f"{python} -m pip install pytest && "
    typer.echo(f"Test it: {install}{python} -m pytest")


def _python() -> str:
    """Return the command that starts this Python: its name if the shell finds it, else its path."""
    for name in ("python", "python3"):
        if (place := shutil.which(name)) and Path(place).absolute() == Path(sys.executable).absolute():
            return name
    return shlex.quote(sys.executable)


def _class_name(name: str) -> str:
    """Convert `fed-mine` to `FedMine`; existing capitals are kept."""
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", name) if word)


data_app = typer.Typer(
    help="Prepare data, or show how it is partitioned among clients.", no_args_is_help=True
)


@data_app.command("prepare")
def prepare(
    name: Annotated[str, typer.Argument(help="a data set")], data_root: options.DataRoot = None
) -> None:
    """Download and verify a data set, or print which files to put where."""
    from potluck.data import prepare as prepare_data

    typer.echo(prepare_data(name, data_root, typer.echo))


@data_app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="a data set")] = "digits",
    data_root: options.DataRoot = None,
    partition: options.Partition = None,
    clients: options.Clients = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    label: options.Label = None,
    groups: options.Groups = None,
    text: options.Text = None,
    image_size: options.ImageSize = None,
    missing: options.Missing = None,
    out: Annotated[Path | None, typer.Option("--out", help="bubble plot: .png or .svg")] = None,
) -> None:
    """Print the number of samples per client and class, and draw a bubble plot."""
    from potluck.cli.progress import imputation_sentence
    from potluck.data import bubble_plot, load_data, parse_partition, sizes_table
    from potluck.data import partition as deal
    from potluck.data.raw import TableInput
    from potluck.experiment.sections import PartitionSettings

    choices = {"label": label, "groups": groups, "text": text, "image_size": image_size, "missing": missing}
    data = load_data(name, data_root, **choices).merged()  # type: ignore[arg-type]
    defaults, names = PartitionSettings(), data.group_names
    if names and partition in (None, "natural"):
        partition, clients = "natural", clients or len(names)
    rule = parse_partition(partition or defaults.rule)
    dealt = deal(data, rule, clients or defaults.clients, seed)
    shown = names[: len(dealt.counts)] if str(rule) == "natural" else ()
    typer.echo(repr(data))
    typer.echo(sizes_table(dealt.counts, data.class_names, shown))
    if isinstance(data.raw, TableInput) and data.raw.imputed:
        typer.echo(imputation_sentence(name, data.raw.imputed))
    if out is not None:
        bubble_plot(dealt.counts, out, "", data.class_names, shown)
        typer.echo(f"Bubble plot: {out}")
