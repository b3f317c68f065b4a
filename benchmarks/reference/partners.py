"""Local work of methods that train a small shared model, or agree over public samples."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.reference.hand import BIG, ReferenceClient, Upload, distillation_loss, upload_fields
from potluck.core.model import ClientModel
from potluck.core.random import generator


def fml(me: ReferenceClient, message: Any) -> Upload:
    """Labels and each other's scores, half and half."""
    small = _received(me, message)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        own, meme = me.model(x), small(x)
        own_loss = 0.5 * F.cross_entropy(own, y) + 0.5 * distillation_loss(meme, own)
        return own_loss + (0.5 * F.cross_entropy(meme, y) + 0.5 * distillation_loss(own, meme))

    me.train(loss, models=[me.model, small])
    return upload_fields("tensors", small)


def fedapen(me: ReferenceClient, message: Any) -> Upload:
    """The same, and the cross-entropy of both models' mixture by a learned share."""
    small = _received(me, message)
    rest, study = _apart(me)
    share = _share(me, small, rest)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        own, small_scores = me.model(x), small(x)
        own_loss = F.cross_entropy(own, y) + distillation_loss(small_scores, own)
        other_loss = F.cross_entropy(small_scores, y) + distillation_loss(own, small_scores)
        own_loss = own_loss + F.cross_entropy(share * own + (1 - share) * small_scores.detach(), y)
        return own_loss + (other_loss + F.cross_entropy(share * own.detach() + (1 - share) * small_scores, y))

    me.train(loss, models=[me.model, small], rows=study)
    return upload_fields("tensors", small)


def _apart(me: ReferenceClient) -> tuple[Tensor, Tensor]:
    """A twentieth of the samples for the share, the others for the models; drawn once."""
    if "apart" not in me.kept:
        count = int(0.05 * len(me.y) + 1e-9)
        order = torch.randperm(len(me.y), generator=generator(me.seed, "adaptability", me.name))
        me.kept["apart"] = order[:count], order[count:]
    pair: tuple[Tensor, Tensor] = me.kept["apart"]
    return pair


def _share(me: ReferenceClient, small: ClientModel, rows: Tensor) -> float:
    """The best share of the own model, by halving on the sign of the slope."""
    with torch.no_grad():
        own, small_scores, y = me.model(me.x[rows]), small(me.x[rows]), me.y[rows]
        apart = (own - small_scores).double()
        wanted = apart.gather(1, y[:, None]).mean()
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            chances = (small_scores.double() + middle * apart).softmax(dim=1)
            if (chances * apart).sum(dim=1).mean() > wanted:
                high = middle
            else:
                low = middle
    return (low + high) / 2


def fedmrl(me: ReferenceClient, message: Any) -> Upload:
    """Both models' features through one projector, under both heads."""
    small, projector = _received(me, message), me.kept["projector"]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        fused = projector(torch.cat([small.features(x), me.model.features(x)], dim=1))
        scores = me.model.head(fused), small.head(fused[:, : small.feature_dim])
        return F.cross_entropy(scores[0], y) + F.cross_entropy(scores[1], y)

    me.train(loss, models=[me.model, small, projector])
    return upload_fields("tensors", small)


def pfedafm(me: ReferenceClient, message: Any) -> Upload:
    """The own model on mixed features, with the mixture; then the small extractor under the head just trained."""
    small = _received(me, message)
    alpha = me.kept["alpha"].clone().requires_grad_()

    def mixed(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            small_features = small.features(x)
        return F.cross_entropy(me.model.head((1 - alpha) * small_features + alpha * me.model.features(x)), y)

    def adapt() -> None:
        with torch.no_grad():
            alpha.sub_(alpha.grad).clamp_(0, 1)
        alpha.grad = None

    me.train(mixed, after=adapt)
    me.kept["alpha"] = alpha.detach().clone()
    head = copy.deepcopy(me.model.head).requires_grad_(False)
    me.train(lambda x, y: F.cross_entropy(head(small.features(x)), y), models=[small])
    return {name: tensor for name, tensor in upload_fields("tensors", small).items() if ".head." not in name}


def fedkd(me: ReferenceClient, message: Any) -> Upload:
    """Both models and a map between their features; the change of the small one at low rank."""
    small, hidden = me.kept["shared"], me.kept["hidden map"]
    shapes = small.state_dict()
    expanded = {
        name: ((message.left[name] * values) @ message.right[name]).reshape(shapes[name].shape)
        for name, values in message.values.items()
    }
    small.load_state_dict({**message.raw, **expanded}, strict=False)
    before = {name: weight.detach().clone() for name, weight in small.named_parameters()}

    def loss(x: Tensor, y: Tensor) -> Tensor:
        features, small_features = me.model.features(x), small.features(x)
        own, small_scores = me.model.head(features), small.head(small_features)
        own_loss, other_loss = F.cross_entropy(own, y), F.cross_entropy(small_scores, y)
        near = distillation_loss(small_scores, own) + distillation_loss(own, small_scores)
        near = near + F.mse_loss(features, hidden(small_features.detach()))
        near = near + F.mse_loss(features.detach(), hidden(small_features))
        return own_loss + other_loss + near / (own_loss + other_loss).detach().clamp(min=0.1)

    me.train(loss, models=[me.model, small, hidden])
    with torch.no_grad():
        return _low_rank({name: weight - before[name] for name, weight in small.named_parameters()})


def _low_rank(changes: dict[str, Tensor]) -> Upload:
    """Matrices by the singular vectors that hold 95 % of the energy, where those are fewer numbers."""
    sent: dict[str, Tensor] = {}
    for name, change in changes.items():
        if change.dim() < 2:
            sent[f"raw.{name}"] = change
            continue
        matrix = change.flatten(1)
        left_vectors, values, right = torch.linalg.svd(matrix, full_matrices=False)
        energy = torch.cumsum(values.double() ** 2, dim=0)
        rank = int((energy < 0.95 * energy[-1]).sum()) + 1
        if rank * (sum(matrix.shape) + 1) >= matrix.numel():
            sent[f"raw.{name}"] = change
            continue
        parts = {"left": left_vectors[:, :rank], "values": values[:rank], "right": right[:rank]}
        sent |= {f"{part}.{name}": tensor.contiguous() for part, tensor in parts.items()}
    return sent


def fedmd(me: ReferenceClient, message: Any) -> Upload:
    """Five passes over the public samples' consensus, an epoch of the client's own, answers for the next ones."""
    assert me.public is not None
    rng, x, target = me.rng("batches"), me.public[0][message.rows], message.logits
    passes = [torch.randperm(len(x), generator=rng) for _ in range(5)]
    batches = [rows for order in passes for rows in torch.split(order, me.batch)]

    def digest(x: Tensor, y: Tensor) -> Tensor:
        return F.l1_loss(me.model(x), y)

    _distance(me.model, x, target)
    me.steps(batches, (x, target), digest, [me.model])
    _distance(me.model, x, target)
    me.train(me.plain)
    with torch.no_grad():
        return {
            "logits": torch.cat([me.model(part) for part in torch.split(me.public[0][message.asked], BIG)])
        }


def _distance(model: nn.Module, x: Tensor, target: Tensor) -> float:
    """How far off the consensus a client is, which is part of the method's report."""
    with torch.no_grad():
        parts = zip(torch.split(x, BIG), torch.split(target, BIG), strict=True)
        return sum(float(F.l1_loss(model(inputs), y)) * len(y) for inputs, y in parts) / len(x)


def _received(me: ReferenceClient, message: Any) -> ClientModel:
    """The client's small model with the weights just downloaded."""
    small: ClientModel = me.kept["shared"]
    small.load_state_dict(message.tensors, strict=False)
    return small
