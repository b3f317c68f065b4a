"""Predict what a command line names: files and texts, one row of the result per raw input."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError, plain
from potluck.core.files import csv_cell, parse_json, read_text
from potluck.data.raw import ImageInput, TextInput
from potluck.runs.export_description import is_file
from potluck.runs.exported import DESCRIPTION, ExportedModel, Prediction, class_of, load_model


def predict_inputs(
    place: Path, inputs: Sequence[str], network: str | None = None
) -> list[tuple[str, Prediction]]:
    """Predict files, or texts; `network` is `module:factory` of the user's own network."""
    model = _load(place, network)
    rows: list[tuple[str, Prediction]] = []
    for argument in inputs:
        item: str | Path = argument
        if not isinstance(model.raw, TextInput) or Path(argument).is_file():
            item = Path(argument)
        predictions = model.predict(item)
        names = _names(model, argument, item, len(predictions))
        rows += zip(names, predictions, strict=True)
    return rows


def _load(place: Path, network: str | None) -> ExportedModel:
    if network is None:
        return load_model(place)
    module, _, name = network.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise PotluckError(
            f"--network {network!r} could not be imported ({error}); write module:factory of something in this folder "
            "or installed."
        ) from None
    try:
        names = _own_names(parse_json(read_text(place / DESCRIPTION))["model"])
    except (OSError, ValueError, LookupError, TypeError):
        names = []  # load_model says what is wrong
    if not names and (place / DESCRIPTION).exists():
        load_model(place)
        raise PotluckError(
            f"--network {network!r} has no effect: the model is one of Potluck's; leave it out."
        )
    return load_model(place, models=dict.fromkeys(names, factory))


def own_networks(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a description that are the user's own networks."""
    parts = node.get("models")
    if isinstance(parts, dict):
        return [own for part in parts.values() for own in own_networks(part)]
    return [node] if "own" in node else []


def _own_names(node: dict[str, Any]) -> list[str]:
    return [str(own["own"]) for own in own_networks(node)]


def load_call(place: Path) -> str:
    """Return the Python call that loads an exported model; it takes the user's own networks where there are some."""
    nodes = own_networks(parse_json(read_text(place / DESCRIPTION))["model"])
    models = ", ".join(f"{name!r}: {name}" for name in dict.fromkeys(map(class_of, nodes)))
    return f"potluck.load_model({str(place)!r}{f', models={{{models}}}' if models else ''})"


def predict_command(place: Path) -> str:
    """Return the command that predicts with an exported model; it names the user's own network where it is one."""
    names = _own_names(parse_json(read_text(place / DESCRIPTION))["model"])
    if not names:
        return f"potluck predict {place} FILE"
    target = names[0].partition("@")[2] if is_file(names[0]) else names[0]
    return f"potluck predict {place} FILE --network {target if ':' in target else 'MODULE:FACTORY'}"


def _names(model: ExportedModel, given: str, item: str | Path, count: int) -> list[str]:
    """Name each raw input of one argument: the file, and the place in it where it has several."""
    if isinstance(item, str):
        return [plain(given, 60)]
    if isinstance(model.raw, ImageInput) and item.is_dir():
        return [plain(str(path), 200) for path in model.raw.files(item)]
    if count == 1:
        return [plain(given, 200)]
    return [f"{plain(given, 200)} row {number}" for number in range(1, count + 1)]


def to_csv(rows: Sequence[tuple[str, Prediction]]) -> str:
    """Return predictions as CSV: input, class, and the probability of every class."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    names = list(rows[0][1].probabilities) if rows else []
    writer.writerow(["input", "class", *(csv_cell(f"p({name})") for name in names)])
    for source, prediction in rows:
        shares = [f"{prediction.probabilities[name]:.6f}" for name in names]
        writer.writerow([csv_cell(source), csv_cell(prediction.class_name), *shares])
    return buffer.getvalue()
