"""Draw curves: accuracy, losses, loss increase, notes of methods, and each client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from potluck.analysis.cost import check_target
from potluck.analysis.curves import (
    band,
    client_curve,
    loss_increase,
    note_curves,
    smooth,
    training_metric,
)
from potluck.analysis.groups import Group
from potluck.core.errors import PotluckError, unknown
from potluck.report.style import FigureOptions, legend, legend_above, log_scale, method_style, new_figure
from potluck.runs.run import Curve, FloatArray, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TIMES = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes"))
_MARKERS = 8  # along a curve
_MAX_NAMED = 10  # clients up to which there is a legend


def accuracy(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw mean accuracy in %, with a band over seeds and the target as a line."""
    figure, axes = _curves(groups, options, "accuracy", scale=100.0)
    axes.set_ylabel("accuracy (%)")
    if options.target is not None:
        axes.axhline(
            100 * check_target(options.target), color="#444444", linewidth=0.8, linestyle=(0, (1, 2))
        )
    return figure


def loss(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw mean test loss, with a band over seeds."""
    figure, axes = _curves(groups, options, "loss")
    axes.set_ylabel("test loss")
    return figure


def train_loss(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw mean training loss of the round's participants, with a band over seeds."""
    figure, axes = _curves(groups, options, "train_loss")
    axes.set_ylabel("training loss")
    return figure


def train_ce(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw the participants' mean training cross-entropy, by their samples, with a band over seeds."""
    figure, axes = _curves(groups, options, "train_ce")
    axes.set_ylabel("training cross-entropy")
    return figure


def gradient_norm(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw the mean squared gradient norm on clients' training samples, with a band over seeds."""
    if not any(run.has("gradient_norm") for group in groups for run in group.counted_runs):
        raise PotluckError(
            "No run has gradient norms: run again with --set evaluate.gradient_norm=true, or draw another kind."
        )
    figure, axes = _curves(groups, options, "gradient_norm")
    axes.set_ylabel("squared gradient norm")
    log_scale(axes, "y")
    return figure


def loss_increases(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw how far the training cross-entropy (the test loss where none is) lies above the best before it."""
    trained = any(run.has("train_loss") for group in groups for run in group.counted_runs)
    curves = [
        [
            loss_increase(run.curve(training_metric(run) if trained else "loss", options.x))
            for run in group.counted_runs
        ]
        for group in groups
    ]
    places = [curve.x for group_curves in curves for curve in group_curves]
    if not any(map(len, places)):
        raise PotluckError(f"No run has two losses against {options.x!r}: choose another kind or x.")
    figure, axes = new_figure()
    divisor = _unit(places, options.x)[0]
    for group, group_curves in zip(groups, curves, strict=True):
        for seed, curve in enumerate(group_curves):
            label = group.label if seed == 0 else None
            _line(axes, group.position, curve.x / divisor, smooth(curve.y, options.smooth), label)
    _finish(axes, options, places)
    axes.axhline(0, color="#444444", linewidth=0.6)
    axes.set_ylabel("loss increase")
    return figure


def notes(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw what methods record with `me.note`, such as pFedAFM's mean mixing weight; `field` selects the note."""
    recorded = sorted({name for group in groups for run in group.counted_runs for name in run.notes})
    name = _selected_note(recorded, options, "its method records none; choose another kind")
    with_note = [group for group in groups if name in group.counted_runs[0].notes]
    figure, axes = _curves(with_note, options, f"notes.{name}")
    axes.set_ylabel(f"{name}, mean over clients")
    return figure


def client_notes(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw a note of one run client by client, such as pFedAFM's mixing weights."""
    run = single_run(groups, "client-notes")
    reason = "only means over clients; run the method again with this version, or draw kind 'notes'"
    name = _selected_note(run.client_notes, options, reason if run.notes else "choose another kind")
    return _client_lines(run, note_curves(run, name), options, name)


def _selected_note(recorded: list[str], options: FigureOptions, reason: str) -> str:
    if not recorded:
        raise PotluckError(f"No run has notes: {reason}.")
    if options.field is None and len(recorded) > 1:
        raise PotluckError(
            f"The runs have several notes: choose one with --field (from Python: field=): {', '.join(recorded)}."
        )
    name = options.field or recorded[0]
    if name not in recorded:
        raise unknown("note", name, recorded)
    return name


def client_curves(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw every client's accuracy over rounds, for one method and its first seed."""
    run = single_run(groups, "client-curves")
    curves = {client.index: client_curve(run, client.index) for client in run.client_results}
    return _client_lines(run, curves, options, "accuracy (%)", 100.0)


def single_run(groups: list[Group], kind: str) -> Run:
    """Return the first run of the only group."""
    if len(groups) > 1:
        raise PotluckError(f"kind {kind!r} draws one method, not {len(groups)}: pass runs of one method.")
    return groups[0].counted_runs[0]


def _client_lines(
    run: Run, curves: Mapping[int, Curve], options: FigureOptions, ylabel: str, scale: float = 1.0
) -> Figure:
    """Draw a line for each client, or for the selected client."""
    if options.client not in (None, *curves):
        raise unknown("client", str(options.client), list(map(str, curves)))
    shown = {index: curve for index, curve in curves.items() if options.client in (None, index)}
    names = {
        client.index: f"{client.name} ({client.architecture})" if client.architecture else client.name
        for client in run.client_results
    }
    figure, axes = new_figure()
    for position, (index, curve) in enumerate(shown.items()):
        label = names.get(index, f"client {index}") if len(shown) <= _MAX_NAMED else None
        _line(axes, position, curve.x, scale * smooth(curve.y, options.smooth), label)
    axes.set_xlabel("round")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel(ylabel)
    if len(shown) <= _MAX_NAMED:
        legend_above(axes)
    return figure


def _curves(groups: list[Group], options: FigureOptions, key: str, scale: float = 1.0) -> tuple[Figure, Axes]:
    bands = [band(group.counted_runs, key, options.x) for group in groups]
    if not any(each.runs for each in bands):
        raise PotluckError(f"No run has {key!r} against {options.x!r}: choose another kind or x.")
    figure, axes = new_figure()
    divisor = _unit([each.x for each in bands], options.x)[0]
    for group, each in zip(groups, bands, strict=True):
        x, y = each.x / divisor, scale * smooth(each.mean, options.smooth)
        if each.runs > 1:
            std, colour = scale * each.std, method_style(group.position).light
            axes.fill_between(x, y - std, y + std, color=colour, alpha=0.18, linewidth=0)
        _line(axes, group.position, x, y, group.label)
    _finish(axes, options, [each.x for each in bands])
    return figure, axes


def _line(axes: Axes, position: int, x: FloatArray, y: FloatArray, label: str | None) -> None:
    """Draw a curve with few markers, shifted so that those of close curves do not cover each other."""
    style, spacing = method_style(position), max(1, len(x) // _MARKERS)
    axes.plot(
        x,
        y,
        color=style.light,
        linestyle=style.linestyle,
        marker=style.marker,
        markevery=(position % spacing, spacing),
        label=label,
    )


def _finish(axes: Axes, options: FigureOptions, places: list[FloatArray]) -> None:
    axes.set_xlabel(_unit(places, options.x)[1])
    axes.set_xlim(left=0)
    if options.x == "rounds":
        axes.locator_params(axis="x", integer=True)
    legend(axes)


def _unit(places: list[FloatArray], x: str) -> tuple[float, str]:
    """Return the divisor that keeps the numbers of the axis short, and the label of the axis."""
    greatest = max((float(np.max(each)) for each in places if len(each)), default=0.0)
    if x == "rounds":
        return 1.0, "round"
    if x == "samples":
        return 1.0, "samples trained on, all clients"
    if x == "floats":
        return (1e6, "numbers sent (millions)") if greatest >= 1e6 else (1.0, "numbers sent")
    if x == "bytes":
        divisor, name = next((size for size in _SIZES if greatest >= size[0]), _SIZES[-1])
        return divisor, f"traffic ({name})"
    _, divisor, name = next(each for each in _TIMES if greatest >= each[0])
    return divisor, f"{'time' if x == 'seconds' else 'simulated time'} ({name})"
