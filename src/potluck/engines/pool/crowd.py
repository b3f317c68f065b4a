"""How many worker processes share an accelerator best: a short trial of time and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from potluck.engines.hardware import free_memory
from potluck.engines.pool.anew import Blueprint, Post, await_ready, start_anew
from potluck.engines.pool.process import Process
from potluck.loop.letter import receive

MOST = 8
GAIN = 1.1
"""How many times faster twice the processes must be: each takes memory and time to start."""


def best_crowd(
    blueprint: Blueprint, places: list[str], clients: Sequence[int], teams: int
) -> tuple[int, dict[int, float]]:
    """Processes per device, found on the first: doubled while they do more together and fit, up to the cores.

    Also the speeds that were found, in samples per second, by the number of processes.

    All train copies of one client at the same time, or of several as a stack; the sum of their speeds is what counts.
    No more are tried than there are `teams` in a round: clients, or stacks of them.
    """
    most = min(MOST, max(1, len(os.sched_getaffinity(0)) // len(places)), -(-teams // len(places)))
    crowd: list[Process] = []
    best, speeds = 0, dict[int, float]()
    try:
        while best < most:
            wanted = min(most, 2 * best or 1)
            for _ in range(wanted - len(crowd)):
                crowd.append(start_anew(places[0], Post(blueprint, trial=tuple(clients))))
            for process in crowd[best:]:
                await_ready(process)
            speeds[wanted], memory = _together(crowd)
            if best and speeds[wanted] < GAIN * speeds[best]:
                break
            best = wanted
            free = free_memory(torch.device(places[0]))
            if free is not None and free < wanted * memory:  # the next doubling would not fit
                break
    finally:
        for process in crowd:
            process.end()
    return best, speeds


def _together(crowd: list[Process]) -> tuple[float, int]:
    """The summed speed of all at once, and the most memory that one of them took."""
    for process in crowd:
        process.socket.sendall(b"!")
    found = [receive(process.socket).facts for process in crowd]
    return sum(float(one["rate"]) for one in found), max(int(one["memory"]) for one in found)
