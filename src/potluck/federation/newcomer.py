"""One client more in a federation: its rows read as those of the others were, and its model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from potluck.core.errors import PotluckError, plain
from potluck.core.method import Method
from potluck.core.model import ClientModel
from potluck.core.needs import check_needs
from potluck.core.random import seeded
from potluck.core.samples import Samples
from potluck.core.task import Architecture, ClientInfo, Task
from potluck.data import Data, load_data, split_in_three
from potluck.data.classes import names_are_numbers, with_class_names
from potluck.data.raw import TableInput, TextInput, row_of_file
from potluck.data.sources.table import read_columns
from potluck.data.targets import checked_labels
from potluck.experiment import Experiment
from potluck.federation.features import RowNumbers, original_rows, with_networks
from potluck.federation.federation import Federation, LazySequence, Member, describe_architecture
from potluck.federation.population import initial_model_builder, model_builder

# -- data ------------------------------------------------------------------------------------------------------


def newcomer_data(
    source: str | Data, federation: Federation, experiment: Experiment, label: str | None
) -> Data:
    """Read the new client's rows as the run's own rows were read: same encoding, normalisation and class numbers."""
    settings = experiment.data
    column = label or settings.label
    if isinstance(source, Data):
        data = source
    elif source.startswith("csv:") and isinstance(federation.raw, TableInput | TextInput):
        data = _table(Path(source.removeprefix("csv:")), federation, column or "label")
    elif isinstance(federation.raw, TableInput | TextInput):
        raise PotluckError(
            f"--data {plain(source, 200)!r}: the run's rows come from a table or texts, which must be encoded in the "
            "same way; give the new rows as csv:PATH."
        )
    else:
        size = settings.image_size if source.startswith("folder:") else None
        data = load_data(source, label=label, image_size=size)
    data = data.merged()
    expected, transform = original_rows(federation.members[0].train)
    example = data.x[:1]
    if example.shape[1:] != expected.shape[1:] or example.dtype != expected.dtype:
        raise PotluckError(
            f"Rows of the new client are {tuple(example.shape[1:])} of {example.dtype} and those of the run "
            f"{tuple(expected.shape[1:])} of {expected.dtype}; bring rows of the run's form."
        )
    return replace(_with_classes(data, federation), transform=transform)


def _table(path: Path, federation: Federation, label: str) -> Data:
    """Read a table by the run's columns or words; other columns are ignored."""
    if not path.is_file():
        raise PotluckError(f"Data 'csv:{path}' need an existing file; check the path.")
    columns, raw = read_columns(path), federation.raw
    if label not in columns:
        raise PotluckError(
            f"Table {str(path)!r} has no column {label!r}; name the one with the classes: --label COLUMN."
        )
    if isinstance(raw, TextInput):
        name = raw.column or "text"
        if name not in columns:
            raise PotluckError(f"Table {str(path)!r} has no column {name!r}, which holds the texts.")
        x = torch.from_numpy(raw.encode(columns[name]))
    else:
        assert isinstance(raw, TableInput)
        if missing := [column.name for column in raw.columns if column.name not in columns]:
            raise PotluckError(
                f"Table {str(path)!r} has no column {missing[0]!r}, which the run's rows have."
            )
        x = torch.from_numpy(raw.encode_columns(columns, row_of_file(path)))
    names = federation.class_names or tuple(map(str, range(federation.task.num_classes)))
    place = {name: number for number, name in enumerate(names)}
    if unknown := [value for value in columns[label] if value not in place]:
        raise PotluckError(
            f"Column {label!r} of {str(path)!r} has the class {plain(unknown[0], 60)!r}, which the run does not have "
            f"({plain(', '.join(names), 200)}); drop these rows, or train with all classes."
        )
    y = torch.tensor([place[value] for value in columns[label]], dtype=torch.int64)
    return Data(path.stem, x, y, len(names), tuple(x.shape[1:]), class_names=federation.class_names)


def _with_classes(data: Data, federation: Federation) -> Data:
    """Return the rows with the classes numbered as in the run."""
    names, classes = federation.class_names, federation.task.num_classes
    if names and not names_are_numbers(data):
        return with_class_names(data, names, f"Data {data.name!r}")
    labels = checked_labels(data.y.numpy(), data.name)
    if len(labels) and int(labels.max()) >= classes:
        raise PotluckError(
            f"Data {data.name!r} have the label {int(labels.max())}, and the run has {classes} classes, 0 to "
            f"{classes - 1}; drop these rows, or number the classes as in the run."
        )
    return replace(data, y=torch.from_numpy(labels), num_classes=classes, class_names=names)


# -- the larger federation ------------------------------------------------------------------------------------------


def with_newcomer(
    federation: Federation,
    experiment: Experiment,
    method: Method[Any, Any, Any],
    data: Data,
    *,
    model: str,
    name: str,
    split: str,
) -> tuple[Federation, ClientInfo]:
    """Return the federation with one client more, whose rows are split into three parts."""
    if name in {info.name for info in federation.task.clients}:
        raise PotluckError(f"--name {name!r} is a client of the run; choose another name.")
    device, dtype = federation.task.device, federation.task.dtype
    data = data.to_dtype(dtype).to_device(device)
    train, validation, test = (
        data.view(rows)
        for rows in split_in_three(np.arange(len(data)), split, seed=experiment.seed, client=name)
    )
    _check_sizes(train, validation, split)
    architecture = _architecture(federation, experiment, data, model)
    count = len(federation.members)
    if federation.task.public is not None and isinstance(federation.task.public.transform, RowNumbers):
        raise PotluckError(
            f"The run of {type(method).__name__} has public data as stored features, which a new client cannot read; "
            "repeat it with models.cache = false."
        )
    member = Member(
        initial_model_builder(partial(_whole_model, architecture), experiment, architecture.name, name),
        train,
        test,
        name,
        validation=validation,
        architecture=architecture.name,
    )
    info = ClientInfo(count, name, len(train), architecture.name, validation=len(validation))
    task = extended_task(federation.task, info, architecture)
    check_needs(method, task)
    members = LazySequence(count + 1, lambda place: member if place == count else federation.members[place])
    return replace(federation, task=task, members=members), info


def _whole_model(architecture: Architecture) -> ClientModel:
    """Build a model that reads rows, also where the run's clients read stored features."""
    assert architecture.build is not None
    return with_networks(architecture.build())


def _check_sizes(train: Samples, validation: Samples, split: str) -> None:
    if not len(validation) or not len(train):
        raise PotluckError(
            f"--split {split!r} gives {len(train)} training and {len(validation)} validation samples, and validation "
            "samples decide which model is kept; write train:val:test, such as 6:2:2, or bring more rows."
        )


def extended_task(task: Task, info: ClientInfo, architecture: Architecture) -> Task:
    """Return a task with one client more, and its kind of model."""
    return replace(
        task,
        clients=(*task.clients, info),
        architectures={**task.architectures, architecture.name: architecture},
    )


def _architecture(federation: Federation, experiment: Experiment, data: Data, model: str) -> Architecture:
    """Return one of the run's kinds of model, or describe another one of the zoo."""
    if model in federation.task.architectures:
        return federation.task.architectures[model]
    if experiment.training.train != "all":
        listed = ", ".join(federation.task.architectures)
        raise PotluckError(
            f"--model {plain(model, 80)!r}: the run trains parts of its models (training.train); choose one of "
            f"{listed}."
        )
    shaped = replace(
        data, input_shape=federation.task.input_shape, vocabulary=federation.vocabulary or data.vocabulary
    )
    build = model_builder(model, model, experiment, shaped)

    def common() -> ClientModel:
        with seeded(experiment.seed, "architecture", model):
            return build()

    task = federation.task
    return describe_architecture(model, common, federation.example(), task.num_classes, dtype=task.dtype)
