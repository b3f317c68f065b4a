"""FedGH (Yi et al., ACM Multimedia 2023): a global head (its "header") trained on the clients' class-mean features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn
from torch.nn.functional import cross_entropy

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Method,
    PaperAccounting,
    Predictor,
    SecureSums,
    Supports,
    Update,
    kit,
    setting,
)


@dataclass
class FedGH(Method[nn.Linear, kit.OptionalHead, kit.ClassMeans]):
    """Extractors stay private; the head is trained on the server and replaces every client's head each round."""

    name: ClassVar[str] = "fedgh"
    summary: ClassVar[str] = "a global head, trained on the server from class-mean features"
    needs = kit.HEAD_NEEDS
    supports: ClassVar[Supports] = Supports(
        robust="class means that train the head",
        row_privacy=True,
        sums=SecureSums(when={"server_mode": "averaged"}),
    )

    server_lr: float = setting(0.01, "step η_θ of the head on a class mean", gt=0)
    server_mode: kit.ServerStep = setting(
        "per_mean", "one step per class mean (paper), client, minibatch of all (HtFLlib) or mean over clients"
    )
    server_passes: int = setting(1, "passes over the class means; 0 freezes the head (as released)", ge=0)
    server_batch: int = setting(10, "class means per step when pooled", ge=1)
    first_header: Literal["global", "own"] = setting(
        "global", "header of round 1: the server's (Alg. 1), or each client's own (Fig. 1)", later=True
    )
    own_header: float = setting(
        0.0, "share of a client's own header in what replaces it; 0: eq. 5", ge=0, le=1, later=True
    )

    def init_server(self, ctx: Context) -> nn.Linear:
        """θ⁰: one random head, so that all clients start from the same."""
        return ctx.head()

    def broadcast(self, state: nn.Linear, client: ClientInfo, ctx: Context) -> kit.OptionalHead:
        """θ^{t-1}; in a first round with own headers nothing, as no header has been trained."""
        withheld = self.first_header == "own" and ctx.round == 1 and not ctx.testing
        return kit.OptionalHead(None if withheld else kit.tensors_of(state))

    def client(self, me: Client, message: kit.OptionalHead) -> kit.ClassMeans:
        """Replace the head (eq. 5), train everything (eq. 6), send class means of the new features (eq. 3)."""
        if message.weights is not None:
            me.model.head.load_state_dict(kit.mix_head(me, message.weights, self.own_header))
        me.fit()
        means, labels, _ = me.class_means(me.model.features)
        return kit.ClassMeans(means, labels)

    def server(self, state: nn.Linear, updates: Sequence[Update[kit.ClassMeans]], ctx: Context) -> nn.Linear:
        """Take gradient steps on the head (eq. 4), clients in ascending order, all class means alike."""
        clients, before = kit.client_vectors(ctx, updates, "means"), state.weight.detach().clone()
        for means, labels, weights in kit.server_batches(
            ctx, clients, self.server_mode, size=self.server_batch, passes=self.server_passes
        ):
            loss = cross_entropy(state(means), labels, reduction="none")
            kit.sgd_step(state, (loss * weights).mean(), self.server_lr)
        ctx.note("movement", kit.relative_change(state.weight, before))
        return state

    def predict(self, me: Client, message: kit.OptionalHead | None) -> Predictor:
        """Return the client's own extractor with its trained head, or with the global one just received."""
        if message is None or message.weights is None:
            return me.model
        return kit.predictor_with_head(me, kit.mix_head(me, message.weights, self.own_header))

    def paper_accounting(self, down: kit.OptionalHead, up: kit.ClassMeans) -> PaperAccounting:
        """Leave the head's bias out of the downlink (Table 3)."""
        received = 0 if down.weights is None else down.weights["weight"].numel()
        return PaperAccounting(up.numel(), received, "head bias not counted (Table 3)")
