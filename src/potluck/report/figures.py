"""Figures for papers: `plot(runs, "accuracy.pdf")` draws one kind of picture of one or several runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.analysis.groups import Group, group_runs
from potluck.core.errors import unknown
from potluck.report import bar_figures, client_figures, curve_figures, map_figures
from potluck.report.options import Options
from potluck.report.style import check_output, for_print, save
from potluck.runs.read import read_run
from potluck.runs.run import AXES, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _cka(groups: list[Group], options: Options) -> Figure:
    from potluck.report import seen_figures  # needs torch, which other figures do not

    return seen_figures.cka(groups, options)


def _cka_stages(groups: list[Group], options: Options) -> Figure:
    from potluck.report import seen_figures

    return seen_figures.cka_stages(groups, options)


def _tsne(groups: list[Group], options: Options) -> Figure:
    from potluck.report import seen_figures

    return seen_figures.tsne(groups, options)


KINDS: dict[str, Callable[[list[Group], Options], Figure]] = {
    "accuracy": curve_figures.accuracy,
    "loss": curve_figures.loss,
    "train-loss": curve_figures.train_loss,
    "loss-increase": curve_figures.increase,
    "notes": curve_figures.notes,
    "client-curves": curve_figures.each_client,
    "client-notes": curve_figures.client_notes,
    "clients": client_figures.strip,
    "difference": client_figures.difference,
    "bubbles": client_figures.bubbles,
    "architectures": bar_figures.architectures,
    "traffic": bar_figures.traffic,
    "target": bar_figures.target,
    "sweep": bar_figures.sweep_curve,
    "pareto": map_figures.pareto,
    "heatmap": map_figures.heatmap,
    "confusion": map_figures.confusion,
    "cka": _cka,
    "cka-stages": _cka_stages,
    "tsne": _tsne,
}


def plot(
    runs: Iterable[Run | str | Path],
    out: str | Path,
    kind: str = "accuracy",
    x: str = "rounds",
    target: float | None = None,
    smooth: int = 1,
    reference: str | None = None,
    field: str | None = None,
    client: int | None = None,
) -> Path:
    """Draw runs to a PDF, PNG or SVG file, by its ending, and return it.

    `x` is what curves are drawn against; `target` an accuracy to mark (or, for `kind="target"`, to pay for);
    `smooth` an odd number of evaluations to average over; `reference` the method others are held against;
    `field` the setting that `kind="sweep"` varies, which of the `notes` or `client-notes`, a `heatmap`'s columns
    (architectures, clients, classes), or what a `tsne` lays out (features, prototypes, vectors);
    `client` the one whose `confusion`, `client-curves` or `client-notes` are drawn, else those of all.
    """
    file = check_output(out)
    if kind not in KINDS:
        raise unknown("kind of figure", kind, KINDS)
    if x not in AXES:
        raise unknown("axis", x, AXES)
    groups = group_runs(run if isinstance(run, Run) else read_run(run) for run in runs)
    options = Options(x=x, target=target, smooth=smooth, reference=reference, field=field, client=client)
    with for_print():
        return save(KINDS[kind](groups, options), file)
