"""What several methods share, written once: losses, class means, averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from potluck.core import robust
from potluck.core.method import Update
from potluck.core.payload import Payload, Tensors
from potluck.core.samples import Samples
from potluck.core.task import Task, travels

Up = TypeVar("Up", bound=Payload)

EVALUATION_BATCH = 256


def prepare(x: Tensor, y: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """A batch on the task's device, its real numbers in the task's precision."""
    dtype = task.dtype if x.is_floating_point() else x.dtype
    return x.to(device=task.device, dtype=dtype), y.to(task.device)


def outputs(
    function: Callable[[Tensor], Tensor], samples: Samples, task: Task
) -> Iterator[tuple[Tensor, Tensor]]:
    """`function` over all samples in large batches, no gradient; yields (outputs, labels)."""
    batches = list(torch.split(torch.arange(len(samples)), EVALUATION_BATCH))
    if len(batches) > 1 and len(batches[-1]) == 1:  # a norm without statistics cannot take one sample alone
        batches[-2:] = [torch.cat(batches[-2:])]
    with torch.no_grad():
        for rows in batches:
            x, y = prepare(*samples.take(rows), task)
            yield function(x), y


def cross_entropy_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The plain local objective."""
    return F.cross_entropy(model(x), y)


def proximal_term(model: nn.Module, reference: Mapping[str, Tensor], mu: float) -> Tensor:
    """μ/2 · ‖w - w₀‖², summed over the parameters (not the buffers): the pull towards the received weights."""
    squares = [(tensor - reference[name]).square().sum() for name, tensor in model.named_parameters()]
    return mu / 2 * torch.stack(squares).sum()


def distillation(teacher: Tensor, student: Tensor, *, htfllib_compat: bool = False) -> Tensor:
    """KL(softmax(teacher) ‖ softmax(student)), averaged over the batch; the teacher gets no gradient.

    HtFLlib divides by the number of classes as well and lets the gradient into the teacher.
    """
    target = F.log_softmax(teacher if htfllib_compat else teacher.detach(), dim=1)
    value = F.kl_div(F.log_softmax(student, dim=1), target, reduction="batchmean", log_target=True)
    return value / student.shape[1] if htfllib_compat else value


def by_client(updates: Iterable[Update[Up]]) -> list[Update[Up]]:
    """Updates in the order of client ids, so that sums do not depend on who finished first."""
    return sorted(updates, key=lambda update: update.client.index)


def sample_weights(updates: Sequence[Update[Any]]) -> list[float]:
    """n_k over the sum of the participants' n (discounted where stale), summing to one."""
    counts = [update.client.samples * update.weight for update in updates]
    total = sum(counts)
    return [count / total for count in counts]


def weighted_average(parts: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Σ w_k · tensors_k per name. All parts must have the same names."""
    if robust.current().rule != "mean":
        nothing = {name: torch.zeros_like(tensor) for name, tensor in parts[0].items()}
        return layerwise_average(parts, nothing, weights)
    return {
        name: sum_tensors([weight * part[name] for part, weight in zip(parts, weights, strict=True)])
        for name in parts[0]
    }


def sum_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Sum in the given order, without changing any of them."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def robust_sum(tensors: Sequence[Tensor]) -> Tensor:
    """The sum, or as many times the robust average as there are tensors, where the loop asks for one."""
    if robust.current().rule == "mean":
        return sum_tensors(tensors)
    parts = [{"sum": tensor} for tensor in tensors]
    return len(tensors) * layerwise_average(parts, {"sum": torch.zeros_like(tensors[0])})["sum"]


def layerwise_average(
    parts: Sequence[Tensors], old: Mapping[str, Tensor], weights: Sequence[float] | None = None
) -> Tensors:
    """Per tensor name, the mean over the parts that own it; a name nobody owns keeps its old value.

    Without weights it is the plain mean, computed as sum over count, as every method that takes one does.
    The loop may ask for another average than the mean (`core.robust`).
    """
    how, result = robust.current(), dict(old)
    if how.clips:
        parts = robust.clip_changes(parts, old)
    for name in old:
        owners = [number for number, part in enumerate(parts) if name in part]
        if owners and how.ranks:
            result[name] = how.centre(torch.stack([parts[number][name] for number in owners]))
        elif owners and weights is None:
            result[name] = sum_tensors([parts[number][name] for number in owners]) / len(owners)
        elif owners and weights is not None:
            total = sum(weights[number] for number in owners)
            result[name] = sum_tensors([(weights[number] / total) * parts[number][name] for number in owners])
    return result


def tensors_of(module: nn.Module, *, buffers: bool = True) -> Tensors:
    """Copies of a module's parameters, and of its buffers that have a mean, under their names."""
    parameters = {name for name, _ in module.named_parameters()}
    return {
        name: tensor.detach().clone()
        for name, tensor in module.state_dict().items()
        if name in parameters or (buffers and travels(name))
    }


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite the named entries of a module; the others stay. An unknown name is an error."""
    surplus = module.load_state_dict(dict(tensors), strict=False).unexpected_keys
    if surplus:
        raise KeyError(f"the model has no tensor {surplus[0]!r}")


class _Call(nn.Module):
    """Makes any function of a model a forward pass, so that its tensors can be replaced for one call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.model, *arguments)


def call_with(
    model: nn.Module, tensors: Mapping[str, Tensor], function: Callable[..., Any], *arguments: Any
) -> Any:
    """`function(model, *arguments)` as it would be with some of the model's tensors replaced."""
    renamed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    return functional_call(_Call(model), renamed, (function, *arguments))


class ClassMean:
    """Accumulates vectors per class and gives the exact mean of each class seen."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.total: Tensor | None = None
        self.count: Tensor | None = None

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        """Add a batch of vectors with their labels."""
        vectors = vectors.detach()
        if self.total is None or self.count is None:
            self.total = vectors.new_zeros(self.num_classes, vectors.shape[1])
            self.count = labels.new_zeros(self.num_classes)
        self.total.index_add_(0, labels, vectors)
        self.count += torch.bincount(labels, minlength=self.num_classes)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """(means [k, d], labels [k], counts [k]) of the classes seen, ascending."""
        if self.total is None or self.count is None:
            raise ValueError("no vectors were added")
        labels = torch.nonzero(self.count).flatten()
        counts = self.count[labels]
        return self.total[labels] / counts[:, None].to(self.total.dtype), labels, counts


def scatter_rows(rows: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Rows laid out by class id: a full table [C, d] (zeros where absent) and a mask of present classes."""
    table = rows.new_zeros(num_classes, rows.shape[1])
    table[labels] = rows
    present = torch.zeros(num_classes, dtype=torch.bool, device=rows.device)
    present[labels] = True
    return table, present


def mean_rows(updates: Sequence[tuple[Tensor, Tensor]], num_classes: int) -> tuple[Tensor, Tensor]:
    """Unweighted mean per class over the (rows, labels) that hold it: table [C, d], senders per class [C]."""
    width = updates[0][0].shape[1]
    total = updates[0][0].new_zeros(num_classes, width)
    senders = torch.zeros(num_classes, dtype=torch.int64, device=total.device)
    for rows, labels in updates:
        total.index_add_(0, labels, rows)
        senders += torch.bincount(labels, minlength=num_classes)
    if robust.current().rule != "mean":
        rows, labels = (torch.cat(column) for column in zip(*updates, strict=True))
        return robust.middle_rows(rows, labels, num_classes), senders
    return total / senders.clamp(min=1)[:, None].to(total.dtype), senders


def sgd_step(module: nn.Module, loss: Tensor, lr: float) -> None:
    """One plain gradient step on a module's parameters."""
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(lr * gradient)
