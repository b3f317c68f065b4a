"""pFedAFM (Yi et al., 2024): features of a shared small and a private large extractor, mixed by learned weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.method import (
    Client,
    ClientInfo,
    ClientModel,
    Context,
    Method,
    Need,
    Predictor,
    SecureSums,
    Supports,
    Tensors,
    Update,
    kit,
    setting,
)


@dataclass
class PFedAFM(Method[Tensors, kit.SharedWeights, kit.SharedWeights]):
    """One small extractor for all, mixed feature by feature with each client's own; the head is the client's."""

    name: ClassVar[str] = "pfedafm"
    summary: ClassVar[str] = "a shared small extractor, mixed with the private one by learned weights"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.FEATURES, Need.EQUAL_FEATURES, Need.SHARED_MODEL, Need.SHARED_FEATURES}
    )
    supports: ClassVar[Supports] = Supports(
        robust="the small extractor's weights",
        max_share={"weight": "samples"},
        row_privacy={"train": "iterative"},
        fits=2,
        sums=SecureSums(),
    )

    alpha_lr: float = setting(1.0, "step η_α of the mixing weights", gt=0)
    alpha_start: float = setting(
        1.0, "first value of the mixing weights: 1 the private extractor alone, 0 the shared one", ge=0, le=1
    )
    alpha_decay: float = setting(
        0.0,
        "weight decay of the mixing weights (the released code: 0.001), which pulls them to the small extractor",
        ge=0,
    )
    clamp: bool = setting(True, "keep the mixing weights in [0, 1]")
    train: Literal["iterative", "end_to_end"] = setting(
        "iterative",
        "large model and weights first, then the small extractor; or all at once through the mixture",
    )
    weight: kit.Weighting = setting(
        "samples", "how clients count in the mean: by training samples, or all alike"
    )
    buffers: bool = setting(True, "average BatchNorm statistics as well")
    predict_with: Literal["mixed", "small", "large"] = setting(
        "mixed", "what is tested: the mixed model, or one extractor alone before the client's head"
    )

    def init_server(self, ctx: Context) -> Tensors:
        """θ⁰: the extractor of the shared small model, without its head."""
        return kit.extractor_tensors(kit.tensors_of(ctx.task.shared_model(), buffers=self.buffers))

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> kit.SharedWeights:
        """θ^{t-1}."""
        return kit.SharedWeights(state)

    def client(self, me: Client, message: kit.SharedWeights) -> kit.SharedWeights:
        """Train F and α on the mixture (eqs. 2-6), then G in front of the trained head (eqs. 7-10)."""
        small = kit.load_shared_model(me, message.tensors)
        me.private["extractor"] = kit.extractor_tensors(kit.tensors_of(small))
        alpha = nn.Parameter(self._alpha(me))
        if self.train == "end_to_end":
            self._fit_together(me, small, alpha)
            me.private["extractor"] = kit.extractor_tensors(kit.tensors_of(small))
        else:
            small.eval()
            mixed = me.fit(mixed_loss, small, also=[alpha], after=lambda: self.adapt(alpha))
            head = copy.deepcopy(me.model.head).eval().requires_grad_(False)
            me.fit(small_loss, head, model=small, name="shared")
            me.report(mixed.steps, mixed.loss)
        me.private["alpha"] = alpha.detach().clone()
        me.note("alpha", float(alpha.detach().mean()))
        return kit.SharedWeights(kit.extractor_tensors(kit.tensors_of(small, buffers=self.buffers)))

    def adapt(self, alpha: Tensor) -> None:
        """α ← α - η_α · gradient (eq. 6); decayed only if set, since that pulls every weight towards 0."""
        if alpha.grad is None:  # it overflowed in half precision
            return
        with torch.no_grad():
            alpha -= self.alpha_lr * (alpha.grad + self.alpha_decay * alpha)
            if self.clamp:
                alpha.clamp_(0, 1)
        alpha.grad = None

    def server(self, state: Tensors, updates: Sequence[Update[kit.SharedWeights]], ctx: Context) -> Tensors:
        """θ^t = Σ n_k/n · θ_k^t over the participants (eq. 11)."""
        return kit.average(ctx, state, updates, "tensors", by=self.weight)

    def predict(self, me: Client, message: kit.SharedWeights | None) -> Predictor:
        """Return the mixture with the extractor that this client last trained with, or with the one just received."""
        if self.predict_with == "large":  # α = 1
            return me.model
        small = kit.copy_shared_model(me, me.private.get("extractor") if message is None else message.tensors)
        if self.predict_with == "small":  # α = 0
            return SmallExtractor({"large": me.model, "small": small})
        return Mixed({"large": me.model, "small": small}, {"alpha": self._alpha(me)})

    def _alpha(self, me: Client) -> Tensor:
        """Return α_k as the last round left it; its first value, by default the local model alone, before that."""
        kept: Tensor | None = me.private.get("alpha")
        if kept is not None:
            return kept.to(me.task.device).clone()
        size = (me.model.feature_dim,)
        return torch.full(size, self.alpha_start, device=me.task.device, dtype=me.task.dtype)

    def _fit_together(self, me: Client, small: ClientModel, alpha: nn.Parameter) -> None:
        """Train F, G and α at once through the mixture, at three rates."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            mixed = mix(alpha, small.features(x), me.model.features(x))
            return cross_entropy(me.model.head(mixed), y)

        models = {"model": me.model, "shared": small}
        me.fit_models(models, loss, also=[alpha], after=lambda: self.adapt(alpha))


def mixed_loss(large: ClientModel, x: Tensor, y: Tensor, small: ClientModel, alpha: Tensor) -> Tensor:
    """Return the loss of the mixture; the small extractor gets no gradient (eqs. 2-4)."""
    with torch.no_grad():
        small_features = small.features(x)
    return cross_entropy(large.head(mix(alpha, small_features, large.features(x))), y)


def small_loss(small: ClientModel, x: Tensor, y: Tensor, head: nn.Module) -> Tensor:
    """Return the loss of the small extractor in front of the head just trained, which is fixed (eqs. 7-10)."""
    return cross_entropy(head(small.features(x)), y)


def mix(alpha: Tensor, small_features: Tensor, large_features: Tensor) -> Tensor:
    """Return (1-α) ⊙ G(x) + α ⊙ F(x) (eq. 3)."""
    return (1 - alpha) * small_features + alpha * large_features


class Mixed(kit.CombinedModel):
    """The client's head on two extractors' features, mixed entry by entry."""

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        small, large = self.network("small"), self.network("large")
        scores: Tensor = large.head(mix(self.tensor("alpha"), small.features(x), large.features(x)))
        return scores


class SmallExtractor(kit.CombinedModel):
    """The client's head on the shared extractor alone."""

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        scores: Tensor = self.network("large").head(self.network("small").features(x))
        return scores
