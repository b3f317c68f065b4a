"""The folder of a run: names of its files, writing that survives a kill, and the lock."""

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
from potluck.experiment import Experiment
from potluck.experiment.differences import extends_rounds, first_difference

RUNS = Path("runs")
EXPERIMENT = "experiment.toml"
ROUNDS = "rounds.jsonl"
CLIENTS = "clients.jsonl"
SUMMARY = "summary.json"
DIGESTS = "digests.json"
REPORT = "report.html"
CHECKPOINT = "checkpoint"
FIRST_WEIGHTS = "first-weights.safetensors"
ANSWERS = "answers"
FORGOTTEN = "forgotten.json"
LEAKS = "leaks.json"
LEAK_PICTURES = "leaks.png"
WORK = ".work"
METRICS = (ROUNDS, CLIENTS)
WAITING = "waiting.txt"
"""Says for which nodes a run waits; it is there only meanwhile."""


def experiment_file(run: Path) -> Path:
    """Return the experiment file of a run's folder; a folder without one is no run."""
    file = run / EXPERIMENT
    if not file.exists():
        raise PotluckError(f"{str(run)!r} is no run folder (it has no {EXPERIMENT}); check the path.")
    return file


def read_waiting(run: Path) -> str:
    """Return the sentence that says for which nodes a run waits; empty if it waits for none."""
    try:
        return (run / WAITING).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader sees the old or the new content, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_files(out: Path, files: Mapping[str, str]) -> None:
    """Write text files to a folder, which is created if needed; a failure is one sentence."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_atomic(out / name, text)
    except OSError as error:
        raise PotluckError(f"--out {str(out)!r} cannot be written: {error.strerror}.") from None


def append_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append JSON lines in one write, so that a kill can damage only the last line."""
    if rows:
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report a full disk or a read-only folder as one sentence."""
    try:
        yield
    except OSError as error:
        raise PotluckError(
            f"{str(path)!r} could not be written ({error.strerror}); make room or make its folder writable, then "
            f"continue with: potluck resume {path.parent}"
        ) from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSON-lines file; an incomplete last line (after a kill) is left out."""
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


def run_label(experiment: Experiment, data: str) -> str:
    """Name a run by its method, data and seed."""
    return f"{experiment.method.name.split(':')[-1].lower()}-{data}-seed{experiment.seed}"


@contextmanager
def run_folder(out: Path | None, stem: str) -> Iterator[Path]:
    """Yield the given folder, or a new one below `runs`.

    A new folder is deleted if the block fails before it writes anything.
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
    """Create the first of `stem`, `stem-2`, `stem-3`, … that does not exist.

    Creation is atomic, so that two runs started at once get two names.
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
            f"A run's folder cannot be created in {str(parent)!r} ({error.strerror}); choose another place with --out."
        ) from None


def open_folder(path: Path, experiment_toml: str, *, resume: bool) -> bool:
    """Create or check the folder of a run; return whether it already holds a run of this experiment."""
    existing = path / EXPERIMENT
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not existing.exists():
            # Hidden files belong to Potluck: the lock, and files of a process that was killed at its first write.
            if any(not entry.name.startswith(".") for entry in path.iterdir()):
                raise PotluckError(f"--out {str(path)!r} holds other files; choose an empty or new folder.")
            write_atomic(existing, experiment_toml)
            return False
    except OSError as error:
        raise PotluckError(f"--out {str(path)!r} cannot be used: {error}.") from None
    if check_folder(path, experiment_toml, resume=resume):
        # The summary is deleted first: a kill in between leaves an unfinished run, never one with a wrong summary.
        with writing(existing):
            (path / SUMMARY).unlink(missing_ok=True)
            write_atomic(existing, experiment_toml)
    return True


def check_folder(path: Path, experiment_toml: str, *, resume: bool) -> bool:
    """Check that a folder holds this run and that it is resumed; return whether it gets more rounds."""
    try:
        old = parse_toml(read_text(path / EXPERIMENT))
    except (OSError, ValueError) as error:
        raise PotluckError(f"--out {str(path)!r} cannot be used: {error}.") from None
    new = parse_toml(experiment_toml)
    longer = resume and extends_rounds(old, new)
    difference = first_difference(old, new)
    if difference and not longer:
        raise PotluckError(
            f"--out {str(path)!r} holds another experiment ({difference}); choose another folder."
        )
    if not resume:
        raise PotluckError(
            f"--out {str(path)!r} already holds this run; pass --resume to continue it (in Python "
            "resume=True), or choose another folder."
        )
    if longer or not (path / SUMMARY).exists():
        _check_clients(path)
    return longer


def removed_clients(path: Path) -> frozenset[int]:
    """Return the clients that left the run that this folder is a copy of."""
    file = path / FORGOTTEN
    return frozenset(parse_json(read_text(file))["absent"]) if file.exists() else frozenset()


def _check_clients(path: Path) -> None:
    """Raise before more training where clients have left: the checkpoint still has them."""
    if absent := ",".join(map(str, sorted(removed_clients(path)))):
        raise PotluckError(
            f"{str(path)!r} is a copy without client {absent}, who would take part again in further rounds; train from "
            f"the start: potluck run {path / EXPERIMENT} --set schedule.exclude=[{absent}] --out FOLDER."
        )


# -- one process per folder ------------------------------------------------------------------------------------


LOCK = ".lock"

_held: set[int] = set()


class FolderInUse(PotluckError):
    """Another process uses the folder."""


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Lock the folder of a run, which is created if needed; another process gets `FolderInUse`.

    The kernel releases the lock when this process ends in any way, so that no stale lock remains.
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
        _acquire(file, path)
        yield
    finally:
        _held.discard(file)
        os.close(file)


def in_use(path: Path) -> bool:
    """Tell whether a process of this machine works on the run in this folder.

    Looks for the process that the lock names: taking the lock could make a run fail that starts at this moment.
    """
    if sys.platform == "win32":
        return False
    try:
        holder = int((path / LOCK).read_bytes()[:32])
        os.kill(max(holder, 1), 0)
    except PermissionError:  # alive, of another user
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _acquire(file: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
        raise FolderInUse(
            f"--out {str(path)!r} is in use by another process (id {holder}); wait for it to end, "
            "or choose another folder."
        ) from None
    except OSError as error:
        # Some network file systems have no locks; runs work there without one.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    with suppress(OSError):  # the id is only for the error message
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)


def _close_locks() -> None:
    """Close locks in a forked worker, which must not hold them after its parent was killed."""
    for file in _held:
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)
