"""What a curious server aims at and what it has at hand: vectors of classes, samples of its own, an extractor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from potluck.analysis.leak.members import vector_function
from potluck.analysis.leak.seen import class_vectors, head_vectors, whole_model
from potluck.core.client import Client
from potluck.core.model import ClientModel
from potluck.core.random import generator, seeded
from potluck.core.samples import Samples
from potluck.runs.answers import Kept
from potluck.runs.ended import Ended

MOST = 2000
"""Samples that a decoder learns from."""
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Aim:
    """Vectors of a client's classes, what they are, and the function of which they are taken for means.

    `sent` says that the extractor itself travelled, so that nobody needs to steal it.
    """

    rows: Tensor
    labels: Tensor
    what: str
    function: Function
    sent: bool = False

    def of(self, model: ClientModel) -> Function:
        """The same function of another model."""
        return model if self.what == "class logits" else model.features


def find_aim(me: Client, last: Kept) -> Aim | None:
    """The class vectors of an answer, or what its head learned of each class; None where it has neither."""
    if (vectors := class_vectors(last.answer)) is not None:
        function = vector_function(me, vectors[0])
        what = "class logits" if function is me.model else "class means"
        return None if function is None else Aim(*vectors, what, function)
    if (vectors := head_vectors(last, me.task.num_classes)) is None:
        return None
    weights = whole_model(last, dict(me.model.named_parameters()))
    model = me.model.eval() if weights is None else me.predictor(weights)
    assert isinstance(model, ClientModel)
    return Aim(*vectors, "what its head learned", model.features, sent=weights is not None)


def auxiliary(ended: Ended, client: int) -> Samples:
    """What the server may know of such data: the public samples, else the test samples of all other clients."""
    federation = ended.resolved.federation
    members, public = federation.members, federation.task.public
    tests = [one.test for index, one in enumerate(members) if index != client and len(one.test)]
    parts = tests if public is None else [public]
    if not parts:
        return members[client].train.select(torch.arange(0))
    taken = [part.take(slice(None)) for part in parts]
    x, y = (torch.cat(list(each)) for each in zip(*taken, strict=True))
    order = torch.randperm(len(y), generator=generator(federation.task.seed, "leak", "auxiliary", client))
    chosen = order[:MOST].sort().values
    return Samples(x[chosen], y[chosen])


def stand_in(ended: Ended, me: Client, kept: Sequence[Kept], known: Samples) -> ClientModel | None:
    """The model of a client that the server makes up, None where it cannot build one.

    It has the client's architecture, trains by the run's own method on what the server knows, and gets the messages
    that the client got. Its first weights are others, unless all clients of an architecture began alike.
    """
    federation, info = ended.resolved.federation, me.info
    alike = ended.resolved.experiment.models.same_init
    build = (
        federation.members[info.index].build
        if alike
        else federation.task.architectures[info.architecture].build
    )
    if build is None:
        return None
    model = build().to(device=me.task.device, dtype=me.task.dtype).eval()
    info = replace(info, name=f"stand-in for {info.name}", samples=len(known))
    other = Client(info, model, known, known, federation.task, federation.training, validation=known)
    for one in kept:
        with seeded(me.task.seed, "leak", "stand-in", info.index, one.job):
            other.begin("train", one.job, one.job + 1, max(one.job + 1, len(kept)))
            ended.resolved.method.client(other, one.message.copy().to(me.task.device))
    return other.model.eval()
