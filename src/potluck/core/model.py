"""Client models: features and head, access to tensors, batch normalisation, initial weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from potluck.core.torch_fast import BatchNorm, NormalisationBase

Network = TypeVar("Network", bound=nn.Module)


class ClientModel(nn.Module):
    """A network of `features` (input to a flat vector) and a `head` (vector to class scores).

    `stages` is empty unless the network can be cut: then running them one after another and calling
    `pool` on the last output gives the features. Methods that exchange intermediate features need it.
    """

    head: nn.Module
    feature_dim: int
    frozen: tuple[str, ...] = ()
    """Modules that stay in eval mode, because nothing in them is trained (`training.train`)."""

    @property
    def top_modules(self) -> tuple[str, ...]:
        """Return the modules that are trained even where the extractor is frozen."""
        return ("head",)

    def train(self, mode: bool = True) -> Self:
        """Set train or eval mode; frozen modules stay in eval mode."""
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).train(False)
        return self

    def trained_state(self) -> dict[str, Tensor]:
        """Return the state without frozen parameters and without the buffers of frozen modules; live tensors."""
        state = dict(self.state_dict())
        if not self.frozen:
            return state
        learned = {name: parameter.requires_grad for name, parameter in self.named_parameters()}
        inside = tuple(f"{name}." for name in self.frozen)
        return {
            name: tensor for name, tensor in state.items() if learned.get(name, not name.startswith(inside))
        }

    def features(self, x: Tensor) -> Tensor:
        """Return the features of a batch, `[batch, feature_dim]`."""
        for stage in self.stages:
            x = stage(x)
        return self.pool(x)

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """Return the parts of the extractor in order; empty where it cannot be cut."""
        return ()

    def pool(self, x: Tensor) -> Tensor:
        """Turn the last stage's output into the flat feature vector."""
        return torch.flatten(x, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores, `[batch, classes]`."""
        scores: Tensor = self.head(self.features(x))
        return scores


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether any layer normalises over the batch, and so cannot train on a single sample."""
    inside = tuple(f"{name}." for name in getattr(model, "frozen", ()))
    return any(
        isinstance(layer, BatchNorm) and not (inside and f"{name}.".startswith(inside))
        for name, layer in model.named_modules()
    )


def set_channels_last(model: nn.Module, last: bool = True) -> None:
    """Store the weights of 2-D convolutions with channels last (or first); outputs follow.

    The numbers stay the same, the order in which products are summed does not.
    """
    layout = torch.channels_last if last else torch.contiguous_format
    for tensor in model.parameters():
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=layout)


def any_channels_last(tensors: Iterable[Tensor]) -> bool:
    """Return whether any convolution weights are stored with channels last."""
    return any(
        tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
        for tensor in tensors
    )


# -- tensors ------------------------------------------------------------------------------------------------


def is_transferable(name: str) -> bool:
    """Return whether a state entry may be sent and averaged; batch counters and the scaling of adapters may not."""
    return not name.endswith(("num_batches_tracked", "lora_scaling"))


def is_statistic(name: str) -> bool:
    """Return whether a state entry is a running statistic of BatchNorm, which is not learned by gradients."""
    return name.endswith(("running_mean", "running_var"))


def tensors_of(module: nn.Module, *, buffers: bool = True) -> dict[str, Tensor]:
    """Return copies of a module's parameters and transferable buffers by name, without frozen ones."""
    parameters = {name for name, _ in module.named_parameters()}
    state = module.trained_state() if isinstance(module, ClientModel) else module.state_dict()
    return {
        name: tensor.detach().clone()
        for name, tensor in state.items()
        if name in parameters or (buffers and is_transferable(name))
    }


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite the named entries of a module; the others stay. An unknown name is an error."""
    surplus = module.load_state_dict(dict(tensors), strict=False).unexpected_keys
    if surplus:
        raise KeyError(f"the model has no tensor {surplus[0]!r}")


# -- batch normalisation: single samples, and networks without running statistics ------------------------------


def normalisation_layers(model: nn.Module) -> list[NormalisationBase]:
    """Return all layers of batch and instance normalisation."""
    return [layer for layer in model.modules() if isinstance(layer, NormalisationBase)]


def norms_without_statistics(model: nn.Module) -> list[BatchNorm]:
    """Return the batch norms without running statistics, which use those of the batch even in eval mode."""
    return [layer for layer in model.modules() if isinstance(layer, BatchNorm) and layer.running_mean is None]


@contextmanager
def batch_norm_in_eval_mode(*models: nn.Module) -> Iterator[None]:
    """Put batch norms into eval mode inside the block; one without statistics only scales."""
    norms = [layer for model in models for layer in model.modules() if isinstance(layer, BatchNorm)]
    modes = [layer.training for layer in norms]
    static = [layer for model in models for layer in norms_without_statistics(model)]
    for layer in norms:
        layer.eval()
    for layer in static:
        _reset_statistics(layer)
    try:
        yield
    finally:
        for layer in static:
            layer.running_mean = layer.running_var = None
        for layer, mode in zip(norms, modes, strict=True):
            layer.train(mode)


def with_batch_norm_statistics(model: Network, batches: Iterable[Tensor]) -> Network:
    """Return a copy in eval mode whose static batch norms have the mean statistics of `batches`.

    Pass batches of two samples or more; without any, the norms only scale. All other layers run in eval mode, so that
    dropout and width scalers do not change the statistics.
    """
    model = copy.deepcopy(model).eval()
    static = norms_without_statistics(model)
    for layer in static:
        _reset_statistics(layer)
        layer.track_running_stats, layer.momentum = True, None  # None: the plain mean over batches
        layer.num_batches_tracked = torch.zeros((), dtype=torch.int64)
        layer.train()
    with torch.no_grad():
        for x in batches if static else ():
            model(x)
    return model.eval()


def _reset_statistics(layer: BatchNorm) -> None:
    like = layer.weight if layer.weight is not None else torch.empty(0)
    layer.running_mean = torch.zeros(layer.num_features, dtype=like.dtype, device=like.device)
    layer.running_var = torch.ones(layer.num_features, dtype=like.dtype, device=like.device)


# -- initial weights ----------------------------------------------------------------------------------------


def he_normal(layer: nn.Module) -> None:
    """Initialise a layer followed by ReLU after He et al., with zero bias.

    With torch's default the signal decreases from layer to layer, which costs clients their first rounds. Apply it
    before the head is added, which has no ReLU. Layers followed by batch norm do better with the default.
    """
    if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


@contextmanager
def without_initialization() -> Iterator[None]:
    """Build networks on the meta device inside the block, to read their shapes.

    Random initialisation is skipped: on the meta device torch would import its compiler for it.
    """
    with torch.device("meta"), _SkipInitialization():
        yield


class _SkipInitialization(TorchFunctionMode):
    """Skips random initialisation."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Skip functions that draw numbers, call all others."""
        options = kwargs or {}
        if func in _INITIALIZERS:
            return args[0] if args else options["tensor"]
        return func(*args, **options)


_INITIALIZERS = (torch.Tensor.normal_, torch.Tensor.uniform_, nn.init.normal_, nn.init.uniform_)
