"""pFedAFM (Yi et al., 2024): features of a shared small and a private large extractor, mixed by learned weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.core.client import Client, Fit
from potluck.core.composite import Composite
from potluck.core.method import Method, Need, Predictor, Update
from potluck.core.model import ClientModel
from potluck.core.payload import Tensors
from potluck.core.shared_model import (
    SharedWeights,
    as_received,
    average,
    fit_together,
    own_copy,
    without_head,
)
from potluck.core.sharing import Weighting
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import tensors_of


@dataclass
class PFedAFM(Method[Tensors, SharedWeights, SharedWeights]):
    """One small extractor for all, mixed feature by feature with each client's own; the header is the client's.

    `alpha_lr` is η_α, the step of the mixing weights; `clamp` keeps them in [0, 1]. `train`: `iterative` (large
    model and weights first, then the small extractor) or `end_to_end` (all at once through the mixture).
    `weight`: the mean over clients by samples or plain. `buffers` averages BatchNorm statistics as well.
    `predict_with`: the mixed model, or one extractor alone before the client's header.
    """

    name: ClassVar[str] = "pfedafm"
    summary: ClassVar[str] = "a shared small extractor, mixed with the private one by learned weights"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.FEATURES, Need.EQUAL_FEATURES, Need.SHARED_MODEL, Need.SHARED_FEATURES}
    )
    own_steps: ClassVar[bool] = True

    alpha_lr: float = 0.01
    clamp: bool = True
    train: Literal["iterative", "end_to_end"] = "iterative"
    weight: Weighting = "samples"
    buffers: bool = True
    predict_with: Literal["mixed", "small", "large"] = "mixed"

    def init_server(self, ctx: Context) -> Tensors:
        """θ⁰: the extractor of the shared small model, without its header."""
        return without_head(tensors_of(ctx.task.shared_model(), buffers=self.buffers))

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> SharedWeights:
        """θ^{t-1}."""
        return SharedWeights(state)

    def client(self, me: Client, message: SharedWeights) -> SharedWeights:
        """Learn from the shared extractor, then teach it; the received one is kept for prediction."""
        small = own_copy(me, message.tensors)
        me.private["extractor"] = without_head(tensors_of(small))
        mixed = self._train_mixed(me, small)
        if self.train == "iterative":
            _train_small(me, small)
            me.report(mixed.steps, mixed.loss)
        else:
            me.private["extractor"] = without_head(tensors_of(small))
        return SharedWeights(without_head(tensors_of(small, buffers=self.buffers)))

    def _train_mixed(self, me: Client, small: ClientModel) -> Fit:
        """Eqs. 2-6: after every batch the large model (η_ω) and the mixing weights (η_α) take a step."""
        alpha = self._alpha(me).requires_grad_()
        together = self.train == "end_to_end"
        small.eval()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            with torch.set_grad_enabled(together):
                small_features = small.features(x)
            return cross_entropy(me.model.head(mix(alpha, small_features, me.model.features(x))), y)

        models = {"model": me.model, "shared": small} if together else {"model": me.model}
        fit = fit_together(me, models, loss, after_step=lambda: self.adapt(alpha))
        me.private["alpha"] = alpha.detach().clone()
        return fit

    def _alpha(self, me: Client) -> Tensor:
        """α_k as the last round left it; ones, the local model alone, before the first."""
        kept: Tensor | None = me.private.get("alpha")
        if kept is not None:
            return kept.to(me.task.device).clone()
        return torch.ones(me.model.feature_dim, device=me.task.device, dtype=me.task.dtype)

    def adapt(self, alpha: Tensor) -> None:
        """A plain step on α's gradient (eq. 6): never decayed, which would pull every weight towards 0."""
        assert alpha.grad is not None
        with torch.no_grad():
            alpha -= self.alpha_lr * alpha.grad
            if self.clamp:
                alpha.clamp_(0, 1)
        alpha.grad = None

    def server(self, state: Tensors, updates: Sequence[Update[SharedWeights]], ctx: Context) -> Tensors:
        """θ^t = Σ n_k/n · θ_k^t over the participants (eq. 11)."""
        return average(state, updates, [update.payload.tensors for update in updates], self.weight)

    def predict(self, me: Client, message: SharedWeights | None) -> Predictor:
        """The mixture with the extractor that this client last worked with, or with the one just received."""
        if self.predict_with == "large":  # α = 1
            return me.model
        small = as_received(me, me.private.get("extractor") if message is None else message.tensors)
        if self.predict_with == "small":  # α = 0
            return Composite("small extractor", {"large": me.model, "small": small}, {})
        return Composite("mixed", {"large": me.model, "small": small}, {"alpha": self._alpha(me)})


def mix(alpha: Tensor, small_features: Tensor, large_features: Tensor) -> Tensor:
    """(1-α) ⊙ G(x) + α ⊙ F(x) (eq. 3)."""
    return (1 - alpha) * small_features + alpha * large_features


def _train_small(me: Client, small: ClientModel) -> None:
    """Eqs. 7-10: the small extractor learns in front of the header just trained, which stays as it is."""
    header = copy.deepcopy(me.model.head).eval().requires_grad_(False)
    me.fit(_small_loss, header, model=small, name="shared")


def _small_loss(small: ClientModel, x: Tensor, y: Tensor, header: nn.Module) -> Tensor:
    return cross_entropy(header(small.features(x)), y)
