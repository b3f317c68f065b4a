"""Local training of several clients at once: one set of stacked tensors, one call per step."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_map

from potluck.core.client import Client
from potluck.core.optimizers import autocast
from potluck.core.payload import Tensors
from potluck.core.training import Fit, FitRequest
from potluck.engines.vectorized.structure import structure_of

Batch = tuple[Tensor, Tensor]
Item = TypeVar("Item")

MOST = 32
"""Clients in a stack: more gain little, and fewer stacks would leave workers without one."""

LARGEST, LARGEST_ELSEWHERE = 1 << 22, 1 << 28
"""Bytes of parameters in a stack, on the CPU and on accelerators. A core gains where calls take longer than what they
compute, and loses where a stack does not stay in its cache; an accelerator has room for more."""


def in_pieces(group: Sequence[Item], tensors: Iterable[Tensor], device: torch.device) -> list[Sequence[Item]]:
    """A group, each with tensors like these, cut into as few about equal parts as make stacks of good size."""
    largest = LARGEST if device.type == "cpu" else LARGEST_ELSEWHERE
    most = max(1, min(MOST, largest // max(1, sum(tensor.nbytes for tensor in tensors))))
    count = -(-len(group) // most)
    return [group[i * len(group) // count : (i + 1) * len(group) // count] for i in range(count)]


def key_of(me: Client, request: FitRequest) -> object | None:
    """What two requests must have in common to be stacked; None where a request must be done plainly."""
    own_way = request.adjust is not None or request.samples is not None or request.batch_size is not None
    if own_way or me.training.keep_optimizer or me.training.amp == "fp16" or me.batch_size() == 1:
        return None
    if not any(tensor.requires_grad for tensor in request.model.parameters()):
        return None
    values, shape = tree_flatten(request.given)
    given = tuple(
        (tuple(v.shape), v.dtype, v.device) if isinstance(v, Tensor) else (type(v), v) for v in values
    )
    architecture = me.info.architecture if request.model is me.model else None
    structure = structure_of(request.model)
    key = (request.loss, given, str(shape), request.epochs, me.training, me.lr, architecture, structure)
    try:
        hash(key)
    except TypeError:  # something is there that cannot be compared
        return None
    return key  # itself, not its hash: unlike things may share one


class _Objective(nn.Module):
    """A loss as a module, so that its model's tensors can be exchanged for a call."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: Tensor, y: Tensor, *given: Any) -> Tensor:
        """The loss of a batch."""
        value: Tensor = self.loss(self.model, x, y, *given)
        return value


@dataclass
class _Row:
    """One client of the stack: its batches to come and what was learned so far."""

    me: Client
    request: FitRequest
    batches: Iterator[Batch]
    steps: int = 0
    loss: float = 0.0
    done: bool = False


class Stack:
    """The tensors of several clients' models as single ones with a first dimension of clients.

    `parameters` are trained; `constants` are not: parameters without gradient, frozen or not used by the loss.
    """

    def __init__(self, pairs: Sequence[tuple[Client, FitRequest]]) -> None:
        first, request = pairs[0]
        models = [each.model for _, each in pairs]
        self.rows = [_Row(me, each, me.batches(each.epochs, models=(each.model,))) for me, each in pairs]
        tensors = _stacked([dict(m.named_parameters()) for m in models])
        learns = {name: tensor.requires_grad for name, tensor in request.model.named_parameters()}
        self.parameters = {name: nn.Parameter(tensor) for name, tensor in tensors.items() if learns[name]}
        self.constants = {name: tensor for name, tensor in tensors.items() if not learns[name]}
        self.buffers = _stacked([dict(m.named_buffers()) for m in models])
        given = [list(each.given) for _, each in pairs]
        self.shared = [not _has_tensor(value) for value in given[0]]
        self.given = [
            values[0] if shared else tree_map(lambda *parts: torch.stack(parts), *values)
            for shared, values in zip(self.shared, zip(*given, strict=True), strict=True)
        ]
        self.objective = _Objective(copy.deepcopy(request.model), request.loss).train()
        self.training = first.training
        self.optimizer = self.training.make_optimizer(self.parameters.values(), first.lr)

    def fit(self) -> list[Fit]:
        """Train until every client has seen all its batches; each client's model gets its own row back."""
        while not all(row.done for row in self.rows):
            batches = [None if row.done else next(row.batches, None) for row in self.rows]
            for number, (row, batch) in enumerate(zip(self.rows, batches, strict=True)):
                if batch is None and not row.done:
                    row.done = True
                    self._give_back(number)
            if any(batch is not None for batch in batches):
                self._step(batches)
        return [row.me.report(row.steps, row.loss / max(row.steps, 1)) for row in self.rows]

    def _step(self, batches: Sequence[Batch | None]) -> None:
        groups: dict[int, list[tuple[int, Batch]]] = defaultdict(list)
        for number, batch in enumerate(batches):
            if batch is not None:
                groups[len(batch[1])].append((number, batch))
        parts = [self._losses(*zip(*group, strict=True)).sum() for _, group in sorted(groups.items())]
        whole = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        # A client's loss depends on its own row alone, so each row of the sum's gradient is that of its client.
        # Handed over and not accumulated: gradients of linear layers lie otherwise than weights and would be copied.
        tensors = list(self.parameters.values())
        gradients = torch.autograd.grad(whole, tensors, allow_unused=True)
        if self.training.clip_norm is not None:
            _clip_rows([one for one in gradients if one is not None], self.training.clip_norm)
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = gradient
        self.optimizer.step()

    def _losses(self, members: Sequence[int], batches: Sequence[Batch]) -> Tensor:
        """The losses of clients whose batches have one size."""
        everyone = len(members) == len(self.rows)
        rows = torch.tensor(members)

        def pick(tensor: Tensor) -> Tensor:
            return tensor if everyone else tensor[rows]

        parameters = {name: pick(tensor) for name, tensor in self.parameters.items()}
        constants = {name: pick(tensor) for name, tensor in self.constants.items()}
        buffers = {name: pick(tensor) for name, tensor in self.buffers.items()}
        x, y = (torch.stack(parts) for parts in zip(*batches, strict=True))
        given = [v if s else tree_map(pick, v) for s, v in zip(self.shared, self.given, strict=True)]
        dims = (0, 0, 0, 0, 0, *(None if shared else 0 for shared in self.shared))
        run = vmap(self._value, in_dims=dims, randomness="different")
        losses: Tensor = run(parameters, constants, buffers, x, y, *given)
        if not everyone:
            for name, tensor in buffers.items():
                self.buffers[name][rows] = tensor
        for number, loss in zip(members, losses.tolist(), strict=True):
            self.rows[number].steps += 1
            self.rows[number].loss += loss
        return losses

    def _value(
        self, parameters: Tensors, constants: Tensors, buffers: Tensors, x: Tensor, y: Tensor, *given: Any
    ) -> Tensor:
        named = parameters | constants | buffers
        tensors = {f"model.{name}": tensor for name, tensor in named.items()}
        with autocast(self.training.amp, x.device):
            value: Tensor = functional_call(self.objective, tensors, (x, y, *given))
        return value

    @torch.no_grad()
    def _give_back(self, number: int) -> None:
        """Put a finished client's tensors into its own model; what its row does afterwards no longer matters."""
        model = self.rows[number].request.model
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        for name, tensor in (self.parameters | self.buffers).items():
            own[name].copy_(tensor[number])
        model.eval()


def fit_together(pairs: Sequence[tuple[Client, FitRequest]]) -> list[Fit]:
    """Train clients that are alike as one stack; a single one by itself."""
    if len(pairs) == 1:
        ((me, request),) = pairs
        return [me.train_alone(request)]
    return Stack(pairs).fit()


def _stacked(parts: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([part[name].detach() for part in parts]) for name in parts[0]}


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_flatten(value)[0])


def _clip_rows(gradients: Sequence[Tensor], limit: float) -> None:
    """Each client's gradient clipped by its own norm, as torch clips a single model's."""
    squares = torch.stack([gradient.flatten(1).pow(2).sum(1) for gradient in gradients]).sum(0)
    factors = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient *= factors.view(-1, *[1] * (gradient.dim() - 1))
