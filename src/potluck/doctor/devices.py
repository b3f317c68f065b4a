"""One device after another: does every kind of training work there, does it agree with the CPU, how fast is it?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from potluck.api import run
from potluck.core.errors import PotluckError
from potluck.core.random import generator
from potluck.data import as_data
from potluck.doctor.finding import Finding
from potluck.engines.hardware import describe, free_memory
from potluck.engines.pool.crowd import best_crowd
from potluck.experiment import parse_experiment
from potluck.federation.population import pick_device
from potluck.runs.engine import blueprint
from potluck.runs.resolve import Parts, resolve

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


def look_at_cpu() -> tuple[dict[str, Losses], list[Finding]]:
    """Each kind of step on the CPU: the losses that other devices must come near, and that the pool must match."""
    alone, findings = {}, []
    for kind, method in KINDS.items():
        started = time.perf_counter()
        alone[kind] = _losses(method, {"name": "serial"})
        findings.append(Finding("cpu", f"{kind} ({method})", f"works, {time.perf_counter() - started:.1f} s"))
    same = _losses(KINDS["changed gradients"], {"name": "pool"}) == alone["changed gradients"]
    found = "the serial engine's numbers, bit for bit" if same else "other numbers than the serial engine's"
    findings.append(Finding("cpu", "pool", found, well=same))
    return alone, findings


def look_at_device(name: str, reference: dict[str, Losses]) -> Iterator[Finding]:
    """Each kind of step on an accelerator, beside the CPU's losses; then half precision."""
    try:
        device = pick_device(name)
    except PotluckError:
        yield Finding(name, "device", "is not available here", well=False)
        return
    free = free_memory(device)
    memory = "the machine's memory" if free is None else f"{free / 1e9:.1f} GB free"
    yield Finding(name, "device", f"{describe(device)}, {memory}")
    for kind, method in KINDS.items():
        started, what = time.perf_counter(), f"{kind} ({method})"
        try:
            gap = _gap(_losses(method, {"name": "serial", "device": name}), reference[kind])
        except Exception as error:  # whatever goes wrong on it is what we came to see
            yield Finding(name, what, f"fails: {_short(error)}", well=False)
            continue
        seconds = time.perf_counter() - started
        yield Finding(name, what, f"differs by {gap:.1e} from the CPU, {seconds:.1f} s", well=gap < ROUNDING)
    yield _half(name, device, reference["a loss over the model"])


def look_at_speed(name: str) -> Iterator[Finding]:
    """How many worker processes pay on a device, and whether stacks do: cnn-1 on random images."""
    rng = generator("doctor")
    images = torch.randint(0, 256, (240 * TOGETHER, 3, 32, 32), generator=rng, dtype=torch.uint8)
    labels = torch.arange(len(images)) % 10
    asked = {
        "method": {"name": "standalone"},
        "models": {"names": ["cnn-1"]},
        "partition": {"rule": "iid", "clients": TOGETHER},
        "training": {"batch_size": BATCH},
    }
    try:
        plan = blueprint(resolve(parse_experiment(asked), Parts(data=as_data((images, labels)))))
        assert plan is not None
        best, speeds = best_crowd(plan, [name], [0], 8)
        stacked = best_crowd(plan, [name], range(TOGETHER), 1)[1][1]
    except PotluckError as error:
        yield Finding(name, "workers", f"fails: {_short(error)}", well=False)
        return
    tried = ", ".join(f"{count}: {speed:,.0f}" for count, speed in speeds.items())
    yield Finding(name, "workers", f"{best} (cnn-1 images per second, by workers: {tried})")
    yield Finding(
        name, "stacks", f"{stacked / speeds[1]:.2f} × as fast as one client at a time ({TOGETHER} × cnn-1)"
    )


def _half(name: str, device: torch.device, reference: Losses) -> Finding:
    found = []
    for amp in ("bf16", "fp16"):
        try:
            gap = _gap(_losses("fedavg", {"name": "serial", "device": name}, amp), reference)
            found.append(f"{amp} differs by {gap:.1e}")
        except Exception as error:  # as above
            found.append(f"{amp} not available ({_short(error)})")
    return Finding(name, "half precision", ", ".join(found))


def _losses(method: str, engine: dict[str, Any], amp: str = "off") -> Losses:
    training = {**SMALL["training"], "amp": amp}
    settings = {**SMALL, "method": {"name": method}, "training": training}
    with tempfile.TemporaryDirectory() as folder:
        done = run({**settings, "engine": {**engine, "checkpoint_every": 0}}, out=Path(folder) / "run")
        return [float(row[name]) for row in done.rounds for name in ("loss", "train_loss")]


def _gap(mine: Losses, theirs: Losses) -> float:
    """The largest relative difference."""
    return max(abs(one - other) / max(abs(other), 1e-6) for one, other in zip(mine, theirs, strict=True))


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
