"""A schedule with a virtual clock: how long jobs take on the federation's devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from potluck.codec import encoded_size
from potluck.core.method import Method
from potluck.core.payload import Payload
from potluck.core.random import generator
from potluck.core.schedule import Schedule
from potluck.core.task import ClientInfo
from potluck.engines.faults import Faults
from potluck.experiment import Experiment
from potluck.federation import Federation
from potluck.flops import flops_by_architecture


def with_clock(
    schedule: Schedule, experiment: Experiment, method: Method[Any, Any, Any], federation: Federation
) -> Schedule:
    """Durations from FLOPs, samples, bytes and devices; without a fleet every job takes one second.

    duration = latency + bytes down ÷ bandwidth + FLOPs per sample × samples ÷ speed, then the upload.
    """
    faults = Faults(**experiment.faults.model_dump())
    devices = federation.devices
    if not devices:
        if not faults.slow:
            return schedule
        return replace(schedule, duration=lambda info, n, message: faults.delay(experiment.seed, info, n))
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

    return replace(
        schedule,
        duration=duration,
        upload=lambda info, size: devices[info.index].upload_seconds(size),
        available=available,
    )
