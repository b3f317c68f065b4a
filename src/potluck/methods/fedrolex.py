"""FedRolex (Alam et al., NeurIPS 2022): HeteroFL whose slices roll over the wide model from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from potluck.method import Context, kit, setting
from potluck.methods.heterofl import HeteroFL


@dataclass
class FedRolex(HeteroFL):
    """In step t (from 0) a layer of width n keeps the indices t, t+1, … modulo n, so all are trained in turn."""

    name: ClassVar[str] = "fedrolex"
    summary: ClassVar[str] = "width-nested models: the trained slice rolls over the widest"

    order: Literal["roll", "random", "static"] = setting(
        "roll",
        "which indices a step trains: a rolling window, some drawn for all clients, or the first (heterofl)",
    )
    direction: Literal["ascending", "descending"] = setting(
        "ascending", "where the window rolls: up as in the paper, or down as in its code"
    )
    shift: int = setting(1, "how far the window moves per step; further ones overlap less", ge=0)

    def window(self, ctx: Context, staleness: int = 0) -> kit.Window:
        """Compute the window from the step in which the slice was sent, so that it need not travel."""
        step = ctx.step - 1 - staleness
        if self.order == "static":
            return kit.leading_indices
        if self.order == "random":

            def draw(size: int, full: int) -> Tensor:
                return torch.randperm(full, generator=kit.generator(ctx.seed, "window", step, full))[:size]

            return draw
        offset = self.shift * (step if self.direction == "ascending" else -step)
        return lambda size, full: (offset + torch.arange(size)) % full
