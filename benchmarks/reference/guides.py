"""FedL2G's local work in plain PyTorch: training towards guiding vectors, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp
from torch.nn import functional as F

from benchmarks.reference.hand import ReferenceClient, Upload
from potluck.core.model import ClientModel

Weights = dict[str, Tensor]
Outputs = Callable[[ClientModel, Tensor], tuple[Tensor, Tensor]]
WEIGHT = 0.1
"""How much the distance to a guiding vector counts."""


def fedl2g_logits(me: ReferenceClient, message: Any) -> Upload:
    """Logits are guided."""

    def outputs(model: ClientModel, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = model(x)
        return scores, scores

    return _learn(me, message.vectors, outputs)


def fedl2g_features(me: ReferenceClient, message: Any) -> Upload:
    """Features are guided."""

    def outputs(model: ClientModel, x: Tensor) -> tuple[Tensor, Tensor]:
        features = model.features(x)
        return features, model.head(features)

    return _learn(me, message.vectors, outputs)


class _Whole(nn.Module):
    """Both outputs of a model as one forward pass, for `functional_call`."""

    def __init__(self, model: ClientModel, outputs: Outputs) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.outputs(self.model, x)


def _learn(me: ReferenceClient, guides: Tensor, outputs: Outputs) -> Upload:
    quiz, study = _split(me)

    def guided(outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(outputs[1], y) + WEIGHT * (outputs[0] - guides[y]).square().mean()

    me.train(lambda x, y: guided(outputs(me.model, x), y), rows=study)
    rows = study[me.order(len(study))[: me.batch]]
    combined = _Whole(me.model, outputs).train()
    weights = {name: weight.detach() for name, weight in combined.named_parameters()}
    x, y = me.x[rows], me.y[rows]

    def call(tensors: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs: tuple[Tensor, Tensor] = functional_call(combined, tensors, (x,))
        return outputs

    slope = grad(lambda tensors: guided(call(tensors, x), y))(weights)
    moved = {name: weight - me.lr * slope[name] for name, weight in weights.items()}
    answers = grad(lambda tensors: F.cross_entropy(call(tensors, me.x[quiz])[1], me.y[quiz]))(moved)
    pushed = jvp(lambda tensors: call(tensors, x)[0], (weights,), (answers,))[1]
    me.model.eval()
    pi = torch.zeros_like(guides).index_add_(0, y, pushed.detach())
    pi = pi * (2 * WEIGHT * me.lr / (guides.shape[1] * len(y)))
    labels = pi.any(dim=1).nonzero()[:, 0]
    return {"rows": pi[labels], "labels": labels}


def _split(me: ReferenceClient) -> tuple[Tensor, Tensor]:
    """A batch for the quiz, but at most a fifth, and the rest to study."""
    size = min(me.batch, len(me.y) // 5)
    order = torch.randperm(len(me.y), generator=me.rng("quiz"))
    return order[:size].sort().values, order[size:].sort().values
