"""Who holds what: rows held out for all, the rest dealt to clients, each client's part split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from potluck.core.method import Method, Need
from potluck.core.random import derive_seed
from potluck.core.samples import Samples
from potluck.core.task import CPU
from potluck.data import Data, Partition, match_shares, parse_partition, split_in_three
from potluck.data.partitions.skew import Look, Skew
from potluck.data.public import hold_out, public_samples
from potluck.experiment import Experiment

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Dealt:
    """Training, validation and test samples of each client, and what all may see."""

    train: list[Samples]
    validation: list[Samples]
    test: list[Samples]
    shared_test: Samples | None
    public: Samples | None


def deal(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    data: Data,
    device: torch.device = CPU,
    partition: Partition | None = None,
) -> Dealt:
    """Hold out what is shared or public, then deal the rest to clients and split each client's part.

    With `pool = "train"` the publisher's test part stays apart: it is the shared test set, each client's own
    test rows are its fair share of it, and of `data.split` only the validation part acts. Otherwise all rows are
    dealt and each client's part is split. Rows are brought to `device` once, for all clients.
    """
    settings, seed = experiment.data, experiment.seed
    wants_shared = bool({"shared", "global"} & {experiment.evaluate.protocol, *experiment.evaluate.also})
    keep_apart = settings.pool == "train" or (settings.pool == "auto" and wants_shared)
    data = (data if keep_apart else data.merged()).on(device)
    shared_test = data.test
    rows: Rows = np.arange(len(data))
    if wants_shared and shared_test is None:
        held, rows = hold_out(len(data), settings.shared_test, derive_seed("shared test", seed))
        shared_test = data.view(held)
    public, rows = _public(experiment, method, data, rows)
    rule = partition or parse_partition(experiment.partition.rule)
    groups = None if data.groups is None else data.groups.numpy()[rows]
    labels = data.y.numpy()[rows]
    parts = rule.assign(labels, experiment.partition.clients, seed, groups)
    apart = data.test is not None
    train, validation, test = list[Samples](), list[Samples](), list[Samples]()
    for index, part in enumerate(parts):
        mine = split_in_three(
            rows[part], settings.split, seed=seed, client=f"client-{index}", test_apart=apart
        )
        for samples, piece in zip((train, validation, test), mine, strict=True):
            samples.append(data.view(piece))
    if data.test is not None:
        shares = match_shares(parts, labels, data.test.labels.numpy(), seed)
        test = [data.test_view(share) for share in shares]
    if isinstance(rule, Skew):
        looks = rule.looks(len(parts), seed, data.input_shape)
        train, validation, test = (_seen(one, looks) for one in (train, validation, test))
    return Dealt(train, validation, test, shared_test, public)


def _seen(samples: list[Samples], looks: list[Look]) -> list[Samples]:
    """Each client's samples in its own way of seeing."""
    return [
        replace(one, transform=replace(look, before=one.transform))
        for one, look in zip(samples, looks, strict=True)
    ]


def _public(
    experiment: Experiment, method: Method[Any, Any, Any], data: Data, rows: Rows
) -> tuple[Samples | None, Rows]:
    choice = experiment.data.public
    if choice == "auto":
        choice = 0.1 if Need.PUBLIC_DATA in method.requires() else 0.0
    if not choice:
        return None, rows
    if isinstance(choice, str):
        return public_samples(data, choice, experiment.seed, experiment.data.root)[0], rows
    held, kept = hold_out(len(rows), choice, experiment.seed)
    return data.view(rows[held]), rows[kept]
