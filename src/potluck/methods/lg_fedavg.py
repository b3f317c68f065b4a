"""LG-FedAvg (Liang et al., 2020), head form: extractors stay private, the head is averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from potluck.core import (
    Client,
    ClientInfo,
    Context,
    Method,
    Need,
    Predictor,
    Tensors,
    Update,
    load_tensors,
    setting,
    tensors_of,
)
from potluck.kit import Head, Weighting, average, initial_head, with_head


@dataclass
class LGFedAvg(Method[Tensors, Head, Head]):
    """Everybody trains extractor and head together; only the head is shared, as a weighted mean."""

    name: ClassVar[str] = "lg-fedavg"
    summary: ClassVar[str] = "private extractors under an averaged head"
    guards_rows: ClassVar[bool] = True
    averages: ClassVar[str] = "the heads"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES, Need.EQUAL_HEADS})

    sees_latest: ClassVar[bool] = True

    weight: Weighting = setting(
        "samples",
        "how clients count in the mean: by training samples (as peers do), or all alike (the authors)",
    )

    def init_server(self, ctx: Context) -> Tensors:
        """θ⁰: one head for all."""
        return initial_head(ctx.task)

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> Head:
        """θ."""
        return Head(state)

    def client(self, me: Client, message: Head) -> Head:
        """Replace the head, train the whole model, send the head back."""
        load_tensors(me.model.head, message.weights)
        me.fit()
        return Head(tensors_of(me.model.head))

    def server(self, state: Tensors, updates: Sequence[Update[Head]], ctx: Context) -> Tensors:
        """θ ← Σ ω_k θ_k."""
        return average(ctx, state, updates, attrgetter("weights"), self.weight)

    def predict(self, me: Client, message: Head | None) -> Predictor:
        """The own extractor with the trained head, or with the averaged one just received."""
        return me.model if message is None else with_head(me, message.weights)
