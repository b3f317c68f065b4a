"""Local training of several clients at once, with stacked parameters."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap

from potluck.core.client import Client
from potluck.core.mixed_precision import autocast
from potluck.core.payload import Tensors
from potluck.core.torch_fast import tree_flatten, tree_map
from potluck.core.training import FitRequest, FitResult, Loss, LossParts

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""What torch itself keeps in a module: tensors, parts, hooks and the mode, which are looked at apart."""

RECURRENT_ALIASES = frozenset({"_flat_weights", "_flat_weight_refs"})
"""Second names of a recurrent layer's parameters."""


def model_structure(model: nn.Module) -> object:
    """Return a value that is equal for networks of the same parts, settings and tensors; its numbers do not enter.

    What cannot be compared by value is compared by identity, so a doubt makes two networks different. Parts of
    it may be impossible to hash, which is a doubt as well. Shapes alone would not do: ReLU and Tanh have none.
    """
    modules = tuple((name, *_settings(module)) for name, module in model.named_modules())
    return (
        modules,
        _tensors(model.named_parameters(remove_duplicate=False)),
        _tensors(model.named_buffers(remove_duplicate=False)),
    )


def _settings(module: nn.Module) -> tuple[object, ...]:
    hooks = tuple(
        (name, *value.items()) for name, value in vars(module).items() if "_hooks" in name and value
    )
    if isinstance(module, fx.GraphModule):  # every one has a class of its own; its code says all
        return fx.GraphModule, module.code, hooks
    left_out = MODULE_ATTRIBUTES | (RECURRENT_ALIASES if isinstance(module, nn.RNNBase) else frozenset())
    settings = {name: value for name, value in vars(module).items() if name not in left_out}
    return type(module), _comparable(settings), hooks


def _comparable(value: Any) -> object:
    if isinstance(value, dict):
        return dict, tuple((key, _comparable(item)) for key, item in sorted(value.items(), key=_by_name))
    if isinstance(value, list | tuple):
        return type(value), tuple(_comparable(item) for item in value)
    if isinstance(value, set):
        return set, frozenset(value)
    return type(value), value  # the type too: True, 1 and 1.0 are equal


def _by_name(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _tensors(named: Iterable[tuple[str, Tensor]]) -> tuple[object, ...]:
    """Name, form and learning of each tensor, and which name it had before if it is there twice (tied)."""
    first: dict[int, str] = {}
    return tuple(
        (
            name,
            first.setdefault(id(tensor), name),
            tuple(tensor.shape),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
        )
        for name, tensor in named
    )


Batch = tuple[Tensor, Tensor]
Item = TypeVar("Item")

MAX_STACK_CLIENTS = 32
"""Clients in a stack: more gain little, and fewer stacks would leave workers without one."""

MAX_STACK_BYTES, MAX_STACK_BYTES_ACCELERATOR = 1 << 22, 1 << 28
"""Bytes of parameters in a stack, on the CPU and on accelerators. A core gains where calls take longer than what they
compute, and loses where a stack does not stay in its cache; an accelerator has room for more."""


def split_into_stacks(
    group: Sequence[Item], tensors: Iterable[Tensor], device: torch.device
) -> list[Sequence[Item]]:
    """Return a group, each with tensors like these, cut into as few about equal parts as make stacks of good size."""
    largest = MAX_STACK_BYTES if device.type == "cpu" else MAX_STACK_BYTES_ACCELERATOR
    most = max(1, min(MAX_STACK_CLIENTS, largest // max(1, sum(tensor.nbytes for tensor in tensors))))
    count = -(-len(group) // most)
    return [group[i * len(group) // count : (i + 1) * len(group) // count] for i in range(count)]


def stacking_key(me: Client, request: FitRequest) -> object | None:
    """Return what two requests must have in common to be stacked; None where a request must be done plainly."""
    own_steps = request.adjust is not None or bool(request.also) or request.after is not None
    own_way = own_steps or request.samples is not None or request.batch_size is not None
    if own_way or me.training.keep_optimizer or me.training.amp == "fp16" or me.batch_size() == 1:
        return None
    if not any(tensor.requires_grad for tensor in request.model.parameters()):
        return None
    values, shape = tree_flatten(request.loss_args)
    kinds = tuple(
        (tuple(v.shape), v.dtype, v.device) if isinstance(v, Tensor) else (type(v), v) for v in values
    )
    architecture = me.info.architecture if request.model is me.model else None
    structure = model_structure(request.model)
    key = (request.loss, kinds, str(shape), request.epochs, me.training, me.lr, architecture, structure)
    try:
        hash(key)
    except TypeError:  # something is there that cannot be compared
        return None
    return key  # itself, not its hash: unlike things may share one


class _Objective(nn.Module):
    """A loss as a module, so that its model's tensors can be exchanged for a call."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: Tensor, y: Tensor, *given: Any) -> tuple[Tensor, ...]:
        """Return the loss of a batch, and its cross-entropy where that is known."""
        parts = LossParts.of(self.loss(self.model, x, y, *given), self.loss)
        return tuple(part for part in parts if part is not None)


@dataclass
class _Row:
    """One client of the stack: its batches to come and what was learned so far."""

    me: Client
    request: FitRequest
    batches: Iterator[Batch]
    steps: int = 0
    loss: float = 0.0
    cross_entropy: float | None = 0.0
    done: bool = False

    def add(self, loss: float, cross_entropy: float | None) -> None:
        """Add the losses of a step."""
        self.steps += 1
        self.loss += loss
        if self.cross_entropy is None or cross_entropy is None:
            self.cross_entropy = None
        else:
            self.cross_entropy += cross_entropy

    def report(self) -> FitResult:
        """Record the means over the steps on the client."""
        steps = max(self.steps, 1)
        mean = None if self.cross_entropy is None or not self.steps else self.cross_entropy / steps
        return self.me.report(FitResult(self.steps, self.loss / steps, mean))


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
        loss_args = [list(each.loss_args) for _, each in pairs]
        self.shared = [not _has_tensor(value) for value in loss_args[0]]
        self.given = [
            values[0] if shared else tree_map(lambda *parts: torch.stack(parts), *values)
            for shared, values in zip(self.shared, zip(*loss_args, strict=True), strict=True)
        ]
        self.objective = _Objective(copy.deepcopy(request.model), request.loss).train()
        self.training = first.training
        self.optimizer = self.training.make_optimizer(self.parameters.values(), first.lr)

    def fit(self) -> list[FitResult]:
        """Train until every client has seen all its batches; each client's model gets its own row back."""
        while not all(row.done for row in self.rows):
            batches = [None if row.done else next(row.batches, None) for row in self.rows]
            for number, (row, batch) in enumerate(zip(self.rows, batches, strict=True)):
                if batch is None and not row.done:
                    row.done = True
                    self._give_back(number)
            if any(batch is not None for batch in batches):
                self._step(batches)
        return [row.report() for row in self.rows]

    def _step(self, batches: Sequence[Batch | None]) -> None:
        groups: dict[int, list[tuple[int, Batch]]] = defaultdict(list)
        for number, batch in enumerate(batches):
            if batch is not None:
                groups[len(batch[1])].append((number, batch))
        parts = [self._losses(*zip(*group, strict=True)).sum() for _, group in sorted(groups.items())]
        total_loss = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        # A client's loss depends on its own row alone, so each row of the sum's gradient is that of its client.
        # Handed over and not accumulated: gradients of linear layers lie otherwise than weights and would be copied.
        tensors = list(self.parameters.values())
        gradients = torch.autograd.grad(total_loss, tensors, allow_unused=True)
        if self.training.clip_norm is not None:
            _clip_rows(
                [row_gradients for row_gradients in gradients if row_gradients is not None],
                self.training.clip_norm,
            )
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = gradient
        self.optimizer.step()

    def _losses(self, members: Sequence[int], batches: Sequence[Batch]) -> Tensor:
        """Return the losses of clients whose batches have one size."""
        all_rows = len(members) == len(self.rows)
        rows = torch.tensor(members)

        def pick(tensor: Tensor) -> Tensor:
            return tensor if all_rows else tensor[rows]

        parameters = {name: pick(tensor) for name, tensor in self.parameters.items()}
        constants = {name: pick(tensor) for name, tensor in self.constants.items()}
        buffers = {name: pick(tensor) for name, tensor in self.buffers.items()}
        x, y = (torch.stack(parts) for parts in zip(*batches, strict=True))
        loss_args = [v if s else tree_map(pick, v) for s, v in zip(self.shared, self.given, strict=True)]
        dims = (0, 0, 0, 0, 0, *(None if shared else 0 for shared in self.shared))
        run = vmap(self._value, in_dims=dims, randomness="different")
        losses: tuple[Tensor, ...] = run(parameters, constants, buffers, x, y, *loss_args)
        if not all_rows:
            for name, tensor in buffers.items():
                self.buffers[name][rows] = tensor
        for number, objective, *label_losses in zip(
            members, *(each.tolist() for each in losses), strict=True
        ):
            self.rows[number].add(objective, label_losses[0] if label_losses else None)
        return losses[0]

    def _value(
        self, parameters: Tensors, constants: Tensors, buffers: Tensors, x: Tensor, y: Tensor, *given: Any
    ) -> tuple[Tensor, ...]:
        named = parameters | constants | buffers
        tensors = {f"model.{name}": tensor for name, tensor in named.items()}
        with autocast(self.training.amp, x.device):
            value: tuple[Tensor, ...] = functional_call(self.objective, tensors, (x, y, *given))
        return value

    @torch.no_grad()
    def _give_back(self, number: int) -> None:
        """Put a finished client's tensors into its own model; what its row does afterwards no longer matters."""
        model = self.rows[number].request.model
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        for name, tensor in (self.parameters | self.buffers).items():
            own[name].copy_(tensor[number])
        model.eval()


def fit_stacked(pairs: Sequence[tuple[Client, FitRequest]]) -> list[FitResult]:
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
    """Clip each client's gradient by its own norm, as torch clips a single model's."""
    squares = torch.stack([gradient.flatten(1).pow(2).sum(1) for gradient in gradients]).sum(0)
    factors = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient *= factors.view(-1, *[1] * (gradient.dim() - 1))
