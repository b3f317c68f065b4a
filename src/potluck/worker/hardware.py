"""Accelerators: finding them, waiting for them, their memory. `potluck doctor` checks all of it on real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

CUDA_CONTEXT = 600 << 20
"""About what each process takes on an NVIDIA device before its first tensor; torch does not count it."""


def accelerators() -> list[str]:
    """Return the accelerators of this machine, by the names that `--device` takes."""
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        devices += [f"xpu:{number}" for number in range(torch.xpu.device_count())]
    return devices


def describe(device: torch.device) -> str:
    """Return what a device calls itself, and its memory."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        return f"{facts.name}, {facts.total_memory / 1e9:.0f} GB"
    return device.type


def fork_is_unsafe() -> bool:
    """Return whether forked processes may be unable to train: after a backward pass torch has device threads."""
    return bool(torch.accelerator.is_available())


def isolate_device(place: str, environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return what a new process that shall see this NVIDIA device and no other calls it, and its environment.

    A process that sees others keeps a share of their memory too; one on the CPU sees none. Devices of other kinds are
    seen as they are.
    """
    device = torch.device(place)
    if device.type == "cpu":
        return place, {**environment, "CUDA_VISIBLE_DEVICES": ""}
    if device.type != "cuda":
        return place, dict(environment)
    number = device.index if device.index is not None else torch.cuda.current_device()
    visible = [entry for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    inside = visible[number].strip() if number < len(visible) else str(number)
    return "cuda:0", {**environment, "CUDA_VISIBLE_DEVICES": inside}


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    wait: Any = getattr(getattr(torch, device.type, None), "synchronize", None)
    if wait is not None and device.type != "cpu":
        wait()


def free_memory(device: torch.device) -> int | None:
    """Return bytes that a device could still give; None where its memory is the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return None


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this process ever took of a device's own memory; 0 where that is the machine's."""
    return torch.cuda.max_memory_reserved(device) + CUDA_CONTEXT if device.type == "cuda" else 0
