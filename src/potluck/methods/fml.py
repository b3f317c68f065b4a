"""FML (Shen et al., 2020): a private model and a shared "meme" model that teach each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.method import (
    Client,
    ClientInfo,
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
class FML(Method[Tensors, kit.SharedWeights, kit.SharedWeights]):
    """The private model stays on its client; only the meme model, its partner in mutual learning, is averaged."""

    name: ClassVar[str] = "fml"
    summary: ClassVar[str] = "mutual learning of a private model and a small model that is averaged"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS, Need.SHARED_MODEL})
    supports: ClassVar[Supports] = Supports(
        robust="the meme model's weights", max_share={"weight": "samples"}, sums=SecureSums()
    )

    alpha: float = setting(
        0.5, "share of the labels in the private model's loss, the rest is imitation", ge=0, le=1
    )
    beta: float = setting(0.5, "share of the labels in the meme model's loss", ge=0, le=1)
    weight: kit.Weighting = setting(
        "samples", "how clients count in the mean: by training samples, or all alike"
    )
    buffers: bool = setting(True, "average BatchNorm statistics as well")
    predict_with: Literal["private", "meme"] = setting("private", "the model that is tested")
    htfllib_compat: bool = setting(
        False, "as HtFLlib: imitation divided by the classes, and both losses train both models"
    )

    def init_server(self, ctx: Context) -> Tensors:
        """Draw one random meme model for all."""
        return kit.tensors_of(ctx.task.shared_model(), buffers=self.buffers)

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> kit.SharedWeights:
        """Return the meme model."""
        return kit.SharedWeights(state)

    def client(self, me: Client, message: kit.SharedWeights) -> kit.SharedWeights:
        """Train both models on every batch; each follows its own loss."""
        meme = kit.load_shared_model(me, message.tensors)

        def loss(x: Tensor, y: Tensor) -> kit.LossParts:
            private_scores = me.model(x)
            private_loss, meme_loss = self.losses(private_scores, meme(x), y)
            return kit.LossParts(private_loss + meme_loss, cross_entropy(private_scores.detach(), y))

        me.fit_models({"model": me.model, "shared": meme}, loss)
        return kit.SharedWeights(kit.tensors_of(meme, buffers=self.buffers))

    def losses(self, private: Tensor, meme: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return α·CE + (1-α)·KL(meme ‖ private) of the private model, β·CE + (1-β)·KL(private ‖ meme) of the meme."""
        compat = self.htfllib_compat
        private_kl = kit.distillation(meme, private, htfllib_compat=compat)
        meme_kl = kit.distillation(private, meme, htfllib_compat=compat)
        return (
            self.alpha * cross_entropy(private, y) + (1 - self.alpha) * private_kl,
            self.beta * cross_entropy(meme, y) + (1 - self.beta) * meme_kl,
        )

    def server(self, state: Tensors, updates: Sequence[Update[kit.SharedWeights]], ctx: Context) -> Tensors:
        """Take the mean of the participants' meme models."""
        return kit.average(ctx, state, updates, "tensors", by=self.weight)

    def predict(self, me: Client, message: kit.SharedWeights | None) -> Predictor:
        """Return the private model, or the meme: as trained, or as just received."""
        if self.predict_with == "private":
            return me.model
        return kit.copy_shared_model(me, None if message is None else message.tensors)
