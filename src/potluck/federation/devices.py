"""Simulated devices and the virtual clock of their jobs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from potluck.core.errors import PotluckError, unknown
from potluck.core.files import parse_toml, read_text
from potluck.core.payload import Payload
from potluck.core.random import derive_seed, generator
from potluck.core.task import ClientInfo
from potluck.loop.schedule import Clock
from potluck.wire import encoded_size

if TYPE_CHECKING:
    from potluck.experiment import Experiment
    from potluck.federation.federation import Federation
    from potluck.federation.flops import MethodFlops

MEGA, GIGA = 1e6, 1e9


@dataclass(frozen=True)
class Device:
    """What a client runs on: FLOP/s in training, bytes/s each way, seconds of latency, bytes of memory.

    `availability` is the chance that the device can take a job when one is offered.
    """

    kind: str = "default"
    speed: float = 10 * GIGA
    down: float = 10 * MEGA
    up: float = 5 * MEGA
    latency: float = 0.05
    memory: float = 8 * GIGA
    availability: float = 1.0

    def __post_init__(self) -> None:
        for name in ("speed", "down", "up", "memory"):
            if not getattr(self, name) > 0:
                raise PotluckError(
                    f"Device {self.kind!r}: {name} = {getattr(self, name)} must be greater than 0."
                )
        if self.latency < 0 or not 0 < self.availability <= 1:
            raise PotluckError(
                f"Device {self.kind!r}: latency must not be negative and availability must lie in (0, 1]."
            )

    def work_seconds(self, flops: float, bytes_down: float) -> float:
        """Until the answer is ready: a trip, the download, the computing."""
        return self.latency + bytes_down / self.down + flops / self.speed

    def upload_seconds(self, bytes_up: float) -> float:
        """Return a trip and the upload."""
        return self.latency + bytes_up / self.up


def _uniform(count: int, rng: np.random.Generator) -> list[Device]:
    """Return equal devices."""
    return [Device("uniform")] * count


def _phones(count: int, rng: np.random.Generator) -> list[Device]:
    """Low-end, middle and flagship phones on mobile networks; not always there."""
    tiers = (
        Device("low-end phone", 1 * GIGA, 1 * MEGA, 0.3 * MEGA, 0.15, 1 * GIGA, 0.7),
        Device("phone", 5 * GIGA, 4 * MEGA, 1 * MEGA, 0.08, 3 * GIGA, 0.8),
        Device("flagship phone", 20 * GIGA, 12 * MEGA, 4 * MEGA, 0.04, 6 * GIGA, 0.9),
    )
    kinds = rng.choice(3, size=count, p=(0.4, 0.4, 0.2))
    return [_vary(tiers[kind], rng, 0.3) for kind in kinds]


def _silos(count: int, rng: np.random.Generator) -> list[Device]:
    """Servers of organisations: fast, well connected, always there, a little unequal."""
    base = Device("silo", 500 * GIGA, 50 * MEGA, 50 * MEGA, 0.02, 64 * GIGA, 1.0)
    return [_vary(base, rng, 0.2) for _ in range(count)]


def _long_tail(count: int, rng: np.random.Generator) -> list[Device]:
    """Most devices are fast; a few are tens of times slower, and one round waits for all of them."""
    slow = np.minimum(1 + rng.pareto(1.2, size=count), 50)
    return [
        Device(
            "long-tail",
            20 * GIGA / factor,
            10 * MEGA / factor,
            5 * MEGA / factor,
            0.05 * factor,
            8 * GIGA / factor,
        )
        for factor in slow
    ]


FLEETS: dict[str, Callable[[int, np.random.Generator], list[Device]]] = {
    "uniform": _uniform,
    "phones": _phones,
    "silos": _silos,
    "long-tail": _long_tail,
}


def _vary(device: Device, rng: np.random.Generator, spread: float) -> Device:
    """Return the device with log-normal variation of its speeds."""
    factors = np.exp(rng.normal(0, spread, size=3))
    return Device(
        device.kind,
        device.speed * factors[0],
        device.down * factors[1],
        device.up * factors[2],
        device.latency,
        device.memory,
        device.availability,
    )


def fleet(name: str, clients: int, seed: int = 0) -> list[Device]:
    """Return one device per client: a named fleet, or a table in a .toml or .csv file (`[[device]]` or a row each).

    Rows of a table are dealt out in order, and again from the start where there are more clients than rows.
    """
    if name in FLEETS:
        return FLEETS[name](clients, np.random.default_rng(derive_seed("fleet", name, seed)))
    path = Path(name)
    if path.suffix not in (".toml", ".csv"):
        raise unknown("fleet", name, [*FLEETS, "FILE.toml", "FILE.csv"])
    rows = _read_table(path)
    if not rows:
        raise PotluckError(f"Fleet {name!r} lists no device; give at least one.")
    devices = [_device(row, name) for row in rows]
    return [devices[index % len(devices)] for index in range(clients)]


def _read_table(path: Path) -> list[dict[str, Any]]:
    try:
        text = read_text(path)
        if path.suffix == ".toml":
            return list(parse_toml(text).get("device", []))
        return [dict(row) for row in csv.DictReader(text.splitlines())]
    except (OSError, ValueError) as error:
        raise PotluckError(f"Fleet {str(path)!r} cannot be read: {error}.") from None


def _device(row: Mapping[str, Any], name: str) -> Device:
    field_names = [field.name for field in fields(Device)]
    for key in row:
        if key not in field_names:
            raise unknown(f"column of fleet {name!r}", str(key), field_names)
    try:
        numbers = {key: float(value) for key, value in row.items() if key != "kind"}
        return Device(str(row.get("kind", "default")), **numbers)
    except ValueError as error:
        raise PotluckError(f"Fleet {name!r}: {error}; every column but kind is a number.") from None


COPIES = 4
"""Numbers in memory for each trained parameter: weight, gradient, optimiser state and activation."""


def assign_by_memory(
    models: Mapping[str, int], devices: Sequence[Device], *, copies: int = COPIES, bytes_per_number: int = 4
) -> list[str]:
    """For each device the largest model (by parameters) that fits its memory; the smallest where none does.

    Training holds about four numbers per parameter: weights, gradients, optimiser state and activations.
    """
    by_size = sorted(models, key=lambda name: models[name])
    chosen = []
    for device in devices:
        fitting = [name for name in by_size if models[name] * bytes_per_number * copies <= device.memory]
        chosen.append(fitting[-1] if fitting else by_size[0])
    return chosen


def make_clock(experiment: Experiment, federation: Federation, flops: MethodFlops) -> Clock:
    """Durations from FLOPs, bytes and devices; without a fleet every job takes one second.

    duration = latency + bytes down ÷ bandwidth + FLOPs of the job ÷ speed, then the upload.
    """
    faults, devices = experiment.faults, federation.devices
    if not devices:
        if not faults.slow:
            return Clock()
        return Clock(duration=lambda info, number, message: faults.delay(experiment.seed, info, number))

    def duration(info: ClientInfo, number: int, message: Payload) -> float:
        seconds = devices[info.index].work_seconds(flops.of(info), encoded_size(message))
        return seconds * faults.delay(experiment.seed, info, number)

    def available(info: ClientInfo, draw: int) -> bool:
        share = devices[info.index].availability
        if share >= 1:
            return True
        return (
            float(torch.rand(1, generator=generator(experiment.seed, "available", info.index, draw))) < share
        )

    return Clock(duration, lambda info, size: devices[info.index].upload_seconds(size), available)
