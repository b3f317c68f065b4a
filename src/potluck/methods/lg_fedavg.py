"""LG-FedAvg (Liang et al., 2020), header form: extractors stay private, the header is averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from potluck.core.client import Client
from potluck.core.header import Header, average_headers, initial_header, with_header
from potluck.core.method import Method, Need, Predictor, Update
from potluck.core.payload import Tensors
from potluck.core.sharing import Weighting
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import load_tensors, tensors_of


@dataclass
class LGFedAvg(Method[Tensors, Header, Header]):
    """Everybody trains extractor and header together; only the header is shared, as a weighted mean.

    `weight`: `samples` (n_k, as peers have it) or `uniform` (the authors' code).
    """

    name: ClassVar[str] = "lg-fedavg"
    summary: ClassVar[str] = "private extractors under an averaged header"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES, Need.EQUAL_HEADS})

    weight: Weighting = "samples"

    def init_server(self, ctx: Context) -> Tensors:
        """θ⁰: one header for all."""
        return initial_header(ctx.task)

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> Header:
        """θ."""
        return Header(state)

    def client(self, me: Client, message: Header) -> Header:
        """Replace the header, train the whole model, send the header back."""
        load_tensors(me.model.head, message.weights)
        me.fit()
        return Header(tensors_of(me.model.head))

    def server(self, state: Tensors, updates: Sequence[Update[Header]], ctx: Context) -> Tensors:
        """θ ← Σ ω_k θ_k."""
        return average_headers(state, updates, [update.payload.weights for update in updates], self.weight)

    def predict(self, me: Client, message: Header | None) -> Predictor:
        """The own extractor with the trained header, or with the averaged one just received."""
        return me.model if message is None else with_header(me, message.weights)
