"""Check what this machine can do by doing it."""

from __future__ import annotations

import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import potluck
from potluck.api import run
from potluck.core.errors import PotluckError
from potluck.core.random import generator
from potluck.data import as_data
from potluck.data.load import WITH_ARGUMENT, data_root, list_data
from potluck.engines.pool.tune_workers import best_worker_count
from potluck.experiment import parse_experiment
from potluck.federation.population import resolve_device
from potluck.runs.plan import Parts
from potluck.runs.resolve import resolve
from potluck.worker.hardware import accelerators, describe, free_memory
from potluck.worker.memory import available_memory


@dataclass(frozen=True)
class Check:
    """What was looked at, where, what was found, and whether that is as it should be."""

    section: str
    subject: str
    result: str
    ok: bool = True


KINDS = {
    "a loss over the model": "fedavg",
    "two models in one step": "fml",
    "changed gradients": "scaffold",
    "steps of its own": "fedin",
    "derivatives forward": "fedl2g-f",
    "training on the server": "fedtgp",
    "networks cut to size": "heterofl",
    "public data": "fedmd",
}
"""A method for each kind of step that methods are made of."""

ROUNDING = 0.02
"""How far losses may differ: devices sum in other orders, and some take fewer bits for products."""

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "limit": 120},
    "partition": {"clients": 3},
    "schedule": {"rounds": 2},
    "training": {"epochs": 1},
}
BATCH, TOGETHER = 32, 4

Losses = list[float]


def check_cpu() -> tuple[dict[str, Losses], list[Check]]:
    """Check each kind of step on the CPU; other devices must come near its losses, and the pool must match."""
    alone, findings = {}, []
    for kind, method in KINDS.items():
        started = time.perf_counter()
        alone[kind] = _losses(method, {"name": "serial"})
        findings.append(Check("cpu", f"{kind} ({method})", f"works, {time.perf_counter() - started:.1f} s"))
    same = _losses(KINDS["changed gradients"], {"name": "pool"}) == alone["changed gradients"]
    result = "the serial engine's numbers, bit for bit" if same else "other numbers than the serial engine's"
    findings.append(Check("cpu", "pool", result, ok=same))
    return alone, findings


def check_device(name: str, reference: dict[str, Losses]) -> Iterator[Check]:
    """Yield each kind of step on an accelerator, beside the CPU's losses; then half precision."""
    try:
        device = resolve_device(name)
    except PotluckError:
        yield Check(name, "device", "is not available here", ok=False)
        return
    free = free_memory(device)
    memory = "the machine's memory" if free is None else f"{free / 1e9:.1f} GB free"
    yield Check(name, "device", f"{describe(device)}, {memory}")
    for kind, method in KINDS.items():
        started, subject = time.perf_counter(), f"{kind} ({method})"
        try:
            gap = _gap(_losses(method, {"name": "serial", "device": name}), reference[kind])
        except Exception as error:  # whatever goes wrong on it is what we came to see
            yield Check(name, subject, f"fails: {_short(error)}", ok=False)
            continue
        seconds = time.perf_counter() - started
        yield Check(name, subject, f"differs by {gap:.1e} from the CPU, {seconds:.1f} s", ok=gap < ROUNDING)
    yield _half(name, device, reference["a loss over the model"])


def check_speed(name: str) -> Iterator[Check]:
    """Yield how many worker processes pay on a device, and whether stacks do: cnn-1 on random images."""
    rng = generator("doctor")
    images = torch.randint(0, 256, (240 * TOGETHER, 3, 32, 32), generator=rng, dtype=torch.uint8)
    labels = torch.arange(len(images)) % 10
    settings = {
        "method": {"name": "standalone"},
        "models": {"names": ["cnn-1"]},
        "partition": {"rule": "iid", "clients": TOGETHER},
        "training": {"batch_size": BATCH},
    }
    try:
        run_plan = resolve(parse_experiment(settings), Parts(data=as_data((images, labels))), measure=False)
        plan = run_plan.blueprint()
        assert plan is not None
        best, speeds = best_worker_count(plan, [name], [0], 8)
        stacked = best_worker_count(plan, [name], range(TOGETHER), 1)[1][1]
    except PotluckError as error:
        yield Check(name, "workers", f"fails: {_short(error)}", ok=False)
        return
    tried = ", ".join(f"{count}: {speed:,.0f}" for count, speed in speeds.items())
    yield Check(name, "workers", f"{best} (cnn-1 images per second, by workers: {tried})")
    yield Check(
        name, "stacks", f"{stacked / speeds[1]:.2f} × as fast as one client at a time ({TOGETHER} × cnn-1)"
    )


def _half(name: str, device: torch.device, reference: Losses) -> Check:
    result = []
    for amp in ("bf16", "fp16"):
        try:
            gap = _gap(_losses("fedavg", {"name": "serial", "device": name}, amp), reference)
            result.append(f"{amp} differs by {gap:.1e}")
        except Exception as error:  # as above
            result.append(f"{amp} not available ({_short(error)})")
    return Check(name, "half precision", ", ".join(result))


def _losses(method: str, engine: dict[str, Any], amp: str = "off") -> Losses:
    training = {**SMALL["training"], "amp": amp}
    settings = {**SMALL, "method": {"name": method}, "training": training}
    with tempfile.TemporaryDirectory() as folder:
        result = run({**settings, "engine": {**engine, "checkpoint_every": 0}}, out=Path(folder) / "run")
        return [float(row[name]) for row in result.rounds for name in ("loss", "train_loss")]


def _gap(losses: Losses, expected: Losses) -> float:
    """Return the largest relative difference."""
    return max(
        abs(loss - other) / max(abs(other), 1e-6) for loss, other in zip(losses, expected, strict=True)
    )


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


DISK_TEST_BYTES = 32 << 20


def check_machine(folder: Path = Path()) -> Iterator[Check]:
    """Yield findings of a second or two; `folder` is where runs would be written."""
    yield Check("software", "potluck, Python", f"{potluck.__version__}, {platform.python_version()}")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    yield Check("software", "torch", f"{torch.__version__}, {built}, BLAS {_blas()}")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    capability = torch.backends.cpu.get_cpu_capability()
    yield Check("machine", "processor", f"{platform.machine()}, {capability}, {cores} cores, load {load:.1f}")
    threads = f"{torch.get_num_threads()} by torch's choice; workers use one each"
    yield Check(
        "machine", "threads", f"{threads}; OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    yield Check("machine", "memory", f"{available_memory() / 1e9:.1f} GB could be used")
    yield _disk(folder)
    yield _data()


def _blas() -> str:
    result = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return result.group(1) if result else "unknown"


def _disk(folder: Path) -> Check:
    """Return how fast checkpoints could be written here."""
    subject = f"disk of {folder.resolve()}"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            started = time.perf_counter()
            file.write(bytes(DISK_TEST_BYTES))
            file.flush()
            os.fsync(file.fileno())
            seconds = time.perf_counter() - started
    except OSError as error:
        return Check("machine", subject, f"cannot be written ({error.strerror})", ok=False)
    return Check("machine", subject, f"{DISK_TEST_BYTES / 1e6 / seconds:.0f} MB/s written")


def _data() -> Check:
    """Return the sets that have files; whether these are whole, `potluck data prepare` finds out."""
    root = data_root(None)
    named = [source for source in list_data() if source.name not in WITH_ARGUMENT]
    available = [
        source.name
        for source in named
        if all((root / Path(download.makes).parts[0]).exists() for download in source.downloads)
    ]
    return Check("data", f"found in {root}", ", ".join(available))


def run_checks(devices: Sequence[str] = (), folder: Path = Path()) -> Iterator[Check]:
    """Yield findings one by one: of the machine, of training on the CPU, of every accelerator (or those named)."""
    yield from check_machine(folder)
    reference, findings = check_cpu()
    yield from findings
    yield from check_speed("cpu")
    places = list(devices) or accelerators()
    if not places:
        yield Check("accelerators", "found", "none")
    for name in places:
        yield from check_device(name, reference)
        yield from check_speed(name)


TABLE_HEADER = "| part | what | found | |\n|---|---|---|---|"


def table_row(check: Check) -> str:
    """Format one check as a row of a Markdown table, which can be pasted into an issue."""
    return f"| {check.section} | {check.subject} | {check.result} | {'' if check.ok else 'NOT WELL'} |"
