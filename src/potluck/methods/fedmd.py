"""FedMD (Li and Wang, NeurIPS workshop 2019): clients agree on their logits for public data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Integers,
    Method,
    Need,
    PaperAccounting,
    Payload,
    PayloadError,
    Samples,
    SecureSums,
    Shape,
    Supports,
    Task,
    Tensors,
    Update,
    kit,
    setting,
)


@dataclass(frozen=True)
class Consensus(Payload):
    """Server to client: the public samples to score next, and the consensus on the last ones."""

    asked: Annotated[Tensor, Shape("asked"), Integers()]
    rows: Annotated[Tensor, Shape("rows"), Integers()] | None
    logits: Annotated[Tensor, Shape("rows", "classes")] | None
    images: Tensor | None


@dataclass(frozen=True)
class Logits(Payload):
    """Client to server: class scores before the softmax, one row per sample asked for."""

    logits: Annotated[Tensor, Shape("rows", "classes")]


@dataclass
class FedMD(Method[Tensors, Consensus, Logits]):
    """A client's round: digest the last consensus, revisit its own data, score the next public samples."""

    name: ClassVar[str] = "fedmd"
    summary: ClassVar[str] = "a consensus of logits on public data"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS, Need.PUBLIC_DATA})
    supports: ClassVar[Supports] = Supports(robust="the logits of each public sample", sums=SecureSums())

    public_samples: int = setting(
        5000, "public samples drawn for each round; all, where there are fewer", ge=1
    )
    digest_loss: Literal["mae", "mse"] = setting(
        "mae", "distance of logits to the consensus: absolute, or squared"
    )
    digest_epochs: int = setting(5, "passes over the consensus", ge=0)
    digest_batch: int = setting(0, "public samples per step; 0: the experiment's batch size", ge=0)
    pretrain_epochs: int = setting(
        0, "passes over the labelled public data before a client's first round", ge=0
    )
    send_images: bool = setting(
        False, "ship the samples asked for, instead of their numbers in a set that all hold"
    )

    def init_server(self, ctx: Context) -> Tensors:
        """Start without a consensus."""
        return {}

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> Consensus:
        """Return the next public samples, and the last consensus with its samples."""
        samples = self._draw(ctx)
        images = _public(ctx.task).take(samples)[0] if self.send_images else None
        return Consensus(samples, state.get("rows"), state.get("logits"), images)

    def client(self, me: Client, message: Consensus) -> Logits:
        """Digest, revisit, score."""
        public = _public(me.task)
        if self.pretrain_epochs and "pretrained" not in me.private:
            me.fit(samples=public, epochs=self.pretrain_epochs, name="pretrain")
            me.private["pretrained"] = True
        if message.rows is not None and message.logits is not None:
            digest = public.select(message.rows.cpu()).with_targets(message.logits.cpu())
            loss = mae if self.digest_loss == "mae" else mse
            me.note("digest_before", _distance(me, digest, loss))
            size = self.digest_batch or None
            me.fit(loss, samples=digest, epochs=self.digest_epochs, batch_size=size, name="digest")
            me.note("digest_after", _distance(me, digest, loss))
        me.fit()
        return Logits(_public_logits(me, message))

    def server(self, state: Tensors, updates: Sequence[Update[Logits]], ctx: Context) -> Tensors:
        """Take the plain mean of the logits of each public sample."""
        sent = []
        for update in updates:
            samples = self._draw(replace(ctx, step=ctx.step - update.staleness)).to(ctx.task.device)
            sent.append((update.payload.logits, samples))
        last = kit.ClassTable(*kit.scatter_by_class(*self._last(state, ctx), len(_public(ctx.task))))
        table, senders = kit.update_class_table(ctx, last, updates, sent)
        rows = torch.nonzero(senders).flatten()
        return {"rows": rows, "logits": table.rows[rows]}

    def check_update(self, payload: Logits, client: ClientInfo, ctx: Context) -> None:
        """Require one row per public sample asked for, the same number in every step."""
        requested, received = len(self._draw(ctx)), len(payload.logits)
        if requested != received:
            raise PayloadError(
                f"Logits for {received} public samples were received and {requested} asked for; all parties must set "
                "public_samples alike."
            )

    def paper_accounting(self, down: Consensus, up: Logits) -> PaperAccounting:
        """Count each sample as FedHe's tables do, with its image and one set of logits: n·(C + |x|)."""
        if down.images is not None:
            note = "images and one set of logits counted, in one direction (Tables III and IV)"
            return PaperAccounting(up.numel() + down.images.numel(), 0, note)
        logits = 0 if down.logits is None else down.logits.numel()
        return PaperAccounting(up.numel(), logits, "row numbers of public samples not counted")

    def _draw(self, ctx: Context) -> Tensor:
        """Draw the public samples of this server step, from the step alone: a late update finds its own."""
        size = len(_public(ctx.task))
        return torch.randperm(size, generator=ctx.rng("public sample"))[: self.public_samples]

    def _last(self, state: Tensors, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the last consensus and its public samples."""
        nothing = torch.zeros(0, ctx.task.num_classes, dtype=ctx.task.dtype, device=ctx.task.device)
        rows = torch.zeros(0, dtype=torch.int64, device=ctx.task.device)
        return state.get("logits", nothing), state.get("rows", rows)


def _public(task: Task) -> Samples:
    assert task.public is not None
    return task.public


def mae(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Return the mean absolute difference of the logits, the paper's digest."""
    return F.l1_loss(model(x), target)


def mse(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared difference of the logits."""
    return F.mse_loss(model(x), target)


def _distance(me: Client, digest: Samples, loss: Callable[..., Tensor]) -> float:
    """Return the digest's loss of the present model."""
    me.model.eval()
    pieces = [(float(loss(nn.Identity(), logits, y)), len(y)) for logits, y in me.outputs(me.model, digest)]
    return kit.add_up(value * size for value, size in pieces) / max(1, sum(size for _, size in pieces))


def _public_logits(me: Client, message: Consensus) -> Tensor:
    """Return logits in eval mode for the samples asked for: as shipped, or from the public set."""
    me.model.eval()
    samples = _public(me.task).select(message.asked.cpu())
    if message.images is not None:
        samples = Samples(message.images, samples.labels)
    return torch.cat([logits for logits, _ in me.outputs(me.model, samples)])
