"""What a node tells the server of itself, and nothing more."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from potluck.core.task import Architecture, ClientInfo
from potluck.loop.letter import Letter


@dataclass(frozen=True)
class Registration:
    """All that a node tells of itself: its name, how many rows it has, and the shape of its model."""

    name: str
    samples: int
    architecture: str
    device: str
    input_shape: list[int]
    feature_dim: int
    tensors: dict[str, list[Any]]
    parameters: list[str]
    head: dict[str, list[int]]
    stage_shapes: list[list[int]]
    width_rate: float | None
    validation: int = 0

    @staticmethod
    def of(info: ClientInfo, architecture: Architecture, input_shape: tuple[int, ...]) -> Registration:
        """What a client may say of itself."""
        shapes = {
            name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape]
            for name, tensor in architecture.initial.items()
        }
        return Registration(
            info.name,
            info.samples,
            info.architecture,
            info.device,
            list(input_shape),
            architecture.feature_dim,
            shapes,
            sorted(architecture.parameters),
            {name: list(shape) for name, shape in architecture.head.items()},
            [list(shape) for shape in architecture.stage_shapes],
            architecture.width_rate,
            info.validation,
        )

    def letter(self) -> Letter:
        """The registration as it travels."""
        return Letter({"registration": asdict(self)})
