"""One process per run folder."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from potluck.core.errors import PotluckError

LOCK = ".lock"

_held: set[int] = set()


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
        raise PotluckError(
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
