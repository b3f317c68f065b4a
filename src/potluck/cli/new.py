"""`potluck new`: a small project to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

TEMPLATES = Path(__file__).parent / "project"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the project, a new folder")],
) -> None:
    """Write a small project: a method, models and data of your own, an experiment, and a test."""
    from string import Template

    from potluck.core.errors import PotluckError
    from potluck.runs.folder import write_files

    folder = Path(name)
    label = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")
    if not re.match("[a-z]", label):
        raise PotluckError(
            f"{name!r} is no name for a project; write one that begins with a letter, such as fed-mine."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PotluckError(f"{name!r} is there already and not empty; choose another name.")
    words = {"NAME": label, "CLASS": _class_name(folder.name)}
    files = {
        path.name.removesuffix(".txt"): Template(path.read_text(encoding="utf-8")).substitute(words)
        for path in sorted(TEMPLATES.glob("*.txt"))
    }
    write_files(folder, files)
    typer.echo(f"Project: {folder} ({', '.join(files)})")
    typer.echo(f"Try it: cd {folder} && python -m pytest && python experiment.py")


def _class_name(name: str) -> str:
    """`fed-mine` as `FedMine`; capitals that are there stay."""
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", name) if word)
