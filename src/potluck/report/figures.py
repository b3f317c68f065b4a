"""Draw figures for papers: `plot(runs, "accuracy.pdf")` draws one kind of figure from one or several runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.analysis.groups import Group, arrange_groups, group_runs
from potluck.core.errors import unknown
from potluck.report import bar_figures, curve_figures, map_figures
from potluck.report.style import FigureOptions, check_output, print_style, save
from potluck.runs.read import read_run
from potluck.runs.run import AXES, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Draw = Callable[[list[Group], FigureOptions], "Figure"]


def _feature_figure(name: str) -> Draw:
    """Import torch only when a figure of features is drawn."""

    def draw(groups: list[Group], options: FigureOptions) -> Figure:
        from potluck.report import feature_figures

        function: Draw = getattr(feature_figures, name)
        return function(groups, options)

    return draw


KINDS: dict[str, Draw] = {
    "accuracy": curve_figures.accuracy,
    "loss": curve_figures.loss,
    "train-loss": curve_figures.train_loss,
    "train-ce": curve_figures.train_ce,
    "gradient-norm": curve_figures.gradient_norm,
    "loss-increase": curve_figures.loss_increases,
    "notes": curve_figures.notes,
    "client-curves": curve_figures.client_curves,
    "client-notes": curve_figures.client_notes,
    "clients": bar_figures.client_strip,
    "difference": bar_figures.difference,
    "bubbles": bar_figures.class_bubbles,
    "architectures": bar_figures.architectures,
    "traffic": bar_figures.traffic,
    "target": bar_figures.target,
    "sweep": bar_figures.sweep_curve,
    "pareto": map_figures.pareto,
    "heatmap": map_figures.heatmap,
    "confusion": map_figures.confusion,
    "cka": _feature_figure("cka"),
    "cka-stages": _feature_figure("cka_stages"),
    "tsne": _feature_figure("plot_features"),
}


def plot(
    runs: Iterable[Run | str | Path],
    out: str | Path,
    kind: str = "accuracy",
    *,
    x: str = "rounds",
    target: float | None = None,
    smooth: int = 1,
    reference: str | None = None,
    field: str | None = None,
    client: int | None = None,
    order: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> Path:
    """Draw runs to a PDF, PNG or SVG file, one column (3.4 in) wide, and return its path.

    `x` is what curves are drawn against; `target` an accuracy to mark (for `kind="target"`, the target itself);
    `smooth` an odd number of evaluations to average over; `reference` the method that others are compared with;
    `field` the setting that `kind="sweep"` varies, which of the `notes` or `client-notes`, a `heatmap`'s columns
    (architectures, clients, classes), or the content of a `tsne` (features, prototypes, vectors); `client` selects
    the client of `confusion`, `client-curves` or `client-notes`. `order` lists the methods that come first, `names`
    maps methods to labels. Colours are those of the report of the same runs.
    """
    file = check_output(out)
    if kind not in KINDS:
        raise unknown("kind of figure", kind, KINDS)
    if x not in AXES:
        raise unknown("axis", x, AXES)
    groups = group_runs(run if isinstance(run, Run) else read_run(run) for run in runs)
    options = FigureOptions(x, target, smooth, reference, field, client, names or {})
    with print_style():
        return save(KINDS[kind](arrange_groups(groups, order, names), options), file)
