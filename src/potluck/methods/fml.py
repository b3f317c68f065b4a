"""FML (Shen et al., 2020): a private model and a shared "meme" model that teach each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.core import (
    Client,
    ClientInfo,
    Context,
    Method,
    Need,
    Predictor,
    Tensors,
    Update,
    setting,
    tensors_of,
)
from potluck.kit import SharedWeights, Weighting, as_received, average, distillation, own_copy


@dataclass
class FML(Method[Tensors, SharedWeights, SharedWeights]):
    """The private model stays at home; only the meme model, its partner in mutual learning, is averaged."""

    name: ClassVar[str] = "fml"
    summary: ClassVar[str] = "mutual learning of a private model and a small model that is averaged"
    averages: ClassVar[str] = "the meme model's weights"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS, Need.SHARED_MODEL})

    sees_latest: ClassVar[bool] = True

    alpha: float = setting(
        0.5, "share of the labels in the private model's loss, the rest is imitation", ge=0, le=1
    )
    beta: float = setting(0.5, "share of the labels in the meme model's loss", ge=0, le=1)
    weight: Weighting = setting("samples", "how clients count in the mean: by training samples, or all alike")
    buffers: bool = setting(True, "average BatchNorm statistics as well")
    predict_with: Literal["private", "meme"] = setting("private", "the model that is tested")
    htfllib_compat: bool = setting(
        False, "as HtFLlib: imitation divided by the classes, and both losses train both models"
    )

    def init_server(self, ctx: Context) -> Tensors:
        """One random meme model for all."""
        return tensors_of(ctx.task.shared_model(), buffers=self.buffers)

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> SharedWeights:
        """The meme model."""
        return SharedWeights(state)

    def client(self, me: Client, message: SharedWeights) -> SharedWeights:
        """Train both models on every batch; each follows its own loss."""
        meme = own_copy(me, message.tensors)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            private_loss, meme_loss = self.losses(me.model(x), meme(x), y)
            return private_loss + meme_loss

        me.fit_models({"model": me.model, "shared": meme}, loss)
        return SharedWeights(tensors_of(meme, buffers=self.buffers))

    def losses(self, private: Tensor, meme: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """α·CE + (1-α)·KL(meme ‖ private) of the private model, β·CE + (1-β)·KL(private ‖ meme) of the meme."""
        compat = self.htfllib_compat
        private_kl = distillation(meme, private, htfllib_compat=compat)
        meme_kl = distillation(private, meme, htfllib_compat=compat)
        return (
            self.alpha * cross_entropy(private, y) + (1 - self.alpha) * private_kl,
            self.beta * cross_entropy(meme, y) + (1 - self.beta) * meme_kl,
        )

    def server(self, state: Tensors, updates: Sequence[Update[SharedWeights]], ctx: Context) -> Tensors:
        """The mean of the participants' meme models."""
        return average(ctx, state, updates, attrgetter("tensors"), self.weight)

    def predict(self, me: Client, message: SharedWeights | None) -> Predictor:
        """The private model, or the meme: as trained, or as just received."""
        if self.predict_with == "private":
            return me.model
        return as_received(me, None if message is None else message.tensors)
