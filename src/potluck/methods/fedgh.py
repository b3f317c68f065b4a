"""FedGH (Yi et al., ACM Multimedia 2023): a global header trained on the clients' class-mean features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.core.client import Client
from potluck.core.header import Header, with_header
from potluck.core.method import Method, Need, PaperAccounting, Predictor, Update
from potluck.core.payload import Payload
from potluck.core.schema import Labels, Shape
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import sgd_step, tensors_of


@dataclass(frozen=True)
class ClassMeans(Payload):
    """Client to server: the local averaged representation of each class it holds (eq. 3). No counts."""

    means: Annotated[Tensor, Shape("rows", "features")]
    labels: Annotated[Tensor, Labels()]


@dataclass
class FedGH(Method[nn.Linear, Header, ClassMeans]):
    """Extractors stay private; the header is trained on the server and replaces everyone's each round.

    `server_mode`: `per_mean`, one step per class mean (the paper); `per_client`, one step on the mean loss of a
    client's class means; `pooled`, minibatches of all class means. `server_passes=0` freezes the first header.
    """

    name: ClassVar[str] = "fedgh"
    summary: ClassVar[str] = "a global header, trained on the server from class-mean features"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.FEATURES, Need.EQUAL_FEATURES, Need.EQUAL_HEADS, Need.LINEAR_HEADS}
    )

    server_lr: float = 0.01
    server_mode: Literal["per_mean", "per_client", "pooled"] = "per_mean"
    server_passes: int = 1
    server_batch: int = 10

    def init_server(self, ctx: Context) -> nn.Linear:
        """θ⁰: one random header, so that all clients start from the same."""
        return ctx.header()

    def broadcast(self, state: nn.Linear, client: ClientInfo, ctx: Context) -> Header:
        """θ^{t-1}."""
        return Header(tensors_of(state))

    def client(self, me: Client, message: Header) -> ClassMeans:
        """Replace the header (eq. 5), train everything (eq. 6), send class means of the new features (eq. 3)."""
        me.model.head.load_state_dict(message.weights)
        me.fit()
        means, labels, _ = me.class_means(me.model.features)
        return ClassMeans(means, labels)

    def server(self, state: nn.Linear, updates: Sequence[Update[ClassMeans]], ctx: Context) -> nn.Linear:
        """Gradient steps on the header (eq. 4), clients in ascending order, every class mean alike."""
        for number in range(self.server_passes):
            for means, labels in self._batches(updates, ctx, number):
                sgd_step(state, cross_entropy(state(means), labels), self.server_lr)
        return state

    def _batches(
        self, updates: Sequence[Update[ClassMeans]], ctx: Context, number: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        payloads = [update.payload for update in updates]
        if self.server_mode == "per_client":
            yield from ((payload.means, payload.labels) for payload in payloads)
            return
        means = torch.cat([payload.means for payload in payloads])
        labels = torch.cat([payload.labels for payload in payloads])
        size = 1
        if self.server_mode == "pooled":
            order = torch.randperm(len(labels), generator=ctx.rng(f"pooled {number}"))
            means, labels, size = means[order], labels[order], self.server_batch
        yield from zip(torch.split(means, size), torch.split(labels, size), strict=True)

    def predict(self, me: Client, message: Header | None) -> Predictor:
        """The client's own extractor with its trained header, or with the global one just received."""
        return me.model if message is None else with_header(me, message.weights)

    def paper_accounting(self, down: Header, up: ClassMeans) -> PaperAccounting:
        """Table 3 leaves the header's bias out of the downlink."""
        bias = down.weights.get("bias")
        left_out = 0 if bias is None else bias.numel()
        return PaperAccounting(up.numbers(), down.numbers() - left_out, "header bias not counted (Table 3)")
