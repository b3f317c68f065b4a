"""A schedule with a virtual clock: how long jobs take on the federation's devices."""

from __future__ import annotations

from typing import Any

import torch

from potluck.core.method import Method
from potluck.core.payload import Payload
from potluck.core.random import generator
from potluck.core.task import ClientInfo
from potluck.experiment import Experiment
from potluck.federation.federation import Federation
from potluck.federation.flops import flops_by_architecture
from potluck.loop.letter import encoded_size
from potluck.loop.schedule import Clock


def make_clock(experiment: Experiment, method: Method[Any, Any, Any], federation: Federation) -> Clock:
    """Durations from FLOPs, samples, bytes and devices; without a fleet every job takes one second.

    duration = latency + bytes down ÷ bandwidth + FLOPs per sample × samples ÷ speed, then the upload.
    """
    faults, devices = experiment.faults, federation.devices
    if not devices:
        if not faults.slow:
            return Clock()
        return Clock(duration=lambda info, number, message: faults.delay(experiment.seed, info, number))
    flops = flops_by_architecture(federation.task, federation.example())

    def duration(info: ClientInfo, number: int, message: Payload) -> float:
        work = flops[info.architecture] * method.workload(info.samples, federation.training)
        seconds = devices[info.index].work_seconds(work, encoded_size(message))
        return seconds * faults.delay(experiment.seed, info, number)

    def available(info: ClientInfo, draw: int) -> bool:
        share = devices[info.index].availability
        if share >= 1:
            return True
        return (
            float(torch.rand(1, generator=generator(experiment.seed, "available", info.index, draw))) < share
        )

    return Clock(duration, lambda info, size: devices[info.index].upload_seconds(size), available)
