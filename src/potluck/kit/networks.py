"""Predictors of several networks, calls with replaced tensors, gradient steps and shared losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import Optimizer

from potluck.core.model import ClientModel
from potluck.core.torch_fast import make_optimizer
from potluck.kit.class_vectors import ClassTable, prototype_scores
from potluck.worker.safeguard import mix


class CombinedModel(nn.Module):
    """A predictor of named models and tensors, which it holds without copying. Subclasses define `forward(x)`.

    It takes no other arguments: an export rebuilds it from these parts.
    """

    def __init__(self, models: Mapping[str, nn.Module], tensors: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.models = nn.ModuleDict(models)
        self.names = tuple(tensors or ())
        for name, tensor in (tensors or {}).items():
            self.register_buffer(f"own_{name}", tensor)

    def network(self, name: str) -> ClientModel:
        """Return one of the models, as a client's network."""
        model = self.models[name]
        assert isinstance(model, ClientModel)
        return model

    def tensor(self, name: str) -> Tensor:
        """Return one of the tensors."""
        return self.get_buffer(f"own_{name}")


class NearestPrototype(CombinedModel):
    """Predicts the class whose row is nearest to the features of `model`, among the `rows` that are `known`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return minus the distance to each class's row."""
        table = ClassTable(self.tensor("rows"), self.tensor("known"))
        return prototype_scores(self.network("model").features(x), table)


class Ensemble(CombinedModel):
    """Predicts with the class probabilities of `federated` and `alone`, mixed with `weight`, as a safeguard does."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logarithms of the mixed probabilities."""
        return mix(self.models["federated"](x), self.models["alone"](x), self.tensor("weight"))


def nearest_prototype(model: nn.Module, table: ClassTable) -> NearestPrototype:
    """Return a predictor of the class with the nearest row of a table."""
    return NearestPrototype({"model": model}, {"rows": table.rows, "known": table.known})


class _Call(nn.Module):
    """Makes any function of a model a forward pass, so that its tensors can be replaced for one call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.model, *arguments)


def call_with_tensors(
    model: nn.Module, tensors: Mapping[str, Tensor], function: Callable[..., Any], *arguments: Any
) -> Any:
    """Return `function(model, *arguments)` with some of the model's tensors replaced during the call."""
    renamed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    return functional_call(_Call(model), renamed, (function, *arguments))


def sgd_step(module: nn.Module, loss: Tensor, lr: float) -> None:
    """Take one plain gradient step on a module's parameters."""
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(lr * gradient)


def adam(parameters: Iterable[nn.Parameter], lr: float) -> Optimizer:
    """Return Adam for a server's module, one pass over memory per step."""
    return make_optimizer("adam", list(parameters), lr, fused=True)


def relative_change(new: Tensor, old: Tensor) -> float:
    """Return ‖new - old‖ / ‖old‖, as a note on how far a server step moved."""
    return float((new.detach() - old).norm() / old.norm().clamp(min=1e-12))


def proximal_term(model: nn.Module, reference: Mapping[str, Tensor], mu: float) -> Tensor:
    """Return μ/2 · ‖w - w₀‖², summed over the trained parameters (not the buffers)."""
    squares = [
        (tensor - reference[name]).square().sum()
        for name, tensor in model.named_parameters()
        if name in reference
    ]
    return mu / 2 * torch.stack(squares).sum()


def softmax_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(softmax(teacher) ‖ softmax(student)) of each sample, `[batch]`."""
    log_teacher, log_student = F.log_softmax(teacher, dim=1), F.log_softmax(student, dim=1)
    return F.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(dim=1)


def distillation(teacher: Tensor, student: Tensor, *, htfllib_compat: bool = False) -> Tensor:
    """Return KL(softmax(teacher) ‖ softmax(student)), averaged over the batch; the teacher gets no gradient.

    HtFLlib divides by the number of classes as well and lets the gradient into the teacher.
    """
    target = F.log_softmax(teacher if htfllib_compat else teacher.detach(), dim=1)
    value = F.kl_div(F.log_softmax(student, dim=1), target, reduction="batchmean", log_target=True)
    return value / student.shape[1] if htfllib_compat else value
