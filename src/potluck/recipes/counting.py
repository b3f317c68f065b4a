"""Count what a table's runs send and compute, on a few blank samples: no data and no training to speak of.

How many numbers travel and how many operations a sample takes follow from shapes alone: those of the models, of the
samples, and which classes a client holds. Two rounds of the method itself on blank samples make its real messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from potluck.core.errors import unknown
from potluck.data import Data
from potluck.engines.serial import SerialEngine
from potluck.experiment import Experiment
from potluck.models.flops import FlopCounter
from potluck.recipes.measures import COUNTS
from potluck.runs.folder import write_atomic
from potluck.runs.plan import Parts
from potluck.runs.resolve import resolve
from potluck.runs.run import Run
from potluck.runs.train import run_plan
from potluck.wire.jobs import Answer, Failure
from potluck.worker.worker import Worker

SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "svhn": ((3, 32, 32), 10),
}
"""Shape of a sample and number of classes of the sets that can be counted on."""

ROWS = 12_000
"""Blank samples before `data.limit`; a sixth of them is the publisher's test part."""


def blank_data(name: str) -> Data:
    """Return zeros in the shape of a data set, all classes equally often; they take no memory."""
    if name not in SHAPES:
        raise unknown("data set to count on", name, SHAPES)
    shape, classes = SHAPES[name]
    test = ROWS // 6
    pixel = torch.zeros(1, *([1] * len(shape)))
    labels = torch.arange(ROWS) % classes
    return Data(
        name,
        pixel.expand(ROWS - test, *shape),
        labels[test:],
        classes,
        shape,
        test_x=pixel.expand(test, *shape),
        test_y=labels[:test],
    )


class CountingEngine(SerialEngine):
    """The serial engine with the floating-point operations of every training job."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.per_sample: list[float] = []

    def results(self) -> Iterator[Answer | Failure]:
        """Do queued jobs one by one; a client's first may do what no later one does, and is not counted."""
        while self._jobs:
            job = self._jobs.popleft()
            if job.kind != "train" or not job.number:
                yield self.worker.run(job)
                continue
            counter = FlopCounter()
            with counter:
                answer = self.worker.run(replace(job, tests=()))  # tests are not the method's work
            samples = self.worker.client(job.client).info.samples
            self.per_sample.append(counter.total / samples)
            yield answer


def count_run(experiment: Experiment, out: Path, command: str) -> Run:
    """Run an experiment on blank samples, and keep what its jobs computed beside its messages."""
    resolved = resolve(experiment, Parts(data=blank_data(experiment.data.name)))
    engine = CountingEngine(Worker(resolved.method, resolved.federation.client))
    run = run_plan(resolved, out=out, resume=True, command=command, engine=engine)
    if not run.was_finished:
        counts = {"flops_per_sample": sum(engine.per_sample) / max(1, len(engine.per_sample))}
        write_atomic(out / COUNTS, json.dumps(counts) + "\n")
    return run
