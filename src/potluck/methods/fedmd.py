"""FedMD (Li and Wang, NeurIPS workshop 2019): clients agree on their logits for public data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core import (
    Client,
    ClientInfo,
    Context,
    Method,
    Need,
    PaperAccounting,
    Payload,
    PayloadError,
    Samples,
    Shape,
    Task,
    Tensors,
    Update,
    Whole,
    setting,
)
from potluck.kit import ClassTable, fold_rows, scatter_rows


@dataclass(frozen=True)
class Consensus(Payload):
    """Server to client: the public samples to answer for next, and what all made of the last ones."""

    asked: Annotated[Tensor, Shape("asked"), Whole()]
    rows: Annotated[Tensor, Shape("rows"), Whole()] | None
    logits: Annotated[Tensor, Shape("rows", "classes")] | None
    images: Tensor | None


@dataclass(frozen=True)
class Logits(Payload):
    """Client to server: class scores before the softmax, one row per sample asked for."""

    logits: Annotated[Tensor, Shape("rows", "classes")]


@dataclass
class FedMD(Method[Tensors, Consensus, Logits]):
    """A round of a client: digest the last consensus, revisit its own data, answer for the next public samples."""

    name: ClassVar[str] = "fedmd"
    summary: ClassVar[str] = "a consensus of logits on public data"
    averages: ClassVar[str] = "the logits of each public sample"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS, Need.PUBLIC_DATA})

    sees_latest: ClassVar[bool] = True

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
        """No consensus yet."""
        return {}

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> Consensus:
        """The rows of the next public sample, and the consensus with the rows that it is about."""
        asked = self._draw(ctx)
        images = _public(ctx.task).take(asked)[0] if self.send_images else None
        return Consensus(asked, state.get("rows"), state.get("logits"), images)

    def _draw(self, ctx: Context) -> Tensor:
        """The public sample of this server step; a function of the step, so that late answers find theirs."""
        size = len(_public(ctx.task))
        return torch.randperm(size, generator=ctx.rng("public sample"))[: self.public_samples]

    def client(self, me: Client, message: Consensus) -> Logits:
        """Digest, revisit, answer."""
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
        return Logits(_answers(me, message))

    def check_answer(self, payload: Logits, client: ClientInfo, ctx: Context) -> None:
        """One row per public sample asked for, which are the same number in every step."""
        asked, answered = len(self._draw(ctx)), len(payload.logits)
        if asked != answered:
            raise PayloadError(
                f"Logits for {answered} public samples came and {asked} were asked for; all parties must set "
                "public_samples alike."
            )

    def server(self, state: Tensors, updates: Sequence[Update[Logits]], ctx: Context) -> Tensors:
        """The plain mean of the answers for each public sample."""
        answers = []
        for update in updates:
            asked = self._draw(replace(ctx, step=ctx.step - update.staleness)).to(ctx.task.device)
            answers.append((update.payload.logits, asked))
        last = ClassTable(*scatter_rows(*self._last(state, ctx), len(_public(ctx.task))))
        table, senders = fold_rows(ctx, last, updates, answers)
        rows = torch.nonzero(senders).flatten()
        return {"rows": rows, "logits": table.rows[rows]}

    def _last(self, state: Tensors, ctx: Context) -> tuple[Tensor, Tensor]:
        """The last consensus, and the public samples that it is about."""
        nothing = torch.zeros(0, ctx.task.num_classes, dtype=ctx.task.dtype, device=ctx.task.device)
        rows = torch.zeros(0, dtype=torch.int64, device=ctx.task.device)
        return state.get("logits", nothing), state.get("rows", rows)

    def paper_accounting(self, down: Consensus, up: Logits) -> PaperAccounting:
        """FedHe's tables count each sample with its image and one set of logits: n·(C + |x|)."""
        if down.images is not None:
            return PaperAccounting(up.numbers(), down.images.numel(), "images and one set of logits counted")
        logits = 0 if down.logits is None else down.logits.numel()
        return PaperAccounting(up.numbers(), logits, "row numbers of public samples not counted")


def _public(task: Task) -> Samples:
    assert task.public is not None
    return task.public


def mae(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Mean absolute difference of the logits, the paper's digest."""
    return F.l1_loss(model(x), target)


def mse(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Mean squared difference of the logits."""
    return F.mse_loss(model(x), target)


def _distance(me: Client, digest: Samples, loss: Callable[..., Tensor]) -> float:
    """The digest's loss of the model as it stands."""
    me.model.eval()
    pieces = [(float(loss(nn.Identity(), logits, y)), len(y)) for logits, y in me.outputs(me.model, digest)]
    return sum(value * size for value, size in pieces) / max(1, sum(size for _, size in pieces))


def _answers(me: Client, message: Consensus) -> Tensor:
    """Logits in eval mode for the samples asked for: as shipped, or from the public set."""
    me.model.eval()
    samples = _public(me.task).select(message.asked.cpu())
    if message.images is not None:
        samples = Samples(message.images, samples.labels)
    return torch.cat([logits for logits, _ in me.outputs(me.model, samples)])
