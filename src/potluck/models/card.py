"""What a network costs: layers, parameters, memory, floating-point operations, speed on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel, batch_norm_in_eval_mode
from potluck.core.random import generator, seeded
from potluck.models.flops import FlopCounter
from potluck.models.inputs import InputFacts
from potluck.models.pretrained import is_pretrained
from potluck.models.registry import build_model, model_summary, require_name


@dataclass(frozen=True)
class Layer:
    """One layer: its dotted name, its type, the shape it gives for one sample, its own parameters."""

    name: str
    type: str
    output_shape: tuple[int, ...]
    parameters: int


@dataclass(frozen=True)
class ModelCard:
    """The cost of a network for inputs of one shape.

    `flops` counts the operations of one sample's forward pass, a multiplication and its addition as two;
    a training step takes about three times as many. `mib` is the size of parameters and buffers.
    """

    name: str
    summary: str
    input_shape: tuple[int, ...]
    num_classes: int
    feature_dim: int
    layers: tuple[Layer, ...]
    parameters: int
    buffers: int
    mib: float
    flops: int

    def __str__(self) -> str:
        """Return the card as a table of layers and a line of totals."""
        rows = [("layer", "type", "output", "parameters")]
        for layer in self.layers:
            shape = "×".join(map(str, layer.output_shape))
            rows.append((layer.name, layer.type, shape, f"{layer.parameters:,}" if layer.parameters else ""))
        wide = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [f"{a:{wide[0]}}  {b:{wide[1]}}  {c:>{wide[2]}}  {d:>{wide[3]}}" for a, b, c, d in rows]
        shape = "×".join(map(str, self.input_shape))
        totals = (
            f"{self.parameters:,} parameters, {self.buffers:,} buffers, {self.mib:.2f} MiB, "
            f"{self.flops / 1e6:,.2f} MFLOPs per sample, {self.feature_dim} features"
        )
        head = f"{self.name}: {self.summary} (input {shape}, {self.num_classes} classes)"
        return "\n".join([head, "", *(line.rstrip() for line in lines), "", totals])


def describe(
    name: str, input_shape: tuple[int, ...], num_classes: int, *, vocabulary: int | None = None
) -> ModelCard:
    """Return the card of an architecture. Only shapes are computed; the largest of the zoo take no memory."""
    packaged = is_pretrained(require_name(name).base)  # code of others does not always run without numbers
    with torch.device("cpu" if packaged else "meta"):
        model = _random_model(name, input_shape, num_classes, vocabulary)
        x = torch.zeros(1, *input_shape, dtype=torch.int64 if _reads_words(name) else torch.float32)
        with batch_norm_in_eval_mode(model):  # one sample is no batch to normalise over
            layers, flops = _layers(model, x), _flops(model, x)
    tensors = [*model.parameters(), *model.buffers()]
    return ModelCard(
        name=name,
        summary=model_summary(name),
        input_shape=tuple(input_shape),
        num_classes=num_classes,
        feature_dim=model.feature_dim,
        layers=layers,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
        mib=sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 2**20,
        flops=flops,
    )


def measure_speed(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    batch_size: int = 10,
    seconds: float = 1.0,
    vocabulary: int | None = None,
) -> float:
    """Training samples per second on this machine: SGD steps on random inputs for about `seconds`."""
    with seeded("speed", name):
        model = _random_model(name, input_shape, num_classes, vocabulary)
    x = _inputs((batch_size, *input_shape), vocabulary if _reads_words(name) else None)
    y = torch.arange(batch_size) % num_classes
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with seeded("speed", name, "steps"):
        _step(model, optimizer, x, y)  # the first step allocates
        start, steps = time.perf_counter(), 0
        while steps == 0 or time.perf_counter() - start < seconds:
            _step(model, optimizer, x, y)
            steps += 1
        return steps * batch_size / (time.perf_counter() - start)


def _random_model(
    name: str, input_shape: tuple[int, ...], num_classes: int, vocabulary: int | None
) -> ClientModel:
    """Build a model with random weights; a pretrained network of texts splits made-up words."""
    words = InputFacts(words=("word",) * max(0, (vocabulary or 0) - 2))
    return build_model(name, input_shape, num_classes, vocabulary=vocabulary, inputs=words, pretrained=False)


def _reads_words(name: str) -> bool:
    return require_name(name).entry.kind == "text"


def _inputs(shape: tuple[int, ...], vocabulary: int | None) -> Tensor:
    source = generator("speed", shape)
    if vocabulary:
        return torch.randint(1, vocabulary, shape, generator=source)
    return torch.rand(shape, generator=source)


def _step(model: ClientModel, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(F.cross_entropy(model(x), y))
    optimizer.step()


def _flops(model: ClientModel, x: Tensor) -> int:
    counter = FlopCounter()
    with torch.no_grad(), counter:
        model.eval()(x)
    return counter.total


def _layers(model: ClientModel, x: Tensor) -> tuple[Layer, ...]:
    """Return the layers that hold parameters of their own or nothing inside, with the shapes they give."""
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def note(module: nn.Module, _inputs: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor):
            shapes[module] = tuple(first.shape[1:])

    rows: list[tuple[str, nn.Module, int]] = []
    handles = []
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if own or not any(True for _ in module.children()):
            rows.append(
                (name or ", ".join(own), module, sum(parameter.numel() for parameter in own.values()))
            )
            handles.append(module.register_forward_hook(note))
    model.eval()(x)
    for handle in handles:
        handle.remove()
    return tuple(
        Layer(name, type(module).__name__, shapes.get(module, ()), own) for name, module, own in rows
    )
