"""The machine as a CPU user needs to know it: torch's build, threads, memory, disk, data."""

from __future__ import annotations

import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import potluck
from potluck.data.load import WITH_REST, data_root, list_data
from potluck.doctor.finding import Finding
from potluck.engines.memory import available_memory

WRITTEN = 32 << 20


def look_at_machine(folder: Path = Path()) -> Iterator[Finding]:
    """Findings of a second or two; `folder` is where runs would be written."""
    yield Finding("software", "potluck, Python", f"{potluck.__version__}, {platform.python_version()}")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    yield Finding("software", "torch", f"{torch.__version__}, {built}, BLAS {_blas()}")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding(
        "machine", "processor", f"{platform.machine()}, {capability}, {cores} cores, load {load:.1f}"
    )
    threads = f"{torch.get_num_threads()} by torch's choice; workers use one each"
    yield Finding(
        "machine", "threads", f"{threads}; OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    yield Finding("machine", "memory", f"{available_memory() / 1e9:.1f} GB could be used")
    yield _disk(folder)
    yield _data()


def _blas() -> str:
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return found.group(1) if found else "unknown"


def _disk(folder: Path) -> Finding:
    """How fast checkpoints could be written here."""
    what = f"disk of {folder.resolve()}"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            started = time.perf_counter()
            file.write(bytes(WRITTEN))
            file.flush()
            os.fsync(file.fileno())
            seconds = time.perf_counter() - started
    except OSError as error:
        return Finding("machine", what, f"cannot be written ({error.strerror})", well=False)
    return Finding("machine", what, f"{WRITTEN / 1e6 / seconds:.0f} MB/s written")


def _data() -> Finding:
    """The sets that have files; whether these are whole, `potluck data prepare` finds out."""
    root = data_root(None)
    named = [source for source in list_data() if source.name not in WITH_REST]
    there = [
        source.name
        for source in named
        if all((root / Path(one.makes).parts[0]).exists() for one in source.downloads)
    ]
    return Finding("data", f"found in {root}", ", ".join(there))
