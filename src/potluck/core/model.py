"""What a client's network looks like to a method: features, then a head; its tensors, batch norms and first weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Norm = nn.modules.batchnorm._BatchNorm
Network = TypeVar("Network", bound=nn.Module)


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


def put_channels_last(model: nn.Module, last: bool = True) -> None:
    """Lay the weights of two-dimensional convolutions out with the channels last (or first); outputs follow.

    The numbers stay the same, the order in which products are summed does not.
    """
    layout = torch.channels_last if last else torch.contiguous_format
    for tensor in model.parameters():
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=layout)


def are_channels_last(tensors: Iterable[Tensor]) -> bool:
    """Whether any weights of convolutions among these lie with the channels last, and could lie otherwise."""
    return any(
        tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
        for tensor in tensors
    )


# -- its tensors --------------------------------------------------------------------------------------------


def travels(name: str) -> bool:
    """Whether a state entry may be sent and averaged; a count of batches seen has no mean."""
    return not name.endswith("num_batches_tracked")


def is_statistic(name: str) -> bool:
    """Whether a state entry is one of BatchNorm's running statistics, which nobody learns by gradients."""
    return name.endswith(("running_mean", "running_var"))


def tensors_of(module: nn.Module, *, buffers: bool = True) -> dict[str, Tensor]:
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


# -- batch normalisation without surprises: single samples, and networks that keep no running statistics ------


def static_norms(model: nn.Module) -> list[Norm]:
    """The batch norms that keep no running statistics and so use those of the batch, even in testing."""
    return [layer for layer in model.modules() if isinstance(layer, Norm) and layer.running_mean is None]


@contextmanager
def norms_at_rest(*models: nn.Module) -> Iterator[None]:
    """Batch norms as in testing, whatever mode the models are in; one without statistics only scales."""
    norms = [layer for model in models for layer in model.modules() if isinstance(layer, Norm)]
    modes = [layer.training for layer in norms]
    static = [layer for model in models for layer in static_norms(model)]
    for layer in norms:
        layer.eval()
    for layer in static:
        _forget(layer)
    try:
        yield
    finally:
        for layer in static:
            layer.running_mean = layer.running_var = None
        for layer, mode in zip(norms, modes, strict=True):
            layer.train(mode)


def with_statistics(model: Network, batches: Iterable[Tensor]) -> Network:
    """A copy in eval mode whose static batch norms carry the mean statistics of `batches`.

    Give batches of two samples or more; without any, the norms only scale. Everything but the norms runs
    as in testing, so dropout and width scalers do not spoil the statistics.
    """
    model = copy.deepcopy(model).eval()
    static = static_norms(model)
    for layer in static:
        _forget(layer)
        layer.track_running_stats, layer.momentum = True, None  # None: the plain mean over batches
        layer.num_batches_tracked = torch.zeros((), dtype=torch.int64)
        layer.train()
    with torch.no_grad():
        for x in batches if static else ():
            model(x)
    return model.eval()


def _forget(layer: Norm) -> None:
    like = layer.weight if layer.weight is not None else torch.empty(0)
    layer.running_mean = torch.zeros(layer.num_features, dtype=like.dtype, device=like.device)
    layer.running_var = torch.ones(layer.num_features, dtype=like.dtype, device=like.device)


# -- its first weights --------------------------------------------------------------------------------------


def he_normal(layer: nn.Module) -> None:
    """He's initialisation for a layer followed by ReLU, with zero bias.

    Torch's own default lets the signal fade from layer to layer, which costs a small client with few
    batches most of its first rounds. Apply it before the head is added: nothing rectifies the class scores.
    Layers under batch norm do better with the default, as larger weights make their steps relatively smaller.
    """
    if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


@contextmanager
def only_shapes() -> Iterator[None]:
    """A block in which networks are built without numbers, to see how large they are.

    Torch would draw normal numbers that have no place to be through its compiler, the import of which takes longer
    than a small round.
    """
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Leaves a layer's weights alone where they would be drawn."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Draw nothing, do everything else."""
        options = kwargs or {}
        if func in _DRAWING:
            return args[0] if args else options["tensor"]
        return func(*args, **options)


_DRAWING = (torch.Tensor.normal_, torch.Tensor.uniform_, nn.init.normal_, nn.init.uniform_)
