"""FedGH (Yi et al., ACM Multimedia 2023): a global head (its "header") trained on the clients' class-mean features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.core import (
    Client,
    ClientInfo,
    Context,
    Labels,
    Method,
    Need,
    PaperAccounting,
    Payload,
    Predictor,
    Shape,
    Update,
    setting,
    tensors_of,
)
from potluck.kit import Head, screened, sgd_step, with_head


@dataclass(frozen=True)
class ClassMeans(Payload):
    """Client to server: the local averaged representation of each class it holds (eq. 3). No counts."""

    means: Annotated[Tensor, Shape("rows", "features")]
    labels: Annotated[Tensor, Labels()]


@dataclass
class FedGH(Method[nn.Linear, Head, ClassMeans]):
    """Extractors stay private; the head is trained on the server and replaces everyone's each round."""

    name: ClassVar[str] = "fedgh"
    summary: ClassVar[str] = "a global head, trained on the server from class-mean features"
    guards_rows: ClassVar[bool] = True
    averages: ClassVar[str] = "the class means that the head is trained on: who lies far off is left out"
    sees_latest: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.FEATURES, Need.EQUAL_FEATURES, Need.EQUAL_HEADS, Need.LINEAR_HEADS}
    )

    server_lr: float = setting(0.01, "step η_θ of the head on a class mean", gt=0)
    server_mode: Literal["per_mean", "per_client", "pooled"] = setting(
        "per_mean",
        "what makes a step: one class mean (the paper), all of a client's, or minibatches of everybody's (HtFLlib)",
    )
    server_passes: int = setting(
        1, "passes over the class means; 0 freezes the first head (the released code)", ge=0
    )
    server_batch: int = setting(10, "class means per step when pooled", ge=1)

    def init_server(self, ctx: Context) -> nn.Linear:
        """θ⁰: one random head, so that all clients start from the same."""
        return ctx.head()

    def broadcast(self, state: nn.Linear, client: ClientInfo, ctx: Context) -> Head:
        """θ^{t-1}."""
        return Head(tensors_of(state))

    def client(self, me: Client, message: Head) -> ClassMeans:
        """Replace the head (eq. 5), train everything (eq. 6), send class means of the new features (eq. 3)."""
        me.model.head.load_state_dict(message.weights)
        me.fit()
        means, labels, _ = me.class_means(me.model.features)
        return ClassMeans(means, labels)

    def server(self, state: nn.Linear, updates: Sequence[Update[ClassMeans]], ctx: Context) -> nn.Linear:
        """Gradient steps on the head (eq. 4), clients in ascending order, every class mean alike; less far if stale."""
        sent = self._sent(updates, ctx)
        for number in range(self.server_passes):
            for means, labels, weights in self._batches(sent, ctx, number):
                loss = cross_entropy(state(means), labels, reduction="none")
                sgd_step(state, (loss * weights).mean(), self.server_lr)
        return state

    def _sent(self, updates: Sequence[Update[ClassMeans]], ctx: Context) -> list[tuple[Tensor, ...]]:
        """Class means, labels and weights of the answers that just came; a robust rule looks at the others as well."""
        found = [(one.payload.means, one.payload.labels) for one in updates]
        kept, _ = screened(ctx.averaging, found, ctx.task.num_classes)
        return [
            (means, labels, means.new_full((len(labels),), one.weight))
            for one, (means, labels) in zip(updates, kept, strict=True)
            if one.fresh and len(labels)
        ]

    def _batches(
        self, sent: Sequence[tuple[Tensor, ...]], ctx: Context, number: int
    ) -> Iterator[tuple[Tensor, ...]]:
        if not sent:
            return
        if self.server_mode == "per_client":
            yield from sent
            return
        columns, size = [torch.cat(column) for column in zip(*sent, strict=True)], 1
        if self.server_mode == "pooled":
            order = torch.randperm(len(columns[0]), generator=ctx.rng(f"pooled {number}"))
            columns, size = [column[order] for column in columns], self.server_batch
        yield from zip(*(torch.split(column, size) for column in columns), strict=True)

    def predict(self, me: Client, message: Head | None) -> Predictor:
        """The client's own extractor with its trained head, or with the global one just received."""
        return me.model if message is None else with_head(me, message.weights)

    def paper_accounting(self, down: Head, up: ClassMeans) -> PaperAccounting:
        """Table 3 leaves the head's bias out of the downlink."""
        bias = down.weights.get("bias")
        left_out = 0 if bias is None else bias.numel()
        return PaperAccounting(up.numbers(), down.numbers() - left_out, "head bias not counted (Table 3)")
