"""Choose how many worker processes share an accelerator, by measuring time and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from potluck.engines.pool.process import Process
from potluck.engines.pool.spawn import Blueprint, SpawnSpec, spawn_worker, wait_until_ready
from potluck.wire import receive
from potluck.worker.hardware import free_memory

MAX_WORKERS_PER_DEVICE = 8


WORKER_GAIN = 1.1


"""How many times faster twice the processes must be: each takes memory and time to start."""


def best_worker_count(
    blueprint: Blueprint, devices: list[str], clients: Sequence[int], batches: int
) -> tuple[int, dict[int, float]]:
    """Processes per device, found on the first: doubled while they do more together and fit, up to the cores.

    Also the speeds that were found, in samples per second, by the number of processes.

    All train copies of one client at the same time, or of several as a stack; the sum of their speeds is what counts.
    No more are tried than there are `batches` in a round: clients, or stacks of them.
    """
    most = min(
        MAX_WORKERS_PER_DEVICE,
        max(1, len(os.sched_getaffinity(0)) // len(devices)),
        -(-batches // len(devices)),
    )
    processes: list[Process] = []
    best, speeds = 0, dict[int, float]()
    try:
        while best < most:
            next_count = min(most, 2 * best or 1)
            for _ in range(next_count - len(processes)):
                processes.append(spawn_worker(devices[0], SpawnSpec(blueprint, trial=tuple(clients))))
            for process in processes[best:]:
                wait_until_ready(process)
            speeds[next_count], memory = _together(processes)
            if best and speeds[next_count] < WORKER_GAIN * speeds[best]:
                break
            best = next_count
            free = free_memory(torch.device(devices[0]))
            if free is not None and free < next_count * memory:  # the next doubling would not fit
                break
    finally:
        for process in processes:
            process.end()
    return best, speeds


def _together(processes: list[Process]) -> tuple[float, int]:
    """Return the summed speed of all at once, and the most memory that one of them took."""
    for process in processes:
        process.socket.sendall(b"!")
    results = [receive(process.socket).facts for process in processes]
    return sum(float(result["rate"]) for result in results), max(int(result["memory"]) for result in results)
