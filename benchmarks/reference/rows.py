"""Local work of methods that exchange a head or a vector per class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.reference.hand import ClassSums, ReferenceClient, Upload, upload_fields, with_channels_last


def standalone(me: ReferenceClient, message: Any) -> Upload:
    """Train."""
    me.train(me.plain)
    return {}


def fedgh(me: ReferenceClient, message: Any) -> Upload:
    """The server's head, an epoch, class means."""
    me.model.head.load_state_dict(message.weights)
    me.train(me.plain)
    return me.means()


def lg_fedavg(me: ReferenceClient, message: Any) -> Upload:
    """The mean head, an epoch, the head."""
    me.model.head.load_state_dict(message.weights)
    me.train(me.plain)
    return upload_fields("weights", me.model.head)


def fedproto(me: ReferenceClient, message: Any) -> Upload:
    """Features near the prototypes, class means."""
    return _towards(me, *with_channels_last(message.rows, message.labels, me.classes), 1.0)


def fedtgp(me: ReferenceClient, message: Any) -> Upload:
    """The same towards the server's prototypes, which all classes have."""
    return _towards(me, *with_channels_last(message.prototypes, None, me.classes), 0.1)


def _towards(me: ReferenceClient, rows: Tensor, present: Tensor, weight: float) -> Upload:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        features = me.model.features(x)
        distance = (features - rows[y]).square().mean(dim=1) * present[y]
        return F.cross_entropy(me.model.head(features), y) + weight * distance.mean()

    me.train(loss)
    return me.means()


def fd(me: ReferenceClient, message: Any) -> Upload:
    """Scores near the mean scores of their class; the means of the scores that went by."""
    table, present = with_channels_last(message.rows, message.labels, me.classes)
    sums = ClassSums(me.classes)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        scores = me.model(x)
        target, log_probs = F.log_softmax(table[y], dim=1), F.log_softmax(scores, dim=1)
        pull = F.kl_div(log_probs, target, reduction="none", log_target=True).sum(dim=1) * present[y]
        sums.add(scores, y)
        return F.cross_entropy(scores, y) + pull.mean()

    me.train(loss)
    rows, labels, _ = sums.result()
    return {"rows": rows, "labels": labels}


def fedhe(me: ReferenceClient, message: Any) -> Upload:
    """Scores at a small squared distance of the store's; sums divided by one more than their number (eq. 8)."""
    table, present = with_channels_last(message.rows, message.labels, me.classes)
    sums = ClassSums(me.classes)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        scores: Tensor = me.model(x)
        distance = (scores - table[y]).square().mean(dim=1) * present[y]
        sums.add(scores, y)
        return F.cross_entropy(scores, y) + distance.mean()

    me.train(loss)
    rows, labels, counts = sums.result()
    return {"rows": rows * (counts / (counts + 1))[:, None], "labels": labels}


def fedgen(me: ReferenceClient, message: Any) -> Upload:
    """The mean head, trained on generated features beside the client's own samples."""
    me.model.head.load_state_dict(message.head)
    generator = _generator(message.generator)
    draw, labels_rng, noise_rng = message.draw.double(), me.rng("labels"), me.rng("noise")
    size = min(me.batch, len(me.y))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        scores = me.model(x)
        drawn = torch.multinomial(draw, size, replacement=True, generator=labels_rng)
        with torch.no_grad():
            noise = torch.rand(size, 32, generator=noise_rng)
            made = generator(torch.cat([noise, F.one_hot(drawn, me.classes).float()], dim=1))
        return F.cross_entropy(scores, y) + F.cross_entropy(me.model.head(made), drawn)

    me.train(loss)
    return upload_fields("head", me.model.head)


def _generator(tensors: dict[str, Tensor]) -> nn.Module:
    hidden, inputs = tensors["net.0.weight"].shape
    with torch.device("meta"):
        net = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, len(tensors["net.3.bias"])),
        )
    weights = {name.removeprefix("net."): tensor for name, tensor in tensors.items()}
    net.load_state_dict(weights, strict=False, assign=True)
    return net.eval()
