"""Losses that several methods share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
