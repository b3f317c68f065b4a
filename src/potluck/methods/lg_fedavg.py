"""LG-FedAvg (Liang et al., 2020), head form: extractors stay private, the head is averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

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
class LGFedAvg(Method[Tensors, kit.Head, kit.Head]):
    """Every client trains extractor and head together; only the head is shared, as a weighted mean."""

    name: ClassVar[str] = "lg-fedavg"
    summary: ClassVar[str] = "private extractors under an averaged head"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES, Need.EQUAL_HEADS})
    supports: ClassVar[Supports] = Supports(
        robust="the heads", max_share={"weight": "samples"}, row_privacy=True, sums=SecureSums()
    )

    weight: kit.Weighting = setting(
        "samples",
        "how clients count in the mean: by training samples (as peers do), or all alike (the authors)",
    )

    def init_server(self, ctx: Context) -> Tensors:
        """θ⁰: one head for all."""
        return kit.initial_head(ctx.task)

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> kit.Head:
        """θ."""
        return kit.Head(state)

    def client(self, me: Client, message: kit.Head) -> kit.Head:
        """Replace the head, train the whole model, send the head back."""
        kit.load_tensors(me.model.head, message.weights)
        me.fit()
        return kit.Head(kit.tensors_of(me.model.head))

    def server(self, state: Tensors, updates: Sequence[Update[kit.Head]], ctx: Context) -> Tensors:
        """θ ← Σ ω_k θ_k."""
        return kit.average(ctx, state, updates, "weights", by=self.weight)

    def predict(self, me: Client, message: kit.Head | None) -> Predictor:
        """Return the client's own extractor with its trained head, or with the averaged one just received."""
        return me.model if message is None else kit.predictor_with_head(me, message.weights)
