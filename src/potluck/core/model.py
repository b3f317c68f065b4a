"""What a client's network looks like to a method: features, then a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ClientModel(nn.Module):
    """A network seen as `features` (input to a flat vector) followed by `head` (vector to class scores).

    `stages` is empty unless the network can be cut: then running them one after another and calling
    `pool` on the last output gives the features. Methods that exchange intermediate features need it.
    """

    head: nn.Module
    feature_dim: int

    def features(self, x: Tensor) -> Tensor:
        """The representation of a batch, `[batch, feature_dim]`."""
        for stage in self.stages:
            x = stage(x)
        return self.pool(x)

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The parts of the extractor in order, or nothing when it cannot be cut."""
        return ()

    def pool(self, x: Tensor) -> Tensor:
        """Turn the last stage's output into the flat feature vector."""
        return torch.flatten(x, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, `[batch, classes]`."""
        scores: Tensor = self.head(self.features(x))
        return scores


def has_batch_norm(model: nn.Module) -> bool:
    """Whether any layer normalises over the batch, and so cannot train on a single sample."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())


def put_channels_last(model: nn.Module) -> None:
    """Lay the weights of two-dimensional convolutions out with the channels last; their outputs follow.

    The numbers stay the same, the order in which products are summed does not.
    """
    for tensor in model.parameters():
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
