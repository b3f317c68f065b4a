"""Vectors per class, from the checkpoint of a run, laid out by t-SNE: clients' own means, and what the server sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potluck.analysis.tsne import tsne
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.task import Averaging
from potluck.kit.class_rows import ClassRows, mean_rows
from potluck.report.feature_figures import tsne_figure
from potluck.runs.ended import Ended

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = tuple[Tensor, Tensor]
"""Vectors [rows, width] and the class of each."""


def prototypes(clients: Mapping[str, Client]) -> Figure:
    """The mean feature of each class that a client holds, of several clients."""
    return _laid_out({name: _own_means(me, "features") for name, me in clients.items()})


def vectors(ended: Ended, clients: Sequence[Client]) -> Figure:
    """What the server sends of each class, beside the mean over clients of what they have of it themselves.

    These are FedL2G's guiding vectors and the global prototypes that they are held against (its Figure 4).
    """
    sent = sent_per_class(ended)
    if sent is None:
        name = ended.resolved.method.name
        raise PotluckError(
            f"The server of {name!r} sends no vector per class; choose field 'features' or 'prototypes', or a run of "
            "fedl2g-f, fedl2g-l, fedproto, fedtgp, fd or fedhe."
        )
    task = ended.resolved.federation.task
    width = sent[0].shape[1]
    space = "features" if width == clients[0].model.feature_dim else "scores"
    own = [_own_means(me, space) for me in clients]
    if any(rows.shape[1] != width for rows, _ in own):
        raise PotluckError(
            f"The server's vectors have {width} entries, as many as neither features nor class scores of the clients; "
            "choose field 'features' or 'prototypes'."
        )
    total, senders = mean_rows(Averaging(), own, task.num_classes)
    known = torch.nonzero(senders).flatten()
    return _laid_out({"sent by the server": sent, f"mean {space} of clients": (total[known], known)})


def sent_per_class(ended: Ended) -> Rows | None:
    """The vectors that the server would send next to its first client, where it sends one for each class."""
    server, task = ended.loop.server, ended.resolved.federation.task
    message = server.message(task.clients[0], server.context())
    if isinstance(message, ClassRows):
        table = message.table(task.num_classes)
        return table.rows[table.known], torch.nonzero(table.known).flatten()
    tensors, scalars = message.flatten()
    found = [one for one in tensors.values() if one.ndim == 2 and len(one) == task.num_classes]
    if len(found) != 1 or len(tensors) > 1 or scalars:
        return None
    return found[0], torch.arange(task.num_classes)


def _own_means(me: Client, space: str) -> Rows:
    function = me.model.features if space == "features" else me.model
    with torch.no_grad():
        means, labels, _ = me.class_means(lambda x: function(x).flatten(1))
    return means.cpu(), labels.cpu()


def _laid_out(sets: Mapping[str, Rows]) -> Figure:
    rows = {name: vectors for name, (vectors, _) in sets.items()}
    return tsne_figure(tsne(rows, {name: labels.tolist() for name, (_, labels) in sets.items()}))
