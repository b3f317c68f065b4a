"""FedKD (Wu et al., Nature Communications 2022): mutual distillation with a student that travels compressed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Like,
    Method,
    Need,
    Payload,
    PayloadError,
    Predictor,
    Supports,
    Task,
    Tensors,
    Update,
    kit,
    setting,
)


@dataclass(frozen=True)
class Compressed(Payload):
    """Tensors of the student, or changes of them: matrices as U·diag(σ)·V where that is shorter, others raw."""

    raw: Annotated[Tensors, Like("shared", subset=True)]
    left: Tensors
    values: Tensors
    right: Tensors

    def check(self, task: Task, client: ClientInfo) -> None:
        """Require factors that multiply to the student's own shapes."""
        shapes = task.shared_shapes()
        if not self.left.keys() == self.values.keys() == self.right.keys() <= shapes.keys() - self.raw.keys():
            raise PayloadError(
                "Compressed names a tensor that is no matrix of the student, or not all its factors."
            )
        for name, values in self.values.items():
            rows, columns = shapes[name][0], math.prod(shapes[name][1:])
            factors = tuple(self.left[name].shape), tuple(values.shape), tuple(self.right[name].shape)
            if factors != ((rows, values.numel()), (values.numel(),), (values.numel(), columns)):
                raise PayloadError(
                    f"Compressed.{name} has factors of {factors}, which do not make {shapes[name]}."
                )


@dataclass
class Server:
    """The student in full, and as it is sent (compressed once for all clients)."""

    student: Tensors
    sent: Compressed


@dataclass
class FedKD(Method[Server, Compressed, Compressed]):
    """A private teacher and a shared student distil into each other, more strongly the better both are.

    Matrices travel by their leading singular vectors.
    """

    name: ClassVar[str] = "fedkd"
    summary: ClassVar[str] = "mutual distillation with a shared student that travels at low rank"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.SHARED_MODEL})
    supports: ClassVar[Supports] = Supports(
        robust="the student's weights",
        max_share={"weight": "samples"},
        single_answers="its clients send factors of different rank",
    )

    energy_start: float = setting(
        0.95, "share of a matrix's energy that is sent in the first round", gt=0, le=1
    )
    energy_end: float = setting(0.98, "and in the last", gt=0, le=1)
    uplink: Literal["delta", "params"] = setting(
        "delta", "what goes up: the student's change, or its parameters"
    )
    compress: bool = setting(True, "send matrices at low rank")
    hidden: bool = setting(True, "the loss between features")
    adaptive: bool = setting(True, "divide distillation by the sum of both cross-entropies")
    floor: float = setting(0.1, "that sum is at least this, or clients of one class diverge", ge=0)
    weight: kit.Weighting = setting(
        "samples", "how clients count in the mean: by training samples, or all alike"
    )
    buffers: bool = setting(True, "average BatchNorm statistics as well")
    predict_with: Literal["teacher", "student"] = setting("teacher", "the model that is tested")
    htfllib_compat: bool = setting(
        False, "as HtFLlib: distillation divided by the classes, and no gradient stopped"
    )

    def init_server(self, ctx: Context) -> Server:
        """Draw one random student for all."""
        student = kit.tensors_of(ctx.task.shared_model(), buffers=self.buffers)
        return Server(student, self._pack(student, done=0.0))

    def broadcast(self, state: Server, client: ClientInfo, ctx: Context) -> Compressed:
        """Return the student's parameters: a client that was away could not apply a change."""
        return state.sent

    def client(self, me: Client, message: Compressed) -> Compressed:
        """Train teacher, student and the map between their features; send the change of the student."""
        student = kit.load_shared_model(me, expand(message, me.task))
        before = kit.tensors_of(student, buffers=self.buffers)
        hidden_map = me.module(
            "hidden map", lambda: nn.Linear(student.feature_dim, me.model.feature_dim, bias=False)
        )

        def loss(x: Tensor, y: Tensor) -> kit.LossParts:
            teacher_features, student_features = me.model.features(x), student.features(x)
            scores = me.model.head(teacher_features), student.head(student_features)
            return self.loss(teacher_features, student_features, *scores, hidden_map, y)

        me.fit_models({"model": me.model, "shared": student, "hidden map": hidden_map}, loss)
        after = kit.tensors_of(student, buffers=self.buffers)
        if self.uplink == "delta":
            after.update({name: after[name] - before[name] for name, _ in student.named_parameters()})
        return self._pack(after, done=(me.round - 1) / me.rounds)

    def loss(
        self,
        teacher_features: Tensor,
        student_features: Tensor,
        teacher: Tensor,
        student: Tensor,
        hidden_map: nn.Module,
        y: Tensor,
    ) -> kit.LossParts:
        """Return L_t + L_s. Each model is trained by its own: D and what it imitates are fixed; W_h follows both."""
        stop = (lambda tensor: tensor) if self.htfllib_compat else Tensor.detach
        teacher_ce, student_ce = cross_entropy(teacher, y), cross_entropy(student, y)
        imitation = kit.distillation(student, teacher, htfllib_compat=self.htfllib_compat)
        imitation = imitation + kit.distillation(teacher, student, htfllib_compat=self.htfllib_compat)
        if self.hidden:
            imitation = imitation + mse_loss(teacher_features, hidden_map(stop(student_features)))
            imitation = imitation + mse_loss(stop(teacher_features), hidden_map(student_features))
        # A client of one class soon has no loss left: without a floor its distillation grows without bound.
        divisor = stop(teacher_ce + student_ce).clamp(min=self.floor) if self.adaptive else 1.0
        return kit.LossParts(teacher_ce + student_ce + imitation / divisor, teacher_ce)

    def server(self, state: Server, updates: Sequence[Update[Compressed]], ctx: Context) -> Server:
        """Rebuild, average, apply to the full student, compress again for the next round."""
        expanded = [self._expanded(update, state, ctx) for update in updates]
        student = kit.average(ctx, state.student, expanded, "tensors", by=self.weight)
        return Server(student, self._pack(student, done=ctx.round / ctx.rounds))

    def _expanded(self, update: Update[Compressed], state: Server, ctx: Context) -> Update[kit.SharedWeights]:
        """Return the update as the student that the client ended with, and its message as the one it began with.

        A change is added to what the server has. In a part of a round it is added to what was sent.
        """
        tensors = expand(update.payload, ctx.task)
        sent = state.student if update.sent is None else expand(update.sent, ctx.task)
        if self.uplink == "delta":
            base = sent if ctx.cohort else state.student
            learned = {name for name, _ in ctx.task.shared_model().named_parameters()}
            tensors.update({name: base[name] + tensors[name] for name in tensors if name in learned})
        return replace(
            cast(Update[Any], update), payload=kit.SharedWeights(tensors), sent=kit.SharedWeights(sent)
        )

    def _pack(self, tensors: Tensors, *, done: float) -> Compressed:
        """Compress at the energy for this share of the training done."""
        energy = self.energy_start + (self.energy_end - self.energy_start) * done
        return pack(tensors, energy if self.compress else None)

    def predict(self, me: Client, message: Compressed | None) -> Predictor:
        """Return the teacher, or the student: as trained, or as just received."""
        if self.predict_with == "teacher":
            return me.model
        return kit.copy_shared_model(me, None if message is None else expand(message, me.task))


def rank(values: Tensor, energy: float) -> int:
    """Return the number of leading singular values, at least one, whose squares have this share of the sum of all."""
    cumulative = torch.cumsum(values.double() ** 2, dim=0)
    return min(int((cumulative < energy * cumulative[-1]).sum()) + 1, len(values))


def pack(tensors: Tensors, energy: float | None) -> Compressed:
    """Send each matrix (a convolution is one of out × rest) by n(P+Q+1) numbers where those are fewer than P·Q."""
    packed = Compressed({}, {}, {}, {})
    for name, tensor in tensors.items():
        # A zero matrix has no direction to keep, and one that is not finite is rejected by the receiver.
        if energy is None or tensor.dim() < 2 or not tensor.any() or not tensor.isfinite().all():
            packed.raw[name] = tensor
            continue
        matrix = tensor.flatten(1)
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        count = rank(values, energy)
        if count * (sum(matrix.shape) + 1) < matrix.numel():
            packed.left[name], packed.values[name] = left[:, :count], values[:count]
            packed.right[name] = right[:count]
        else:
            packed.raw[name] = tensor
    return packed


def expand(packed: Compressed, task: Task) -> Tensors:
    """Rebuild the tensors that `pack` compressed, up to the energy left out."""
    tensors = dict(packed.raw)
    for name, values in packed.values.items():
        matrix = (packed.left[name] * values) @ packed.right[name]
        tensors[name] = matrix.reshape(task.shared_shapes()[name])
    return tensors
