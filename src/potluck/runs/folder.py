"""A run's folder: names of its files, how they are written so that a killed run leaves them readable, and its lock."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, parse_toml, read_text
from potluck.experiment.differences import first_difference, only_more_rounds

RUNS = Path("runs")
EXPERIMENT = "experiment.toml"
ROUNDS = "rounds.jsonl"
CLIENTS = "clients.jsonl"
SUMMARY = "summary.json"
DIGESTS = "digests.json"
REPORT = "report.html"
CHECKPOINT = "checkpoint"
ANSWERS = "answers"
LEAKS = "leaks.json"
LEAK_PICTURES = "leaks.png"
WORK = ".work"
METRICS = (ROUNDS, CLIENTS)


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
    """The objects of a JSON-lines file; only a last line torn by a kill may be bad, and is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    objects: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            value = parse_json(line) if line.strip() else None
        except ValueError:
            if number == len(lines):
                break
            raise PotluckError(
                f"{str(path)!r} line {number} is not JSON: restore the file or repeat the run."
            ) from None
        if isinstance(value, dict):
            objects.append(value)
    return objects


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
    except OSError as error:
        raise PotluckError(f"--out {str(path)!r} cannot be used: {error}.") from None
    if check_folder(path, experiment_toml, resume=resume):
        # The summary goes first: a process killed in between leaves the shorter run unfinished, never a false end.
        with writing(existing):
            (path / SUMMARY).unlink(missing_ok=True)
            write_atomic(existing, experiment_toml)
    return True


def check_folder(path: Path, experiment_toml: str, *, resume: bool) -> bool:
    """Refuse a folder that holds a run already, but for this very one to go on with; says whether it gets longer."""
    try:
        old = parse_toml(read_text(path / EXPERIMENT))
    except (OSError, ValueError) as error:
        raise PotluckError(f"--out {str(path)!r} cannot be used: {error}.") from None
    new = parse_toml(experiment_toml)
    longer = resume and only_more_rounds(old, new)
    difference = first_difference(old, new)
    if difference and not longer:
        raise PotluckError(
            f"--out {str(path)!r} holds another experiment ({difference}); choose another folder."
        )
    if not resume:
        raise PotluckError(
            f"--out {str(path)!r} already holds this run; pass --resume to go on with it, or choose another folder."
        )
    return longer


# -- one process per folder ------------------------------------------------------------------------------------


LOCK = ".lock"

_held: set[int] = set()


class InUse(PotluckError):
    """Another process is at work in the folder."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the folder of a run, made if it is not there; whoever else wants it meanwhile is refused.

    The kernel frees the lock when this process ends, however it ends: no stale lock is left to be deleted.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise PotluckError(
            f"--out {str(path)!r} cannot be written to ({error.strerror}); make it writable, or choose another folder."
        ) from None
    _held.add(file)
    try:
        _take(file, path)
        yield
    finally:
        _held.discard(file)
        os.close(file)


def in_use(path: Path) -> bool:
    """Whether a process of this machine is at work on the run in this folder.

    The process that the lock names is looked for; trying the lock would refuse a run that starts just then.
    """
    if sys.platform == "win32":
        return False
    try:
        holder = int((path / LOCK).read_bytes()[:32])
        os.kill(max(holder, 1), 0)
    except PermissionError:  # somebody else's, and alive
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _take(file: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
        raise InUse(
            f"--out {str(path)!r} is in use by another process (id {holder}); wait for it to end, "
            "or choose another folder."
        ) from None
    except OSError as error:
        # Some network file systems have no locks: better to run than to refuse everybody.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    with suppress(OSError):  # only a courtesy to whoever is refused
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)


def _let_go() -> None:
    """A forked worker must not keep the lock alive after its parent was killed."""
    for file in _held:
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
