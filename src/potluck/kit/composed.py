"""Predictors that are more than one network, as plain modules: they can be saved, loaded and exported."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from potluck.core.model import ClientModel
from potluck.kit.class_rows import ClassTable, nearest_row


class Composed(nn.Module):
    """Named models and tensors, held, not copied. A method's own predictor subclasses it and defines `forward(x)`.

    What it needs beyond its parts would not survive an export, so it has no other arguments.
    """

    def __init__(self, models: Mapping[str, nn.Module], tensors: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.models = nn.ModuleDict(models)
        self.names = tuple(tensors or ())
        for name, tensor in (tensors or {}).items():
            self.register_buffer(f"own_{name}", tensor)

    def network(self, name: str) -> ClientModel:
        """One of the models, as a client's network."""
        model = self.models[name]
        assert isinstance(model, ClientModel)
        return model

    def tensor(self, name: str) -> Tensor:
        """One of the tensors."""
        return self.get_buffer(f"own_{name}")


class NearestRow(Composed):
    """The class whose row is nearest to the features of `model`, among the `rows` that are `known`."""

    def forward(self, x: Tensor) -> Tensor:
        """Minus the distance to each class's row."""
        table = ClassTable(self.tensor("rows"), self.tensor("known"))
        return nearest_row(self.network("model").features(x), table)


def nearest(model: nn.Module, table: ClassTable) -> NearestRow:
    """Predict by the nearest of a table's rows."""
    return NearestRow({"model": model}, {"rows": table.rows, "known": table.known})
