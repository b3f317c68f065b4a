"""Figures for print: every kind in every format, contents and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

from potluck.analysis.comparison import compare
from potluck.analysis.groups import Group, arrange_groups, group_runs
from potluck.analysis.representations import tsne
from potluck.core.errors import PotluckError
from potluck.report.data import report_data
from potluck.report.feature_figures import plot_cka, plot_mean_cka, plot_tsne
from potluck.report.figures import KINDS, plot
from potluck.report.style import FigureOptions, method_style, name_list, name_map, print_style
from potluck.runs.read import read_run
from support.synthetic_runs import make_run

OPTIONS: dict[str, dict[str, Any]] = {"target": {"target": 0.5}, "sweep": {"field": "partition"}}
FEATURE_KINDS = {"cka", "cka-stages", "tsne"}
SIGNATURES = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}


def groups_of(paths: list[Path]) -> list[Group]:
    return group_runs(read_run(path) for path in paths)


def drawn(kind: str, paths: list[Path], **options: Any) -> Figure:
    draw: Callable[..., Figure] = KINDS[kind]
    return draw(groups_of(paths), FigureOptions(**options))


@pytest.mark.parametrize(
    "kind", sorted(set(KINDS) - FEATURE_KINDS - {"notes", "client-notes", "gradient-norm"})
)
def test_every_kind_is_drawn(compared: list[Path], tmp_path: Path, kind: str) -> None:
    runs = compared[:1] if kind in ("client-curves", "confusion") else compared
    file = plot(runs, tmp_path / "sub" / "figure.png", kind=kind, **OPTIONS.get(kind, {}))
    pixels = np.asarray(Image.open(file).convert("L"))
    assert pixels.min() < 128 < pixels.max()  # something is drawn, on white


@pytest.mark.parametrize("ending", sorted(SIGNATURES))
@pytest.mark.parametrize("kind", ["accuracy", "architectures"])
def test_every_format_is_written(compared: list[Path], tmp_path: Path, kind: str, ending: str) -> None:
    file = plot(compared, tmp_path / f"figure{ending}", kind=kind)
    assert file.read_bytes().startswith(SIGNATURES[ending])


@pytest.mark.parametrize("ending", [".pdf", ".svg"])
def test_the_same_runs_give_the_same_bytes(compared: list[Path], tmp_path: Path, ending: str) -> None:
    files = [plot(compared, tmp_path / f"{n}{ending}").read_bytes() for n in (1, 2)]
    assert files[0] == files[1]


def test_curves_show_percent_target_and_a_look_per_method(compared: list[Path]) -> None:
    axes = drawn("accuracy", compared, target=0.5).axes[0]
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert [line.get_label() for line in lines] == ["fedavg", "fedgh", "fedhe"]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 3
    first = read_run(compared[0]).curve().y + read_run(compared[1]).curve().y
    np.testing.assert_allclose(lines[0].get_ydata(), 50 * first)  # the mean of two seeds, in %
    assert list(axes.lines[-1].get_ydata()) == [50, 50]
    assert len(axes.collections) == 3  # a band for each


def test_axes_have_units_that_keep_numbers_short(compared: list[Path]) -> None:
    assert drawn("accuracy", compared, x="bytes").axes[0].get_xlabel() == "traffic (MiB)"
    assert drawn("accuracy", compared, x="seconds").axes[0].get_xlabel() == "time (seconds)"
    assert drawn("accuracy", compared, x="virtual_seconds").axes[0].get_xlabel() == "simulated time (minutes)"
    line = drawn("accuracy", compared[:1], x="bytes").axes[0].lines[0]
    np.testing.assert_allclose(line.get_xdata()[-1], read_run(compared[0]).axis("bytes")[-1] / 2**20)


def test_smoothing_is_applied(compared: list[Path]) -> None:
    raw = drawn("accuracy", compared[:1]).axes[0].lines[0].get_ydata()
    smoothed = drawn("accuracy", compared[:1], smooth=3).axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(smoothed[5], np.mean(raw[4:7]))


def test_difference_chart_states_the_share_of_gaining_clients(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, method=name, clients=4, summary={"client_accuracy": values})
        for name, values in (("a", [0.5, 0.5, 0.5, 0.5]), ("b", [0.6, 0.7, 0.8, 0.4]))
    ]
    axes = drawn("difference", runs).axes[0]
    assert axes.get_legend().get_texts()[0].get_text() == "b: 75 % better"
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [-10, 10, 20, 30])
    chart = drawn("difference", runs, reference="b").axes[0]
    assert chart.get_legend().get_texts()[0].get_text() == "a: 25 % better"


def test_bubble_areas_are_proportional_to_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path, clients=2, summary={"class_counts": [[100, 0], [25, 50]]})
    points = drawn("bubbles", [run]).axes[0].collections[0]
    assert points.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    sizes = points.get_sizes()
    np.testing.assert_allclose(sizes / sizes[0], [1, 0.25, 0.5])


def test_bubbles_name_the_clients_where_there_is_room(tmp_path: Path) -> None:
    for count, named in ((3, True), (40, False)):
        axes = drawn("bubbles", [make_run(tmp_path, clients=count)]).axes[0]
        shown = [label.get_text() for label in axes.get_xticklabels()]
        assert (shown == [f"site-{number}" for number in range(count)]) is named


def test_target_bars_name_methods_below_the_target(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, method="high", level=0.9), make_run(tmp_path, method="low", level=0.3)]
    figure = drawn("target", runs, target=0.7)
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["rounds\nto 70 %", "MiB\nto 70 %", "GFLOP\nto 70 %"]
    assert " not reached" in [text.get_text() for text in figure.axes[0].texts]


def test_traffic_over_several_magnitudes_is_logarithmic(compared: list[Path], tmp_path: Path) -> None:
    assert drawn("traffic", compared).axes[0].get_xscale() == "linear"  # 1,010 to 20,000
    large = make_run(tmp_path, method="large", floats_up=10**7)
    assert drawn("traffic", [*compared, large]).axes[0].get_xscale() == "log"


@pytest.mark.parametrize(
    ("kind", "factor"),
    [(kind, factor) for kind in ("pareto", "traffic", "gradient-norm") for factor in (200, 10**6)]
    + [("pareto", 12), ("gradient-norm", 12)],
)
def test_log_axes_have_plain_numbers(tmp_path: Path, kind: str, factor: int) -> None:
    runs = [
        make_run(tmp_path, method=name, level=level, floats_up=floats, floats_down=floats)
        for name, level, floats in (("small", 0.5, 1000), ("large", 0.6, 1000 * factor))
    ]
    for run in runs:
        rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        for number, row in enumerate(rows):
            row["gradient_norm"] = 3.0 * factor ** (-number / len(rows))
        (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with print_style():
        figure = drawn(kind, runs)
        figure.draw_without_rendering()
    axes = figure.axes[0]
    axis = axes.yaxis if kind == "gradient-norm" else axes.xaxis
    assert axis.get_scale() == "log"
    assert not [text.get_text() for text in figure.findobj(Text) if "$" in text.get_text()]
    low, high = axis.get_view_interval()
    labels = [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert len(labels) >= 2
    assert all(float(label.replace(",", "").replace("−", "-")) for label in labels)


def test_names_are_text_whatever_they_hold(tmp_path: Path) -> None:
    run = make_run(tmp_path, method="$\\frac{broken$ & <b>")
    assert b"broken$ &amp; &lt;b&gt;" in plot([run], tmp_path / "f.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kind": "acuracy"}, "Did you mean 'accuracy'"),
        ({"x": "minutes"}, "Unknown axis 'minutes'"),
        ({"smooth": 2}, "smooth=2"),
        ({"kind": "target"}, "pass --target 0.8 for 80 %"),
        ({"kind": "target", "target": 0.99}, "choose a lower one"),
        ({"kind": "sweep"}, "pass --field partition"),
        ({"kind": "difference", "reference": "nobody"}, "reference method 'nobody'"),
        ({"kind": "client-curves"}, "draws one method, not 3"),
        ({"out": "figure.docx"}, "figure format 'docx'"),
        ({"out": "figure"}, "figure format 'figure'"),
    ],
)
def test_undrawable_figure_is_one_sentence(
    compared: list[Path], tmp_path: Path, arguments: dict[str, Any], sentence: str
) -> None:
    out = tmp_path / str(arguments.pop("out", "figure.png"))
    with pytest.raises(PotluckError, match=sentence):
        plot(compared, out, **arguments)
    assert not out.exists()


def test_notes_are_drawn_where_a_method_has_some(compared: list[Path], tmp_path: Path) -> None:
    noted, two = (
        make_run(tmp_path, method="pfedafm", rounds=4, notes=("alpha",)),
        make_run(tmp_path, method="mine", notes=("alpha", "beta")),
    )
    axes = drawn("notes", [*compared, noted]).axes[0]
    (line,) = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert line.get_label() == "pfedafm"
    assert line.get_ydata().tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert axes.get_ylabel() == "alpha, mean over clients"
    assert plot([noted, two], tmp_path / "f.png", kind="notes", field="beta").exists()
    for runs, options, sentence in (
        ([noted, two], {}, r"several notes: choose one with --field \(from Python: field=\): alpha, beta"),
        ([noted], {"field": "alpa"}, "Unknown note 'alpa'. Did you mean 'alpha'"),
        (compared, {}, "No run has notes"),
    ):
        with pytest.raises(PotluckError, match=sentence):
            plot(runs, tmp_path / "none.png", kind="notes", **options)


def test_client_notes_are_drawn_as_one_line_per_client(compared: list[Path], tmp_path: Path) -> None:
    run = make_run(tmp_path, method="pfedafm", clients=3, rounds=4, notes=("alpha",), asynchronous=True)
    axes = drawn("client-notes", [run]).axes[0]
    shown = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert shown == {
        "site-0 (cnn-1)": pytest.approx([1, 1 / 2, 1 / 3, 1 / 4]),
        "site-1 (cnn-2)": pytest.approx([2, 1, 2 / 3, 1 / 2]),
        "site-2 (cnn-3)": pytest.approx([3, 3 / 2, 1, 3 / 4]),
    }
    assert axes.get_ylabel() == "alpha"
    older = make_run(tmp_path, method="pfedafm", seed=1, notes=("alpha",), notes_of_clients=False)
    assert plot([run], tmp_path / "one.png", kind="client-notes", client=2).exists()
    for runs, options, sentence in (
        ([run], {"client": 7}, "Unknown client '7'"),
        ([run], {"field": "alfa"}, "Unknown note 'alfa'. Did you mean 'alpha'"),
        (
            [older],
            {},
            "only means over clients; run the method again with this version, or draw kind 'notes'",
        ),
        (compared[:1], {}, "No run has notes: choose another kind"),
        (compared, {}, "draws one method, not 3"),
    ):
        with pytest.raises(PotluckError, match=sentence):
            plot(runs, tmp_path / "none.png", kind="client-notes", **options)


@pytest.mark.parametrize("kind", ["bubbles", "difference"])
def test_one_unfinished_run_is_drawn_or_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path, finished=False)
    assert plot([run], tmp_path / "a.png").exists()
    with pytest.raises(PotluckError, match=f"kind '{kind}' needs"):
        plot([run], tmp_path / "b.png", kind=kind)


def test_matplotlibs_own_settings_are_left_alone(compared: list[Path], tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    plot(compared, tmp_path / "f.png")
    assert dict(matplotlib.rcParams) == before


def test_colours_stay_apart_for_colour_blind_readers() -> None:
    """Viénot's simulation of deuteranopia and protanopia in linear light keeps the first six apart."""
    simulations = {
        "deuteranopia": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
        "protanopia": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    }
    for theme in ("light", "dark"):
        colours = [getattr(method_style(position), theme) for position in range(6)]
        srgb = np.asarray([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colours])
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        for name, matrix in simulations.items():
            seen = np.clip(linear @ np.asarray(matrix).T, 0, 1) ** (1 / 2.2)
            distances = np.linalg.norm(seen[:, None] - seen[None], axis=2) + 10 * np.eye(6)
            assert distances.min() > 0.08, (theme, name, np.unravel_index(distances.argmin(), (6, 6)))


def test_feature_figures(tmp_path: Path) -> None:
    features = [np.random.default_rng(seed).normal(size=(12, 4)) for seed in range(3)]
    assert plot_cka(features, ["a", "b", "c"], tmp_path / "cka.pdf", "stage 3").stat().st_size > 1000
    stages = {"fedavg": {"stage 1": features, "stage 2": features}, "fedin": {"stage 1": features[:2]}}
    assert plot_mean_cka(stages, tmp_path / "mean.png").stat().st_size > 1000
    embedding = tsne({"a": features[0], "b": features[1]}, {"a": [0, 1] * 6, "b": [1, 2] * 6})
    assert plot_tsne(embedding, tmp_path / "tsne.svg").read_bytes().startswith(b"<?xml")
    assert plot_tsne(tsne({"a": features[0]}), tmp_path / "plain.png").stat().st_size > 1000


@pytest.mark.parametrize("count", [1, 4, 9])
@pytest.mark.parametrize(
    "kind", sorted(set(KINDS) - FEATURE_KINDS - {"notes", "client-notes", "gradient-norm"})
)
def test_every_kind_fits_one_column(tmp_path: Path, kind: str, count: int) -> None:
    """Every figure is 3.4 inches wide, and no text is outside it or overlaps another tick label or the legend."""
    names = (
        "standalone",
        "fedproto",
        "fedgh",
        "pfedafm",
        "fedavg",
        "lg-fedavg",
        "fedl2g-f",
        "inclusivefl",
        "fd",
    )
    single = kind in ("client-curves", "confusion")
    architectures = tuple(f"fedhe-cnn-{number}" for number in range(1, 6))
    runs = [
        make_run(tmp_path, method=name, architectures=architectures, rounds=4)
        for name in names[: 1 if single else max(2, count) if kind == "difference" else count]
    ]
    with print_style():
        figure = drawn(kind, runs, **OPTIONS.get(kind, {}))
        figure.draw_without_rendering()
        assert figure.get_size_inches()[0] == pytest.approx(3.4)
        page = figure.bbox.padded(1)
        for axes in figure.axes:
            assert (
                axes.get_window_extent().width > 0.15 * figure.bbox.width or axes.get_label() == "<colorbar>"
            )
            ticks = [each for each in axes.get_xticklabels() if each.get_text() and each.get_visible()]
            assert all(_inside(each.get_window_extent(), page) for each in ticks if _on_axis(axes, each))
            if all(each.get_rotation() == 0 for each in ticks):
                boxes = [each.get_window_extent() for each in ticks]
                assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
        for box in figure.legends:
            assert _inside(box.get_window_extent(), page)
            assert not any(box.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)


def _inside(box: Bbox, page: Bbox) -> bool:
    return bool(box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1)


def _on_axis(axes: Axes, tick: Text) -> bool:
    low, high = sorted(axes.get_xlim())
    return low <= tick.get_position()[0] <= high


def test_order_and_names_change_labels_but_no_colours(compared: list[Path], tmp_path: Path) -> None:
    groups = groups_of(compared)
    arranged = arrange_groups(groups, ["fedhe", "fedgh"], {"fedgh": "FedGH"})
    assert [group.label for group in arranged] == ["fedhe", "FedGH", "fedavg"]
    plain, renamed = (
        {
            line.get_label(): line.get_color()
            for line in KINDS["accuracy"](each, FigureOptions()).axes[0].lines
        }
        for each in (groups, arranged)
    )
    assert renamed["FedGH"] == plain["fedgh"]
    assert renamed["fedhe"] == plain["fedhe"]
    file = plot(compared, tmp_path / "f.svg", order=["fedhe"], names={"fedgh": "FedGH"})
    assert "FedGH" in file.read_text()
    with pytest.raises(PotluckError, match="Unknown method 'fedg'. Did you mean 'fedgh'"):
        plot(compared, tmp_path / "x.svg", order=["fedg"])


def test_figures_have_the_colours_of_the_report(compared: list[Path]) -> None:
    comparison = compare([read_run(path) for path in compared], reference="fedhe", order=["fedgh"])
    page = {group["label"]: group["light"] for group in report_data(comparison)["groups"]}
    lines = drawn("accuracy", compared).axes[0].lines
    assert page == {line.get_label(): line.get_color() for line in lines if line.get_label() in page}
    assert list(page) == ["fedhe", "fedgh", "fedavg"]


def test_colours_and_reference_depend_on_no_order_of_arguments(tmp_path: Path) -> None:
    names = ("fedgh", "own", "standalone", "fedmd")
    runs = [read_run(make_run(tmp_path, method=name)) for name in names]
    pages = [
        report_data(compare(each, order=order))["groups"]
        for each, order in ((runs, ()), (runs[::-1], ()), (runs, ("fedmd", "fedgh")))
    ]
    colours = [{group["label"]: group["light"] for group in page} for page in pages]
    assert colours[0] == colours[1] == colours[2]
    ranked = ("standalone", "fedgh", "fedmd", "own")  # built-in order, own methods last
    assert colours[0] == {name: method_style(place).light for place, name in enumerate(ranked)}
    assert [page[0]["label"] for page in pages] == ["standalone"] * 3
    assert [group["label"] for group in pages[2]] == ["standalone", "fedmd", "fedgh", "own"]
    groups = arrange_groups(group_runs(runs), ["fedmd"])
    labels = [
        KINDS["difference"](groups, FigureOptions(reference=name)).axes[0].get_ylabel()
        for name in (None, "own")
    ]
    assert labels == ["points above standalone", "points above own"]


def test_without_standalone_the_first_given_method_is_the_reference(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path, method=name)) for name in ("fedmd", "fedgh")]
    assert [row.label for row in compare(runs, order=["fedgh"]).rows] == ["fedmd", "fedgh"]
    assert compare(runs, reference="fedgh").rows[0].label == "fedgh"


def test_names_are_read_from_the_command_line() -> None:
    assert name_map(["fedgh=FedGH, fd=FD", "fedhe=FedHe"]) == {"fedgh": "FedGH", "fd": "FD", "fedhe": "FedHe"}
    assert name_list(" fedgh,fd ") == ["fedgh", "fd"]
    with pytest.raises(PotluckError, match="--names 'fedgh' is not a pair"):
        name_map(["fedgh"])


def test_class_names_are_shown_where_recorded(tmp_path: Path) -> None:
    names = [f"species {number}" for number in range(10)]
    run = make_run(tmp_path, summary={"class_names": names})
    for kind, axis in (("confusion", "yaxis"), ("bubbles", "yaxis")):
        axes = drawn(kind, [run]).axes[0]
        shown = [label.get_text() for label in getattr(axes, axis).get_ticklabels()]
        assert shown == names, kind
    axes = drawn("heatmap", [run], field="classes").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    assert drawn("confusion", [run], client=3).axes[0].get_title() == "site-3"
    (group,) = report_data(compare([read_run(run)]))["groups"]
    assert group["classes"]["names"] == names
