"""Curves for print: accuracy, losses, what was learnt and lost again, and every client by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from potluck.analysis.curves import band, client_curve, loss_increase, note_curves, smooth
from potluck.analysis.groups import Group
from potluck.analysis.targets import check_target
from potluck.core.errors import PotluckError, unknown
from potluck.report.options import Options
from potluck.report.palette import look
from potluck.report.style import legend, legend_beside, new_figure
from potluck.runs.run import Curve, Numbers, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TIMES = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes"))
_MARKS = 8  # markers along a curve
_NAMED = 10  # clients that have a legend


def accuracy(groups: list[Group], options: Options) -> Figure:
    """Mean accuracy in %, with a band over seeds and the target as a line."""
    figure, axes = _curves(groups, options, "accuracy", scale=100.0)
    axes.set_ylabel("accuracy (%)")
    if options.target is not None:
        axes.axhline(
            100 * check_target(options.target), color="#444444", linewidth=0.8, linestyle=(0, (1, 2))
        )
    return figure


def loss(groups: list[Group], options: Options) -> Figure:
    """Mean test loss, with a band over seeds."""
    figure, axes = _curves(groups, options, "loss")
    axes.set_ylabel("test loss")
    return figure


def train_loss(groups: list[Group], options: Options) -> Figure:
    """Mean training loss of the round's participants, with a band over seeds."""
    figure, axes = _curves(groups, options, "train_loss")
    axes.set_ylabel("training loss")
    return figure


def increase(groups: list[Group], options: Options) -> Figure:
    """How far the training loss (the test loss where there is none) lies above the best before it."""
    known = (
        "train_loss" if any(run.has("train_loss") for group in groups for run in group.counted) else "loss"
    )
    curves = [[loss_increase(run.curve(known, options.x)) for run in group.counted] for group in groups]
    places = [curve.x for of_group in curves for curve in of_group]
    if not any(map(len, places)):
        raise PotluckError(f"No run has two losses against {options.x!r}: choose another kind or x.")
    figure, axes = new_figure()
    divisor = _unit(places, options.x)[0]
    for position, (group, of_group) in enumerate(zip(groups, curves, strict=True)):
        for seed, curve in enumerate(of_group):
            label = group.label if seed == 0 else None
            _line(axes, position, curve.x / divisor, smooth(curve.y, options.smooth), label)
    _finish(axes, options, places)
    axes.axhline(0, color="#444444", linewidth=0.6)
    axes.set_ylabel("loss increase")
    return figure


def notes(groups: list[Group], options: Options) -> Figure:
    """What methods record of themselves, such as pFedAFM's mean mixing weight; `field` says which."""
    known = sorted({name for group in groups for run in group.counted for name in run.notes})
    name = _chosen_note(known, options, "its method records nothing of itself; choose another kind")
    figure, axes = _curves(
        [group for group in groups if name in group.counted[0].notes], options, f"notes.{name}"
    )
    axes.set_ylabel(f"{name}, mean over clients")
    return figure


def client_notes(groups: list[Group], options: Options) -> Figure:
    """What the clients of one run note of themselves, client by client: pFedAFM's mixing weights."""
    run = _one_run(groups, "client-notes")
    reason = "no client's own; run the method again with this version, or draw kind 'notes'"
    name = _chosen_note(run.client_notes, options, reason if run.notes else "choose another kind")
    return _each_client(run, note_curves(run, name), options, name)


def _chosen_note(known: list[str], options: Options, otherwise: str) -> str:
    if not known:
        raise PotluckError(f"No run has notes: {otherwise}.")
    if options.field is None and len(known) > 1:
        raise PotluckError(f"The runs have several notes: say which as field: {', '.join(known)}.")
    name = options.field or known[0]
    if name not in known:
        raise unknown("note", name, known)
    return name


def each_client(groups: list[Group], options: Options) -> Figure:
    """Every client's own accuracy over rounds, for one method and its first seed."""
    run = _one_run(groups, "client-curves")
    curves = {client.index: client_curve(run, client.index) for client in run.client_results}
    return _each_client(run, curves, options, "accuracy (%)", 100.0)


def _one_run(groups: list[Group], kind: str) -> Run:
    if len(groups) > 1:
        raise PotluckError(f"kind {kind!r} draws one method, not {len(groups)}: pass runs of one method.")
    return groups[0].counted[0]


def _each_client(
    run: Run, curves: Mapping[int, Curve], options: Options, what: str, scale: float = 1.0
) -> Figure:
    """A line for each client, or for the one that is asked for."""
    if options.client not in (None, *curves):
        raise unknown("client", str(options.client), list(map(str, curves)))
    shown = {index: curve for index, curve in curves.items() if options.client in (None, index)}
    names = {
        client.index: f"{client.name} ({client.architecture})" if client.architecture else client.name
        for client in run.client_results
    }
    figure, axes = new_figure()
    for position, (index, curve) in enumerate(shown.items()):
        label = names.get(index, f"client {index}") if len(shown) <= _NAMED else None
        _line(axes, position, curve.x, scale * smooth(curve.y, options.smooth), label)
    axes.set_xlabel("round")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel(what)
    if len(shown) <= _NAMED:
        legend_beside(axes)
    return figure


def _curves(groups: list[Group], options: Options, key: str, scale: float = 1.0) -> tuple[Figure, Axes]:
    bands = [band(group.counted, key, options.x) for group in groups]
    if not any(each.runs for each in bands):
        raise PotluckError(f"No run has {key!r} against {options.x!r}: choose another kind or x.")
    figure, axes = new_figure()
    divisor = _unit([each.x for each in bands], options.x)[0]
    for position, (group, each) in enumerate(zip(groups, bands, strict=True)):
        x, y = each.x / divisor, scale * smooth(each.mean, options.smooth)
        if each.runs > 1:
            std = scale * each.std
            axes.fill_between(x, y - std, y + std, color=look(position).light, alpha=0.18, linewidth=0)
        _line(axes, position, x, y, group.label)
    _finish(axes, options, [each.x for each in bands])
    return figure, axes


def _line(axes: Axes, position: int, x: Numbers, y: Numbers, label: str | None) -> None:
    """One curve; its markers are few, and shifted so that those of close curves do not cover each other."""
    style, spacing = look(position), max(1, len(x) // _MARKS)
    axes.plot(
        x,
        y,
        color=style.light,
        linestyle=style.linestyle,
        marker=style.marker,
        markevery=(position % spacing, spacing),
        label=label,
    )


def _finish(axes: Axes, options: Options, places: list[Numbers]) -> None:
    axes.set_xlabel(_unit(places, options.x)[1])
    axes.set_xlim(left=0)
    if options.x == "rounds":
        axes.locator_params(axis="x", integer=True)
    legend(axes)


def _unit(places: list[Numbers], x: str) -> tuple[float, str]:
    """What to divide the axis by so that its numbers are short, and what to write on it."""
    greatest = max((float(np.max(each)) for each in places if len(each)), default=0.0)
    if x == "rounds":
        return 1.0, "round"
    if x == "floats":
        return (1e6, "numbers sent (millions)") if greatest >= 1e6 else (1.0, "numbers sent")
    if x == "bytes":
        divisor, name = next((size for size in _SIZES if greatest >= size[0]), _SIZES[-1])
        return divisor, f"traffic ({name})"
    _, divisor, name = next(each for each in _TIMES if greatest >= each[0])
    return divisor, f"{'time' if x == 'seconds' else 'simulated time'} ({name})"
