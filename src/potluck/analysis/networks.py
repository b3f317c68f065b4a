"""Features of trained clients' networks: common inputs, outputs of stages, class means and the server's vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.samples import prepare
from potluck.kit.class_vectors import ClassVectors, mean_by_class
from potluck.runs.restore import RestoredRun
from potluck.runs.run import Run

Rows = tuple[Tensor, Tensor]
"""Vectors [rows, width] and the class of each."""


def trained_clients(run: Run, ended: RestoredRun, indices: Sequence[int]) -> list[Client]:
    """Return those of the wanted clients that the run has, as their last training left them."""
    count = len(ended.plan.federation.members)
    clients = [
        ended.client(index) for index in indices if index < count and index not in ended.loop.newcomers
    ]
    if len(clients) < 2:
        raise PotluckError(
            f"Run {run.name!r} has fewer than 2 of the clients {list(indices)}; choose others."
        )
    return clients


def common_inputs(
    ended: RestoredRun, clients: Sequence[Client], count: int, label: int | None = None
) -> Rows:
    """Return inputs of all clients, and their classes: the shared test samples, or test samples of all in equal parts.

    With a `label` they are of that class alone.
    """
    task, shared = ended.plan.federation.task, ended.plan.federation.shared_test
    sources = [shared] if shared is not None else [me.test for me in clients if me.test is not None]
    each = -(-count // max(1, len(sources)))
    parts = []
    for samples in sources:
        rows = torch.arange(len(samples))
        if label is not None:
            rows = torch.nonzero(samples.labels == label).flatten()
        parts.append(prepare(*samples.take(rows[:each]), task))
    x = torch.cat([x for x, _ in parts]) if parts else torch.empty(0)
    if not len(x):
        raise PotluckError(
            f"There are no common test samples{'' if label is None else f' of class {label}'}."
        )
    return x, torch.cat([y for _, y in parts])


def stage_outputs(me: Client, x: Tensor) -> dict[str, Tensor]:
    """Return the output of each stage [samples, values], and the features at the end."""
    me.model.eval()
    outputs: dict[str, Tensor] = {}
    with torch.no_grad():
        features = me.model.features(x).flatten(1)
        for number, stage in enumerate(me.model.stages, 1):
            x = stage(x)
            outputs[f"stage {number}"] = x.flatten(1)
    return {**outputs, "features": features}


def class_vector_sets(ended: RestoredRun, clients: Sequence[Client]) -> Mapping[str, Rows]:
    """Return the vector that the server sends for each class, and the mean over clients of their class means.

    These are FedL2G's guiding vectors and the global prototypes they are compared with (its Figure 4).
    """
    sent = sent_per_class(ended)
    if sent is None:
        name = ended.plan.method.name
        raise PotluckError(
            f"The server of {name!r} sends no vector per class; choose field 'features' or 'prototypes', or a run of "
            "fedl2g-f, fedl2g-l, fedproto, fedtgp, fd or fedhe."
        )
    task = ended.plan.federation.task
    width = sent[0].shape[1]
    space = "features" if width == clients[0].model.feature_dim else "scores"
    own = [own_means(me, space) for me in clients]
    if any(rows.shape[1] != width for rows, _ in own):
        raise PotluckError(
            f"The server's vectors have {width} entries, as many as neither features nor class scores of the clients; "
            "choose field 'features' or 'prototypes'."
        )
    total, senders = mean_by_class(own, task.num_classes)
    labels = torch.nonzero(senders).flatten()
    return {"sent by the server": sent, f"mean {space} of clients": (total[labels], labels)}


def sent_per_class(ended: RestoredRun) -> Rows | None:
    """Return the vectors that the server would send next to its first client, if it sends one per class."""
    server, task = ended.loop.server, ended.plan.federation.task
    message = server.message(task.clients[0], server.context())
    if isinstance(message, ClassVectors):
        table = message.table(task.num_classes)
        return table.rows[table.known], torch.nonzero(table.known).flatten()
    tensors, scalars = message.flatten()
    tables = [tensor for tensor in tensors.values() if tensor.ndim == 2 and len(tensor) == task.num_classes]
    if len(tables) != 1 or len(tensors) > 1 or scalars:
        return None
    return tables[0], torch.arange(task.num_classes)


def own_means(me: Client, space: str) -> Rows:
    """Return a client's mean vector of each class of its training samples: `features`, or class scores."""
    function = me.model.features if space == "features" else me.model
    with torch.no_grad():
        means, labels, _ = me.class_means(lambda x: function(x).flatten(1))
    return means.cpu(), labels.cpu()
