"""A schedule's virtual clock: how long jobs take on simulated devices."""

from __future__ import annotations

import torch

from potluck.core.payload import Payload
from potluck.core.random import generator
from potluck.core.task import ClientInfo
from potluck.experiment import Experiment
from potluck.federation.federation import Federation
from potluck.federation.flops import MethodFlops
from potluck.loop.schedule import Clock
from potluck.wire import encoded_size


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
