"""pFedAFM (Yi et al., 2024): features of a shared small and a private large extractor, mixed by learned weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.core import (
    Client,
    ClientInfo,
    ClientModel,
    Context,
    Fit,
    Method,
    Need,
    Predictor,
    Tensors,
    Update,
    setting,
    tensors_of,
)
from potluck.kit import (
    Composed,
    SharedWeights,
    Weighting,
    as_received,
    average,
    own_copy,
    without_head,
)


@dataclass
class PFedAFM(Method[Tensors, SharedWeights, SharedWeights]):
    """One small extractor for all, mixed feature by feature with each client's own; the head is the client's."""

    name: ClassVar[str] = "pfedafm"
    summary: ClassVar[str] = "a shared small extractor, mixed with the private one by learned weights"
    averages: ClassVar[str] = "the small extractor's weights"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.FEATURES, Need.EQUAL_FEATURES, Need.SHARED_MODEL, Need.SHARED_FEATURES}
    )

    sees_latest: ClassVar[bool] = True
    guards_rows: ClassVar[bool] = True
    guarded_with: ClassVar[str] = "method.train = 'iterative'"
    guarded_fits: ClassVar[int] = 2

    alpha_lr: float = setting(1.0, "step η_α of the mixing weights", gt=0)
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
    weight: Weighting = setting("samples", "how clients count in the mean: by training samples, or all alike")
    buffers: bool = setting(True, "average BatchNorm statistics as well")
    predict_with: Literal["mixed", "small", "large"] = setting(
        "mixed", "what is tested: the mixed model, or one extractor alone before the client's head"
    )

    def guarded(self) -> bool:
        """Two trainings one after the other have noise; one that moves three things at three rates has none."""
        return self.train == "iterative"

    def init_server(self, ctx: Context) -> Tensors:
        """θ⁰: the extractor of the shared small model, without its head."""
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
            if me.guard is None:  # the loss has no noise
                me.report(mixed.steps, mixed.loss)
        else:
            me.private["extractor"] = without_head(tensors_of(small))
        return SharedWeights(without_head(tensors_of(small, buffers=self.buffers)))

    def _train_mixed(self, me: Client, small: ClientModel) -> Fit:
        """Eqs. 2-6: after every batch the large model (η_ω) and the mixing weights (η_α) take a step."""
        alpha = nn.Parameter(self._alpha(me))
        together = self.train == "end_to_end"
        small.eval()
        mixture = Mixture(me.model, alpha)
        if (
            me.guard is not None
        ):  # a row's gradient of ω and α is one vector: both have noise before they move
            fit = me.fit(_mixed_loss, small, together, model=mixture, adjust=lambda: self.adapt(alpha))
        else:
            models = {"model": me.model, "shared": small} if together else {"model": me.model}
            fit = me.fit_models(
                models,
                lambda x, y: _mixed_loss(mixture, x, y, small, together),
                after=lambda: self.adapt(alpha),
                others=[alpha],
            )
        me.private["alpha"] = alpha.detach().clone()
        me.note("alpha", float(alpha.detach().mean()))
        return fit

    def _alpha(self, me: Client) -> Tensor:
        """α_k as the last round left it; ones, the local model alone, before the first."""
        kept: Tensor | None = me.private.get("alpha")
        if kept is not None:
            return kept.to(me.task.device).clone()
        return torch.ones(me.model.feature_dim, device=me.task.device, dtype=me.task.dtype)

    def adapt(self, alpha: Tensor) -> None:
        """A plain step on α's gradient (eq. 6); decayed only if told to, since that pulls every weight towards 0."""
        if alpha.grad is None:  # it overflowed in half precision
            return
        with torch.no_grad():
            alpha -= self.alpha_lr * (alpha.grad + self.alpha_decay * alpha)
            if self.clamp:
                alpha.clamp_(0, 1)
        alpha.grad = None

    def server(self, state: Tensors, updates: Sequence[Update[SharedWeights]], ctx: Context) -> Tensors:
        """θ^t = Σ n_k/n · θ_k^t over the participants (eq. 11)."""
        return average(ctx, state, updates, attrgetter("tensors"), self.weight)

    def predict(self, me: Client, message: SharedWeights | None) -> Predictor:
        """The mixture with the extractor that this client last worked with, or with the one just received."""
        if self.predict_with == "large":  # α = 1
            return me.model
        small = as_received(me, me.private.get("extractor") if message is None else message.tensors)
        if self.predict_with == "small":  # α = 0
            return SmallExtractor({"large": me.model, "small": small})
        return Mixed({"large": me.model, "small": small}, {"alpha": self._alpha(me)})


class Mixture(nn.Module):
    """What the first phase trains: the large model, and the weights that mix it with the small one."""

    def __init__(self, large: ClientModel, alpha: nn.Parameter) -> None:
        super().__init__()
        self.large, self.alpha = large, alpha


def _mixed_loss(mixture: Mixture, x: Tensor, y: Tensor, small: ClientModel, together: bool) -> Tensor:
    """Eqs. 2-4; the small extractor learns from it only where all is trained together."""
    with torch.set_grad_enabled(together):
        small_features = small.features(x)
    large = mixture.large
    return cross_entropy(large.head(mix(mixture.alpha, small_features, large.features(x))), y)


class Mixed(Composed):
    """The client's head on two extractors' features, mixed entry by entry."""

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        small, large = self.network("small"), self.network("large")
        scores: Tensor = large.head(mix(self.tensor("alpha"), small.features(x), large.features(x)))
        return scores


class SmallExtractor(Composed):
    """The client's head on the shared extractor alone."""

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.network("large").head(self.network("small").features(x))
        return scores


def mix(alpha: Tensor, small_features: Tensor, large_features: Tensor) -> Tensor:
    """(1-α) ⊙ G(x) + α ⊙ F(x) (eq. 3)."""
    return (1 - alpha) * small_features + alpha * large_features


def _train_small(me: Client, small: ClientModel) -> None:
    """Eqs. 7-10: the small extractor learns in front of the head just trained, which stays as it is."""
    head = copy.deepcopy(me.model.head).eval().requires_grad_(False)
    me.fit(_small_loss, head, model=small, name="shared")


def _small_loss(small: ClientModel, x: Tensor, y: Tensor, head: nn.Module) -> Tensor:
    return cross_entropy(head(small.features(x)), y)
