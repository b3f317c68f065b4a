"""pFedAFM (Yi et al., 2024): features of a shared small and a private large extractor, mixed by learned weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
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
        row_privacy={"train": "iterative", "turns": "round"},
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
    turns: Literal["round", "epoch", "batch"] = setting(
        "round",
        "iterative training: both steps once per round with all local epochs each, or in turns epoch by epoch or batch "
        "by batch",
        later=True,
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
        if self.train == "iterative" and self.turns == "round":
            small.eval()
            mixed = me.fit(mixed_loss, small, also=[alpha], after=lambda: self.adapt(alpha))
            head = copy.deepcopy(me.model.head).eval().requires_grad_(False)
            me.fit(small_loss, head, model=small, name="shared")
            me.report(mixed)
        elif self.train == "iterative":
            self._fit_in_turns(me, small, alpha)
        else:
            self._fit_together(me, small, alpha)
        me.private["alpha"] = alpha.detach().clone()
        me.note("alpha", float(alpha.detach().mean()))
        return kit.SharedWeights(kit.extractor_tensors(kit.tensors_of(small, buffers=self.buffers)))

    def adapt(self, alpha: Tensor) -> None:
        """α ← α - η_α · gradient (eq. 6); decayed only if set, since that pulls every weight towards 0."""
        if alpha.grad is None:  # the small extractor's step, or an overflow in half precision
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
        stored: Tensor | None = me.private.get("alpha")
        if stored is not None:
            return stored.to(me.task.device).clone()
        size = (me.model.feature_dim,)
        return torch.full(size, self.alpha_start, device=me.task.device, dtype=me.task.dtype)

    def _fit_together(self, me: Client, small: ClientModel, alpha: nn.Parameter) -> None:
        """Train F, G and α at once through the mixture, at three rates; the trained G is what is evaluated."""

        def loss(x: Tensor, y: Tensor) -> kit.LossParts:
            mixed = mix(alpha, small.features(x), me.model.features(x))
            label_loss = cross_entropy(me.model.head(mixed), y)
            return kit.LossParts(label_loss, label_loss)

        models = {"model": me.model, "shared": small}
        me.fit_models(models, loss, also=[alpha], after=lambda: self.adapt(alpha))
        me.private["extractor"] = kit.extractor_tensors(kit.tensors_of(small))

    def _fit_in_turns(self, me: Client, small: ClientModel, alpha: nn.Parameter) -> None:
        """Alternate both steps; a model without a gradient in a step keeps its weights and optimiser state."""
        head, mixed_losses, step = me.model.head, list[Tensor](), 1

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            nonlocal step
            for _ in range(me.training.epochs):
                if self.turns == "epoch":
                    step = 1
                    yield from me.batches(1, models=(small,))
                    step = 2
                    yield from me.batches(1, models=(small,))
                    continue
                for x, y in me.batches(1, models=(small,)):
                    step = 1
                    yield x, y
                    step = 2
                    me.trained_samples += len(y)
                    yield x, y

        def loss(x: Tensor, y: Tensor) -> Tensor | kit.LossParts:
            if step == 1:
                with _in_eval_mode(small):
                    mixed = mixed_loss(me.model, x, y, small, alpha)
                mixed_losses.append(mixed.objective.detach())
                return mixed
            with _in_eval_mode(head):
                fixed = {name: tensor.detach() for name, tensor in head.named_parameters()}
                return small_loss(small, x, y, lambda features: functional_call(head, fixed, (features,)))

        models = {"model": me.model, "shared": small}
        fit = me.fit_models(models, loss, batches=batches(), also=[alpha], after=lambda: self.adapt(alpha))
        if mixed_losses:
            mean = float(torch.stack(mixed_losses).mean())
            me.report(replace(fit, steps=len(mixed_losses), loss=mean, cross_entropy=mean))


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode for a block."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def mixed_loss(large: ClientModel, x: Tensor, y: Tensor, small: ClientModel, alpha: Tensor) -> kit.LossParts:
    """Return the loss of the mixture; the small extractor gets no gradient (eqs. 2-4)."""
    with torch.no_grad():
        small_features = small.features(x)
    label_loss = cross_entropy(large.head(mix(alpha, small_features, large.features(x))), y)
    return kit.LossParts(label_loss, label_loss)


def small_loss(small: ClientModel, x: Tensor, y: Tensor, head: Predictor) -> Tensor:
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
