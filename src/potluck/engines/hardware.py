"""What only real accelerators can prove: finding them, waiting for them, their memory. `potluck doctor` runs all of it.

Everything else about devices is plain torch, which tests run on a make-believe device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

CUDA_CONTEXT = 600 << 20
"""About what each process takes on an NVIDIA device before its first tensor; torch does not count it."""


def accelerators() -> list[str]:
    """The accelerators of this machine, by the names that `--device` takes."""
    found = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        found += [f"xpu:{number}" for number in range(torch.xpu.device_count())]
    return found


def describe(device: torch.device) -> str:
    """What a device calls itself, and its memory."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        return f"{facts.name}, {facts.total_memory / 1e9:.0f} GB"
    return device.type


def forks_break() -> bool:
    """Whether forked processes may be unable to train: after the first backward pass torch has threads for devices."""
    return bool(torch.accelerator.is_available())


def alone_with(place: str, environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """What a new process that shall see this NVIDIA device and no other calls it, and its environment.

    A process that sees others keeps a share of their memory too; one on the CPU sees none. Devices of other kinds are
    seen as they are.
    """
    device = torch.device(place)
    if device.type == "cpu":
        return place, {**environment, "CUDA_VISIBLE_DEVICES": ""}
    if device.type != "cuda":
        return place, dict(environment)
    number = device.index if device.index is not None else torch.cuda.current_device()
    seen = [one for one in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    mine = seen[number].strip() if number < len(seen) else str(number)
    return "cuda:0", {**environment, "CUDA_VISIBLE_DEVICES": mine}


def settle(device: torch.device) -> None:
    """Wait until a device has done what it was told: it works on while Python goes on."""
    wait: Any = getattr(getattr(torch, device.type, None), "synchronize", None)
    if wait is not None and device.type != "cpu":
        wait()


def free_memory(device: torch.device) -> int | None:
    """Bytes that a device could still give; None where its memory is the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return None


def held_memory(device: torch.device) -> int:
    """The most bytes that this process ever took of a device's own memory; 0 where that is the machine's."""
    return torch.cuda.max_memory_reserved(device) + CUDA_CONTEXT if device.type == "cuda" else 0
