"""How much memory clients may take, and the folder that holds the states of those that do not fit."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from potluck.core.errors import PotluckError
from potluck.core.task import CPU
from potluck.core.tree import Flat
from potluck.engines.hardware import free_memory
from potluck.loop.letter import load_state, save_state


def available_memory() -> int:
    """Bytes that could be used now without pushing anybody else out."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(free, _group_allowance())


def _group_allowance(root: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container's own limit leaves; without one, more than any machine has."""
    try:
        limit = int((root / "memory.max").read_text(encoding="ascii"))
        return max(0, limit - int((root / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return 1 << 62


def default_budget(device: torch.device = CPU) -> int:
    """Half of what is free, where clients of this device live."""
    free = None if device.type == "cpu" else free_memory(device)
    return (available_memory() if free is None else free) // 2


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
        """Write a state; a file of that name, left by somebody who died over it, is overwritten."""
        path = self._file(client, version)
        try:
            save_state(path, state)
        except OSError as error:
            raise _unwritable(path, error) from None

    def load(self, client: int, version: int) -> Flat:
        """The state of this client and version."""
        return load_state(self._file(client, version))

    def link(self, client: int, version: int, path: Path) -> bool:
        """Give a state's file a second name; False where that cannot be, as on another disk."""
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
        f"{str(path)!r} could not be written ({error.strerror}); make room there, then go on with potluck resume "
        "and the run's folder."
    )
