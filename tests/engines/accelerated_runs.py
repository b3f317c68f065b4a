"""Program: run every method on the CPU and on a fake accelerator, and print differences.

It is not a test because torch learns of a device only before a process's first backward pass.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerator import Away, MixedDevices, accelerator
from torch import Tensor

import potluck
from potluck.core.client import Client
from potluck.core.tree import tensors_in
from potluck.loop.callbacks import Callback
from potluck.loop.loop import Loop
from potluck.methods import METHODS, fedl2g

SETTINGS = {
    "data": {"name": "digits", "limit": 120},
    "partition": {"clients": 3},
    "schedule": {"rounds": 2},
    "training": {"epochs": 1},
}


class Whereabouts(Callback):
    """Notes where the server's real numbers are when it is done; counts may be anywhere."""

    def on_start(self, loop: Loop) -> None:
        self.loop = loop

    def on_end(self, end: Any) -> None:
        state = tensors_in(self.loop.progress.state)
        self.places = {tensor.device.type for tensor in state if tensor.is_floating_point()}


def twice_backward(
    function: Callable[[Any], Tensor], at: tuple[Any], along: tuple[Any]
) -> tuple[None, Tensor]:
    """The product of a derivative and a direction by two backward passes: make-believe tensors know no forward mode."""
    with torch.enable_grad():
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in at[0].items()}
        output = function(leaves)
        dual = torch.zeros_like(output, requires_grad=True)
        pulled = torch.autograd.grad(
            output, list(leaves.values()), dual, create_graph=True, allow_unused=True
        )
        pairs = zip(pulled, along[0].values(), strict=True)
        total = sum((gradient * direction).sum() for gradient, direction in pairs if gradient is not None)
    return None, torch.autograd.grad(total, dual)[0]


def run(method: str, device: str, out: Path) -> tuple[Any, set[str], set[str]]:
    """What the run recorded, and where clients and server had their tensors."""
    where, devices = Whereabouts(), set[str]()
    rest = Client.free_gradients

    def noting(me: Client) -> None:
        devices.update(tensor.device.type for tensor in me.state(copy=False).tensors.values() if tensor.dim())
        devices.add(me.train.x.device.type)
        rest(me)

    engine = {"name": "serial", "device": device}
    with patch.object(Client, "free_gradients", noting):
        settings = {"method": {"name": method}, "engine": engine, **SETTINGS}
        result = potluck.run(settings, out=out, callbacks=[where])
    rounds = [{**row, "seconds": 0} for row in result.rounds]
    return rounds, where.places, devices


def differences(folder: Path) -> dict[str, str]:
    """Method → what is wrong with it, for those where something is."""
    differing: dict[str, str] = {}
    for method in METHODS:
        reference = run(method, "cpu", folder / f"{method}-here")[0]
        with accelerator() as device:
            try:
                there, server, clients = run(method, device, folder / f"{method}-there")
            except Exception as error:
                differing[method] = str(error)[-2000:]
                continue
        if there != reference:
            differing[method] = f"other results: {there} instead of {reference}"
        elif "cpu" in server:
            differing[method] = "the server computes on the CPU"
        elif clients != {device}:
            differing[method] = f"clients hold tensors on {clients}"
    return differing


def refuses() -> bool:
    """Whether the device would have noticed a mistake at all."""
    with accelerator() as device:
        away = torch.ones(3).to(device)
        assert isinstance(away, Away)
        try:
            away + torch.ones(3)
        except MixedDevices:
            return True
    return False


if __name__ == "__main__":
    assert refuses()
    with patch.object(fedl2g, "jvp", twice_backward):
        print(json.dumps(differences(Path(sys.argv[1]))))
