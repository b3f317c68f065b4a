"""Load an exported model, and predict raw images, texts and rows of tables with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.core.model import ClientModel, with_batch_norm_statistics
from potluck.core.samples import Transform
from potluck.data.dataset import Cast, MeanImage, Normalise
from potluck.data.files import read_arrays
from potluck.data.raw import ImageInput, RawInput, TableInput, TextInput, read_raw
from potluck.kit import CombinedModel
from potluck.models import build_model, original_names, split
from potluck.models.inputs import InputFacts
from potluck.models.pretrained import with_new_head
from potluck.runs.export_description import class_name, is_file, names_pretrained
from potluck.runs.folder import EXPERIMENT

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FORMAT = 3
BATCH = 256
"""Rows that are predicted at once."""
_WRONG = (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RuntimeError)
_UNREADABLE = (*_WRONG, safetensors.SafetensorError)
"""Errors from reading a damaged export."""


def read_input(facts: dict[str, Any], dtype: torch.dtype) -> Transform:
    """Build the normalisation of a description, with results of one type."""
    if "mean_row" in facts:
        return MeanImage(torch.tensor(facts["mean_row"], dtype=torch.float32), float(facts["scale"]), dtype)
    if "mean" in facts:
        return Normalise(tuple(facts["mean"]), tuple(facts["std"]), float(facts["scale"]), dtype)
    return Cast(dtype)


@dataclass(frozen=True)
class Prediction:
    """The most probable class of one input, and the probability of every class."""

    class_name: str
    probabilities: dict[str, float]

    @property
    def probability(self) -> float:
        """The probability of the most probable class."""
        return self.probabilities[self.class_name]


class ExportedModel(nn.Module):
    """An exported model: `forward` turns model inputs into class scores, `predict` raw inputs into class names.

    `raw` describes how images, texts or rows of a table become rows of the data set, `transform` normalises such rows;
    `raw` is None where rows came as numbers, `transform` where the run normalised them by a function of the user's.
    """

    def __init__(
        self,
        module: nn.Module,
        class_names: tuple[str, ...],
        raw: RawInput | None = None,
        transform: Transform | None = None,
    ) -> None:
        super().__init__()
        self.module, self.class_names, self.raw, self.transform = module, class_names, raw, transform

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of inputs as the run's models saw them."""
        scores: Tensor = self.module(x)
        return scores

    def predict(self, inputs: Any) -> list[Prediction]:
        """Predict one raw input or a sequence of them: class names with probabilities (softmax of the scores).

        Raw inputs are images (files, PIL images, arrays `[h, w]` or `[h, w, 3]` of bytes), texts, or rows of a table
        (a mapping by column name, or a CSV file). A tensor holds rows `[n, ...]` as the data set stores them.
        """
        if self.transform is None:
            raise PotluckError(
                "The exported model does not describe the normalisation of raw inputs; prepare inputs as in the run "
                "and call model(x), which returns class scores."
            )
        rows, parts = self.rows(inputs), []
        with torch.no_grad():
            for batch in torch.split(rows, BATCH):
                parts.append(torch.softmax(self(self.transform(batch)).double(), dim=1))
        table = torch.cat(parts) if parts else torch.zeros(0, len(self.class_names))
        names = self.class_names or tuple(map(str, range(table.shape[1])))
        return [
            Prediction(names[max(range(len(row)), key=row.__getitem__)], dict(zip(names, row, strict=True)))
            for row in table.tolist()
        ]

    def rows(self, inputs: Any) -> Tensor:
        """Turn raw inputs into rows `[n, ...]` as the run's data set stores them."""
        if isinstance(inputs, Tensor):
            return inputs
        if self.raw is None:
            return _number_rows(inputs)
        single = isinstance(inputs, str | Path | Mapping) or not isinstance(inputs, Sequence)
        items = [inputs] if single else inputs
        if isinstance(self.raw, TableInput):
            return torch.from_numpy(_table_rows(self.raw, items))
        return torch.from_numpy(self.raw.encode([raw for item in items for raw in self._items(item)]))

    def _items(self, item: Any) -> list[Any]:
        """Return the images or texts that one given input stands for: all files of a folder, say."""
        assert isinstance(self.raw, ImageInput | TextInput)
        if isinstance(item, Path) or (isinstance(item, str) and isinstance(self.raw, ImageInput)):
            return self.raw.files(Path(item) if isinstance(self.raw, ImageInput) else _existing(item))
        return [item]


def _existing(path: str | Path) -> Path:
    if not Path(path).is_file():
        raise PotluckError(f"File {str(path)!r} does not exist; check the path.")
    return Path(path)


def _table_rows(raw: TableInput, given: Sequence[Any]) -> NDArray[np.float32]:
    """Return `[n, width]` for CSV files, and for rows by column name."""
    if not any(isinstance(item, str | Path) for item in given):
        return raw.encode(given)
    parts = [
        raw.encode_file(_existing(item)) if isinstance(item, str | Path) else raw.encode([item])
        for item in given
    ]
    return np.concatenate(parts)


def _number_rows(inputs: Any) -> Tensor:
    """Return rows of numbers: of an array, or of a file written by numpy."""
    if not isinstance(inputs, str | Path):
        return torch.as_tensor(np.asarray(inputs))
    path = Path(inputs)
    try:
        if path.suffix == ".npz":
            arrays = read_arrays(path)
            return torch.from_numpy(arrays["x"] if "x" in arrays else next(iter(arrays.values())))
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError, TypeError, StopIteration) as error:
        raise PotluckError(
            f"{str(path)!r} cannot be read as rows of numbers ({error}); the model takes .npy files, or .npz files "
            "with an array x."
        ) from None


def load_model(
    path: str | Path,
    *,
    models: Mapping[str, Callable[[], nn.Module]] | None = None,
    predictors: Sequence[type[CombinedModel]] = (),
) -> ExportedModel:
    """Load an exported model, in eval mode. No stored code is executed.

    `model(x)` returns class scores of inputs as the run's models saw them; `model.predict(inputs)` takes raw images,
    texts or rows of a table and returns class names with probabilities.

    Your own networks and predictors are code, which the files do not hold: pass factories by the networks' classes as
    `models` (`models={"Net": Net}`; several of one class by their stored names, `Net` and `Net-2`), and the predictor
    classes of your own method as `predictors`.
    """
    place = Path(path)
    try:
        description = parse_json(read_text(place / DESCRIPTION))
        state = safetensors.torch.load_file(place / WEIGHTS)
        if description["format"] != FORMAT:
            raise ValueError(f"its format is {description['format']}, this version reads {FORMAT}")
        precision = getattr(torch, description["precision"])
        # No memory is allocated for the described model before the weights are checked to have that size.
        with torch.device("meta"):
            maker = _Maker(description, dict(models or {}), {class_name(cls): cls for cls in predictors})
            model = maker.build(description["model"]).to(precision)
        _fill(model, state)
        facts, names = description.get("input"), tuple(map(str, description.get("class_names", ())))
        transform = read_input(facts, precision) if isinstance(facts, dict) else None
        return ExportedModel(model, names, read_raw(description.get("raw")), transform).eval()
    except (FileNotFoundError, NotADirectoryError):
        hint = (
            f"export a client's model: potluck export {place}"
            if (place / EXPERIMENT).exists()
            else "check the path"
        )
        raise PotluckError(
            f"{str(place)!r} has no exported model ({WEIGHTS}, {DESCRIPTION}); {hint}."
        ) from None
    except _UNREADABLE as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PotluckError(
            f"The exported model in {str(place)!r} cannot be read ({reason}); export it again."
        ) from None


def _fill(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Set the weights of a model without memory; names and shapes must match."""
    names = original_names(model)
    expected = {names[key]: tensor for key, tensor in model.state_dict().items()}
    for name in sorted(expected.keys() ^ state.keys()):
        raise ValueError(f"its weights {'lack' if name in expected else 'have an unknown'} {name!r}")
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            raise ValueError(f"{name!r} should be {tuple(tensor.shape)} and is {tuple(state[name].shape)}")
    # Copies in the network's memory layout: tensors that were read may be views of the file.
    own = {
        key: torch.empty_like(tensor, device="cpu").copy_(state[names[key]])
        for key, tensor in model.state_dict().items()
    }
    model.load_state_dict(own, assign=True)


def class_of(node: dict[str, Any]) -> str:
    """Return the class of the user's own network: `Net` of `net:Net`, `Net-2` or `file:weights.pth@net:Net`."""
    parts = node.get("split") or {}
    if "network" in parts and not is_file(node["own"]):
        return str(parts["network"])
    return re.sub(r"-\d+$", "", str(node["own"]).rpartition(":")[2])


@dataclass(frozen=True)
class _Maker:
    """Builds modules without weights from a description."""

    facts: dict[str, Any]
    models: dict[str, Callable[[], nn.Module]]
    predictors: dict[str, type[CombinedModel]] = field(default_factory=dict)

    def build(self, node: dict[str, Any]) -> nn.Module:
        """Build the module of one node of the description."""
        if "linear" in node:
            return nn.Linear(*node["linear"])
        if "predictor" in node:
            parts = {name: self.build(part) for name, part in node["models"].items()}
            empty = {
                name: torch.zeros(entry["shape"], dtype=getattr(torch, entry["dtype"]))
                for name, entry in node["tensors"].items()
            }
            return self._predictor(node["predictor"])(parts, empty)
        if "own" in node:
            factory = self._own_factory(node)
            with torch.device("cpu"):  # the user's own code may make tensors that are not among its weights
                network = self._split(factory(), node)
                model = self._with_new_head(network, node) if is_file(node["own"]) else network
        else:
            model = self._from_zoo(node)
        return with_batch_norm_statistics(model, ()) if node["statistics"] else model

    def _own_factory(self, node: dict[str, Any]) -> Callable[[], nn.Module]:
        """Return the factory of the user's own network: by its stored name, by its class, or the only one given."""
        names = (node["own"], class_of(node))
        if factories := [self.models[name] for name in names if name in self.models] or (
            list(self.models.values()) if len(self.models) == 1 else []
        ):
            return factories[0]
        raise PotluckError(
            f"The exported model is {node['own']!r}, your own network; "
            f"pass load_model(..., models={{{class_of(node)!r}: its factory}}), or --network module:factory."
        )

    def _split(self, module: nn.Module, node: dict[str, Any]) -> nn.Module:
        """Split a network as it was split in the run, unless its factory does so."""
        if isinstance(module, ClientModel) or not node.get("split"):
            return module
        return split(module, **{name: value for name, value in node["split"].items() if name != "network"})

    def _with_new_head(self, network: nn.Module, node: dict[str, Any]) -> ClientModel:
        """Put a head for the task's classes behind the features of a network of `file:`, as in the run."""
        return build_model(
            node["own"],
            tuple(self.facts["input_shape"]),
            self.facts["num_classes"],
            node["feature_dim"],
            projection=node["projection"],
            backbone=lambda request: with_new_head(
                network, request.classes
            ),  # so that the name imports nothing
        )

    def _from_zoo(self, node: dict[str, Any]) -> ClientModel:
        if is_file(node["zoo"]):  # it names code, which a description must not choose
            raise ValueError("it names a file of code as a model of the zoo")
        facts: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in node["inputs"].items()
        }
        # Libraries' networks have tensors that are in no state, so these are built with memory.
        with torch.device("cpu") if names_pretrained(node["zoo"]) else nullcontext():
            return build_model(
                node["zoo"],
                tuple(self.facts["input_shape"]),
                self.facts["num_classes"],
                node["feature_dim"],
                projection=node["projection"],
                vocabulary=self.facts["vocabulary"],
                inputs=InputFacts(**facts),
                pretrained=False,
            )

    def _predictor(self, name: str) -> type[CombinedModel]:
        """Return a predictor class of Potluck, or one that was passed; other names in a file are not imported."""
        if name in self.predictors:
            return self.predictors[name]
        module, _, cls = name.partition(":")
        if not module.startswith(("potluck.methods.", "potluck.kit.")):
            raise PotluckError(
                f"The exported model predicts with {name!r}, your own class; "
                f"pass load_model(..., predictors=[{cls}])."
            )
        predictor = getattr(import_module(module), cls)
        if not (isinstance(predictor, type) and issubclass(predictor, CombinedModel)):
            raise ValueError(f"{name!r} is not a predictor")
        return predictor
