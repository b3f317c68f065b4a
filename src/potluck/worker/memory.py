"""Memory: the budget for clients, the folder for those that do not fit, and options of the C library."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from potluck.core.errors import PotluckError
from potluck.core.task import CPU
from potluck.core.tree import Flat
from potluck.wire import load_state, save_state
from potluck.worker.hardware import free_memory


def available_memory() -> int:
    """Return the bytes that are available without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(free, _group_allowance())


def _group_allowance(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return what a container's limit leaves; without a limit, more than any machine has."""
    try:
        limit = int((root / "memory.max").read_text(encoding="ascii"))
        return max(0, limit - int((root / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return 1 << 62


def default_budget(device: torch.device = CPU) -> int:
    """Return half of the free memory of a device."""
    free = None if device.type == "cpu" else free_memory(device)
    return (available_memory() if free is None else free) // 2


# -- the folder for clients that do not fit ---------------------------------------------------------------------


@dataclass
class SpillFolder:
    """A `StateStore` on disk: one safetensors file per client and version, in a folder of its own.

    The folder is made on first need; only `remove` ends it.
    """

    parent: Path | str | None = None
    _path: Path | None = None

    def make(self) -> Path:
        """Make the folder, unless it is there."""
        if self._path is None:
            try:
                if self.parent is not None:
                    Path(self.parent).mkdir(parents=True, exist_ok=True)
                self._path = Path(tempfile.mkdtemp(prefix="potluck-", dir=self.parent))
            except OSError as error:
                raise _unwritable(Path(self.parent or tempfile.gettempdir()), error) from None
        return self._path

    def save(self, client: int, version: int, state: Flat) -> None:
        """Write a state; a partial file left by a killed process is overwritten."""
        path = self._file(client, version)
        try:
            save_state(path, state)
        except OSError as error:
            raise _unwritable(path, error) from None

    def load(self, client: int, version: int) -> Flat:
        """Load the state of a client and version."""
        return load_state(self._file(client, version))

    def link(self, client: int, version: int, path: Path) -> bool:
        """Hard-link a state's file to `path`; return False where that is impossible, as on another disk."""
        try:
            path.unlink(missing_ok=True)
            path.hardlink_to(self._file(client, version))
        except OSError:
            return False
        return True

    def drop(self, client: int, version: int) -> None:
        """Delete a state, if it is there."""
        self._file(client, version).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder with everything in it."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None

    def _file(self, client: int, version: int) -> Path:
        return self.make() / f"{client}-{version}.safetensors"


def _unwritable(path: Path, error: OSError) -> PotluckError:
    return PotluckError(
        f"{str(path)!r} could not be written ({error.strerror}); make room there, then continue with "
        "potluck resume and the run's folder."
    )


# -- options of the C library ------------------------------------------------------------------------------------


def retain_freed_memory() -> bool:
    """Let the C library keep freed memory for the next tensors; return False where it has no such option.

    Otherwise the memory of large temporaries (a difference of all weights, say) is returned to the system and requested
    again page by page in every step. At most `_KEPT` bytes stay unused.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(_MMAP_THRESHOLD, _LARGE) and set_option(_TRIM_THRESHOLD, _KEPT))


def release_free_memory() -> bool:
    """Return unused memory to the system after a run; return False where the C library cannot.

    Without this, a process that does many runs (a benchmark, a notebook) grows by tens of megabytes with each, as kept
    memory is fragmented by objects that outlive the run.
    """
    gc.collect()  # models and clients refer to each other
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):
        return False


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h
_LARGE, _KEPT = 32 << 20, 256 << 20
