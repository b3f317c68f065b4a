"""How raw rows become what a model takes, written down with an exported model and done again when it is loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from potluck.core.samples import Transform
from potluck.data.dataset import Cast, MeanImage, Normalise


def describe_input(transform: Transform | None) -> dict[str, Any] | None:
    """A normalisation as plain facts; nothing where it is a function of somebody's own."""
    if transform is None:
        return {"as_is": True}
    if isinstance(transform, Normalise):
        return {"mean": list(transform.mean), "std": list(transform.std), "scale": transform.scale}
    if isinstance(transform, MeanImage):
        return {"mean_row": transform.mean.cpu().tolist(), "scale": transform.scale}
    if isinstance(transform, Cast):
        return describe_input(transform.first)
    return None


def read_input(facts: dict[str, Any], dtype: torch.dtype) -> Transform:
    """The normalisation of these facts, giving numbers of one type."""
    if "mean_row" in facts:
        return MeanImage(torch.tensor(facts["mean_row"], dtype=torch.float32), float(facts["scale"]), dtype)
    if "mean" in facts:
        return Normalise(tuple(facts["mean"]), tuple(facts["std"]), float(facts["scale"]), dtype)
    return Cast(dtype)


class FromRaw(nn.Module):
    """A model with its normalisation before it: raw rows, such as bytes of pictures, to class scores."""

    def __init__(self, model: nn.Module, transform: Transform, class_names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.transform, self.class_names = model, transform, class_names

    def forward(self, rows: Tensor) -> Tensor:
        """Class scores of rows as the data set holds them."""
        scores: Tensor = self.model(self.transform(rows))
        return scores

    def predict(self, rows: Tensor) -> list[str]:
        """The name of the class with the largest score, for each row."""
        with torch.no_grad():
            places = self(rows).argmax(dim=1).tolist()
        return [self.class_names[place] if self.class_names else str(place) for place in places]
