"""A run's folder: names of its files, and how they are written so that a killed run leaves them readable."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.limits import parse_json, parse_toml, read_text

RUNS = Path("runs")
EXPERIMENT = "experiment.toml"
ROUNDS = "rounds.jsonl"
CLIENTS = "clients.jsonl"
SUMMARY = "summary.json"
REPORT = "report.html"
CHECKPOINT = "checkpoint"
WORK = ".work"
METRICS = (ROUNDS, CLIENTS)

_NO_MATTER = {f"engine.{name}" for name in ("name", "workers", "memory", "device", "checkpoint_every")}


def write_atomic(path: Path, text: str) -> None:
    """The whole file or the old one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_files(out: Path, files: Mapping[str, str]) -> None:
    """Write texts into a folder, which is made where it is missing; what cannot be written is one sentence."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_atomic(out / name, text)
    except OSError as error:
        raise PotluckError(f"--out {str(out)!r} cannot be written: {error.strerror}.") from None


def append_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add JSON lines in one write, so that at most the last line can be torn."""
    if rows:
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full disk or a folder that became read-only into a sentence."""
    try:
        yield
    except OSError as error:
        raise PotluckError(
            f"{str(path)!r} could not be written ({error.strerror}); make room or make its folder writable, then "
            f"go on with: potluck resume {path.parent}"
        ) from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole JSON lines of a file; a torn last line is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def read_summary(run: Path) -> dict[str, Any]:
    """What a finished run's summary says."""
    file = run / SUMMARY
    try:
        summary = parse_json(read_text(file))
    except (OSError, ValueError) as error:
        raise PotluckError(
            f"{str(file)!r} cannot be read ({error}); delete it to have it written again by: potluck resume {run}"
        ) from None
    if not isinstance(summary, dict):
        raise PotluckError(f"{str(file)!r} is no summary; delete it and: potluck resume {run}")
    return summary


@contextmanager
def chosen_folder(out: Path | None, stem: str) -> Iterator[Path]:
    """The folder that was asked for, or else a new one below `runs`.

    If what follows fails before anything is written into a new one, it is taken away again.
    """
    if out is not None:
        yield out
        return
    path = new_folder(RUNS, stem.replace("/", "-").replace(":", "-"))
    try:
        yield path
    except BaseException:
        if not any(entry.is_file() and not entry.name.startswith(".") for entry in path.rglob("*")):
            shutil.rmtree(path, ignore_errors=True)
        raise


def new_folder(parent: Path, stem: str) -> Path:
    """Make the first of `stem`, `stem-2`, `stem-3`, … that does not exist yet.

    Making it is what claims it, so that two runs started at once get two names.
    """
    number, path = 1, parent / stem
    try:
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
                path = parent / f"{stem}-{number}"
            else:
                return path
    except OSError as error:
        raise PotluckError(
            f"A run's folder cannot be made in {str(parent)!r} ({error.strerror}); choose another place with --out."
        ) from None


def open_folder(path: Path, experiment_toml: str, *, resume: bool) -> bool:
    """Make or check the folder of a run; says whether it already holds one of this very experiment."""
    existing = path / EXPERIMENT
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not existing.exists():
            # Hidden files are our own: the lock, and what a process killed at its first write left behind.
            if any(not entry.name.startswith(".") for entry in path.iterdir()):
                raise PotluckError(f"--out {str(path)!r} holds other files; choose an empty or new folder.")
            write_atomic(existing, experiment_toml)
            return False
        old = parse_toml(read_text(existing))
    except (OSError, ValueError) as error:
        raise PotluckError(f"--out {str(path)!r} cannot be used: {error}.") from None
    difference = first_difference(old, parse_toml(experiment_toml))
    if difference:
        raise PotluckError(
            f"--out {str(path)!r} holds another experiment ({difference}); choose another folder."
        )
    if not resume:
        raise PotluckError(
            f"--out {str(path)!r} already holds this run; pass --resume to go on with it, or choose another folder."
        )
    return True


def first_difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str | None:
    """The first setting in which two experiments differ, in words; those that change no result are left out."""
    for key in sorted(old.keys() | new.keys()):
        name = f"{prefix}{key}"
        mine, theirs = old.get(key), new.get(key)
        if name in _NO_MATTER or mine == theirs:
            continue
        if isinstance(mine, dict) and isinstance(theirs, dict):
            if found := first_difference(mine, theirs, f"{name}."):
                return found
            continue
        return f"{name} is {mine!r} there and {theirs!r} here"
    return None
