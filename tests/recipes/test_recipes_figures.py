"""Figures of recipes: what is drawn are the numbers of the runs, and mistakes are named."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from potluck.analysis.curves import smooth
from potluck.analysis.representations import linear_cka
from potluck.recipes.draw import draw_points
from potluck.recipes.points import LOSS, Point, figure_points, read_points, to_csv
from potluck.recipes.recipe import find_recipe, recipe_names
from potluck.recipes.reproduce import Reproduction, plan, run_all, run_path
from potluck.recipes.tables import scale_lines
from potluck.report.style import print_style
from potluck.runs.read import read_run
from potluck.runs.restore import restore_run
from potluck.runs.run import Run

FIGURES = {
    *(f"fedgh-fig{number}" for number in range(2, 6)),
    *(f"fedhe-fig{number}" for number in range(3, 9)),
    *(f"pfedafm-fig{number}" for number in range(3, 10)),
    *(f"fedin-fig{number}" for number in range(4, 10)),
    *(f"fedl2g-fig{number}" for number in (1, 3, 4, 5, 6)),
}

OWN = """
title = "Mine"
paper = "Somebody, 2026."

[base]
data = { limit = 200 }
partition = { rule = "iid", clients = 3 }
models = { names = ["small-mlp"] }
training = { epochs = 1 }
schedule = { rounds = 3 }
evaluate = { select = "test" }
engine = { name = "serial", checkpoint_every = 0 }

[settings]
slow = { training = { lr = 0.001 } }
fast = { training = { lr = 0.1 } }

[rows]
Standalone = { method = "standalone", paper = "50.0 ?" }
pFedAFM = { method = "pfedafm", settings = { models = { shared = "small-mlp" } } }

[figure]
across = 2

[figure.panels.rates]
kind = "sweep"
x = "local rate"
scale = "log"
points = { "0.001" = "slow", "0.1" = "fast" }
lines = { "by hand, printed" = 42.0 }

[figure.panels.curve]
kind = "curves"
setting = "fast"
smooth = 3
target = 0.5

[figure.panels.increase]
kind = "curves"
setting = "fast"
value = "loss_increase"
along = "samples"
y = "loss increase"

[figure.panels.bars]
kind = "bars"
columns = ["fast"]

[figure.panels.each]
kind = "clients"
setting = "fast"
rows = ["Standalone"]
clients = [0, 2]

[figure.panels.halves]
kind = "groups"
setting = "fast"
groups = { "0 and 1" = [0, 1], "2" = [2] }

[figure.panels.weights]
kind = "notes"
setting = "fast"
rows = ["pFedAFM"]
value = "alpha"
clients = [1]

[figure.panels.gain]
kind = "difference"
setting = "fast"
rows = ["pFedAFM", "Standalone"]
"""


NEVER = """[columns]
slow = { setting = "slow", measure = "best" }
fast = { setting = "fast", measure = "best" }
never = { setting = "fast", measure = "rounds", target = 1.0 }

[rows]
"""

NETWORKS = """
title = "Mine"
paper = "Somebody, 2026."

[base]
data = { limit = 200 }
partition = { rule = "iid", clients = 3 }
models = { names = ["mini-resnet-1", "mini-resnet-2"] }
training = { epochs = 1 }
schedule = { rounds = 2 }
evaluate = { protocol = "shared" }
engine = { name = "serial", checkpoint_every = 1 }

[settings.digits]

[rows]
FedL2G-f = { method = "fedl2g-f", options = { warm_up = 1 } }

[figure]
setting = "digits"
rows = ["FedL2G-f"]

[figure.panels]
stages = { kind = "cka-stages" }
pairs = { kind = "cka", stage = -2, clients = [0, 2, 7] }
layout = { kind = "tsne", label = 3, clients = [0, 2] }
vectors = { kind = "vectors" }
samples = { kind = "samples" }
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reproduction, Path]:
    """A small reproduction with a panel of every kind, over two seeds."""
    place = tmp_path_factory.mktemp("figure")
    (place / "mine.toml").write_text(OWN)
    table = plan(find_recipe(str(place / "mine.toml")), "paper", seeds=(0, 1))
    run_all(table, place / "r", watch=lambda label: nullcontext([]), keep=lambda table: None)
    assert table.failures == {}
    return table, place / "r"


@pytest.fixture(scope="module")
def points(made: tuple[Reproduction, Path]) -> list[Point]:
    table = figure_points(*made)
    assert (table.empty, table.problems) == ([], [])
    return table.points


def runs_of(made: tuple[Reproduction, Path], row: str, setting: str) -> list[Run]:
    return [read_run(run_path(made[1], (row, setting, seed))) for seed in (0, 1)]


def line(points: list[Point], panel: str, series: str) -> list[Point]:
    return [point for point in points if (point.panel, point.series) == (panel, series)]


def test_every_figure_has_its_recipe_and_no_other_recipe_has_one():
    with_figure = {name for name in recipe_names() if find_recipe(name).figure}
    assert with_figure == FIGURES


def test_a_sweep_shows_the_cells_of_the_table(made, points):
    values = line(points, "rates", "Standalone")
    assert [point.x for point in values] == [0.001, 0.1]
    assert [point.paper for point in values] == ["50.0", ""]
    for point, setting in zip(values, ("slow", "fast"), strict=True):
        best = [100 * max(run.curve().y) for run in runs_of(made, "Standalone", setting)]
        assert point.y == pytest.approx(np.mean(best))
        assert point.std == pytest.approx(np.std(best, ddof=1))


def test_a_curve_shows_the_mean_of_every_round_over_seeds(made, points):
    values = line(points, "curve", "pFedAFM")
    curves = np.array([100 * run.curve().y for run in runs_of(made, "pFedAFM", "fast")])
    assert [point.x for point in values] == [1, 2, 3]
    assert [point.y for point in values] == pytest.approx(curves.mean(axis=0).tolist())
    assert [point.std for point in values] == pytest.approx(curves.std(axis=0, ddof=1).tolist())


def test_a_loss_increase_is_above_the_least_loss_before_and_stands_at_the_samples_so_far(made, points):
    values = line(points, "increase", "Standalone")
    losses = np.array([run.curve(LOSS).y for run in runs_of(made, "Standalone", "fast")])
    by_hand = [np.mean(losses[:, 1] - losses[:, 0]), np.mean(losses[:, 2] - losses[:, :2].min(axis=1))]
    assert [point.y for point in values] == pytest.approx(by_hand)
    samples = [record["trained_samples"] for record in runs_of(made, "Standalone", "fast")[0].rounds]
    assert [point.x for point in values] == [sum(samples[:2]), sum(samples)]


def test_bars_groups_and_single_clients(made, points):
    assert [(point.series, point.x) for point in points if point.panel == "bars"] == [
        ("Standalone", "fast"),
        ("pFedAFM", "fast"),
    ]
    first = runs_of(made, "Standalone", "fast")[0]
    accuracy = {
        (row["client"], row["round"]): 100 * row["accuracy"]
        for row in first.client_rows()
        if not row.get("final")
    }
    values = line(points, "each", "2: small-mlp")
    assert {(2, point.x): point.y for point in values} == pytest.approx(
        {key: value for key, value in accuracy.items() if key[0] == 2}
    )
    assert not line(points, "each", "1: small-mlp")
    both = runs_of(made, "Standalone", "fast")
    by_seed = [
        {
            (row["client"], row["round"]): 100 * row["accuracy"]
            for row in run.client_rows()
            if not row.get("final")
        }
        for run in both
    ]
    mean = np.mean([[each[client, 1] for client in (0, 1)] for each in by_seed])
    assert line(points, "halves", "Standalone, 0 and 1")[0].y == pytest.approx(mean)


def test_notes_and_differences(made, points):
    values = line(points, "weights", "client 1")
    recorded = [
        record["client_notes"]["alpha"][record["participants"].index(1)]
        for record in runs_of(made, "pFedAFM", "fast")[0].rounds
    ]
    assert [point.y for point in values] == pytest.approx(recorded)
    values = line(points, "gain", "pFedAFM − Standalone")
    pairs = zip(runs_of(made, "pFedAFM", "fast"), runs_of(made, "Standalone", "fast"), strict=True)
    gains = [100 * (first.client_accuracy[2] - second.client_accuracy[2]) for first, second in pairs]
    assert [point.x for point in values] == [0, 1, 2]
    assert values[2].y == pytest.approx(np.mean(gains))


def test_figure_draws_the_exported_points(made, points):
    with print_style():
        figure = draw_points(made[0].recipe, points)
    axes = {each.get_title().partition(":")[0]: each for each in figure.axes}
    shown = {each.get_label(): each for each in axes["rates"].lines}
    assert shown["Standalone"].get_xydata().tolist() == [
        [point.x, point.y] for point in line(points, "rates", "Standalone")
    ]
    hollow = [
        each for each in axes["rates"].lines if each.get_fillstyle() == "none" and len(each.get_xdata())
    ]
    assert [each.get_xydata().tolist() for each in hollow] == [[[0.001, 50.0]]]
    assert set(shown["by hand, printed"].get_ydata()) == {42.0}
    assert axes["rates"].get_xscale() == "log"
    raw = [point.y for point in line(points, "curve", "pFedAFM")]
    drawn = {each.get_label(): each.get_ydata() for each in axes["curve"].lines}
    assert drawn["pFedAFM"].tolist() == pytest.approx(smooth(raw, 3).tolist())
    assert any(
        np.allclose(each.get_ydata(), raw) for each in axes["curve"].lines if each.get_color() == "#BBBBBB"
    )
    assert [50.0, 50.0] in [list(each.get_ydata()) for each in axes["curve"].lines]
    heights = [bar.get_height() for bar in axes["bars"].patches]
    assert heights == pytest.approx([point.y for point in points if point.panel == "bars"])
    better = sum(point.y > 0 for point in line(points, "gain", "pFedAFM − Standalone"))
    assert axes["gain"].get_title() == f"gain: {100 * better / 3:.0f} % better"
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"Standalone", "pFedAFM", "by hand, printed", "printed", "client 1"} <= legend


def test_networks_are_compared_on_common_inputs(tmp_path: Path):
    (tmp_path / "mine.toml").write_text(NETWORKS)
    table = plan(find_recipe(str(tmp_path / "mine.toml")), "paper")
    run_all(table, tmp_path, watch=lambda label: nullcontext([]), keep=lambda table: None)
    pictured = figure_points(table, tmp_path)
    assert (pictured.empty, pictured.problems) == ([], [])
    path = run_path(tmp_path, ("FedL2G-f", "digits", 0))
    ended = restore_run(path)
    shared = ended.plan.federation.shared_test
    clients = [ended.client(index) for index in range(3)]
    outputs = []
    for me in clients:  # stem and first stages by hand, on the first samples of the shared test set
        x = shared.take(slice(0, 200))[0]
        each = []
        me.model.eval()
        with torch.no_grad():
            for stage in me.model.stages:
                x = stage(x)
                each.append(x)
        outputs.append(each[1:])
    pairs = {(point.series, point.x): point.y for point in pictured.points if point.panel == "pairs"}
    names = ["0: mini-resnet-1", "2: mini-resnet-1"]  # there is no client 7
    assert set(pairs) == {(first, two) for first in names for two in names}
    assert pairs[names[0], names[1]] == pytest.approx(linear_cka(outputs[0][-2], outputs[2][-2]))
    assert pairs[names[0], names[0]] == pytest.approx(1)
    stages = line(pictured.points, "stages", "FedL2G-f")
    assert [point.x for point in stages] == ["0", "1", "2"]
    for number, point in enumerate(stages):
        of_pairs = [linear_cka(outputs[a][number], outputs[b][number]) for a, b in ((0, 1), (0, 2), (1, 2))]
        assert point.y == pytest.approx(np.mean(of_pairs))
    layout = [point for point in pictured.points if point.panel == "layout"]
    assert {point.label for point in layout} == {"3"}
    assert len(layout) == 2 * min(40, int((shared.labels == 3).sum()))
    vectors = [point for point in pictured.points if point.panel == "vectors"]
    assert {point.series for point in vectors} == {"sent by the server", "mean over the clients"}
    assert sorted(point.label for point in vectors if point.series == "mean over the clients") == list(
        "0123456789"
    )
    counts = read_run(path).class_counts
    assert {(point.series, point.x): point.y for point in pictured.points if point.panel == "samples"} == {
        (str(label), client): counts[client, label]
        for client in range(3)
        for label in range(10)
        if counts[client, label]
    }
    with print_style():
        figure = draw_points(table.recipe, pictured.points)
    axes = {each.get_title(): each for each in figure.axes}
    assert axes["pairs"].images[0].get_array().tolist()[0][1] == pytest.approx(pairs[names[0], names[1]])
    offsets = [tuple(place) for each in axes["layout"].collections for place in each.get_offsets().tolist()]
    assert sorted(offsets) == sorted((point.x, point.y) for point in layout)
    sizes = {tuple(place): size for each in axes["samples"].collections
             for place, size in zip(each.get_offsets().tolist(), each.get_sizes().tolist(), strict=True)}  # fmt: skip
    most = np.unravel_index(counts.argmax(), counts.shape)
    assert sizes[tuple(map(float, most))] == max(sizes.values())


def test_targets_are_lower_at_the_small_scale():
    recipe = find_recipe("pfedafm-fig5")
    assert [recipe.columns["c10-rounds"].target_at(scale) for scale in ("paper", "full", "small")] == [
        0.9,
        0.9,
        0.7,
    ]
    lines = " ".join(scale_lines(plan(recipe, "small")))
    assert "CIFAR-10 rounds 90 → 70 %" in lines
    assert "Targets" not in " ".join(scale_lines(plan(recipe, "paper")))


def test_points_survive_the_file(points, tmp_path: Path):
    more = [*points, Point("=1+1", "a, b", "name", math.nan, paper="41.7±.3")]
    (tmp_path / "figure.csv").write_text(to_csv(more), encoding="utf-8")
    assert "'=1+1" in (tmp_path / "figure.csv").read_text()
    assert repr(read_points(tmp_path / "figure.csv")) == repr(more)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("fedhe-fig6", ()),
        ("pfedafm-fig8", ("--columns", "c10-0.1,c10-1,c100-1")),
        ("fedgh-fig5", ("--rows", "rate 0.01,rate 1")),
        *(pytest.param(name, (), marks=pytest.mark.slow) for name in sorted(FIGURES)),
    ],
)
def test_the_command_writes_the_figure_and_names_it(
    potluck, tmp_path: Path, name: str, more: tuple[str, ...]
):
    code, out, err = potluck("reproduce", name, *more, "--scale", "smoke", "--out", "r", "-q")
    assert (code, err) == (0, "")
    assert "Figure: r/figure.pdf, .png; its data: .csv" in out
    recipe = find_recipe(name)
    assert recipe.figure is not None
    empty = {line.split("'")[1] for line in out.splitlines() if " is empty: " in line}
    shown = {point.panel for point in read_points(tmp_path / "r/figure.csv")}
    assert shown | empty == set(recipe.figure.panels)
    assert {path.name for path in (tmp_path / "r").glob("figure.*")} == {
        *("figure.pdf", "figure.png", "figure.csv")
    }
    assert f"![{recipe.title}](figure.png)" in (tmp_path / "r/reproduction.md").read_text()
    report = (tmp_path / "r/report.html").read_text()
    assert "data:image/png;base64," in report
    assert f"{recipe.title}. The data are in figure.csv." in report


def test_a_panel_that_cannot_be_drawn_is_named_and_the_others_are_drawn(potluck, tmp_path: Path):
    text = (
        OWN.replace('value = "alpha"', 'value = "beta"')
        .replace("[rows]", NEVER)
        .replace('"50.0 ?"', '"50.0 ? ?"')
    )
    (tmp_path / "mine.toml").write_text(text + '[figure.panels.never]\nkind = "bars"\ncolumns = ["never"]\n')
    words = ("reproduce", "mine.toml", "--scale", "paper", "--columns", "fast,never", "--out", "r", "-q")
    code, out, _ = potluck(*words)
    assert code == 1
    assert "Panel 'weights' is not drawn: Unknown note of pFedAFM 'beta'. Choose one of: alpha." in out
    assert "Panel 'never' is empty: nothing was measured yet, or no target reached." in out
    assert {point.panel for point in read_points(tmp_path / "r/figure.csv")} >= {"rates", "curve", "gain"}


def test_a_figure_takes_runs_and_printed_numbers_of_a_table():
    figure, table = find_recipe("fedgh-fig2"), find_recipe("fedgh-table1")
    assert list(figure.rows) == list(table.rows)
    assert list(figure.columns) == ["c10-n10", "c100-n10"]
    assert figure.printed("FedGH", "c100-n10") == table.printed("FedGH", "c100-n10") == "73.62"
    own, printed = plan(figure, "paper").work, plan(table, "paper").work
    assert all(own[key] == printed[key] for key in own)
    assert "`fedgh-table1`" in figure.notes[0]


def test_a_figure_with_settings_of_its_own_takes_base_and_rows():
    figure, table = find_recipe("fedgh-fig3"), find_recipe("fedgh-table3")
    own, base = plan(figure, "paper").work, plan(table, "paper").work
    assert own["FedGH", "c10-2", 0] == base["FedGH", "cifar10", 0]
    assert own["FedGH", "c100-70", 0].partition.rule == "pathological:70"
    assert list(figure.rows) == ["LG-FedAvg", "FedProto", "FedGH"]
    assert figure.printed("FedGH", "c10-2") == "97.60"
    assert figure.printed("FedGH", "c10-4") == "?"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('setting = "fast"\nsmooth', 'setting = "fats"\nsmooth', "panel 'curve' is of the setting 'fats'"),
        ('rows = ["pFedAFM"]', 'rows = ["FedAFM"]', "panel 'weights' shows the row 'FedAFM'"),
        ('columns = ["fast"]', 'columns = ["none"]', "panel 'bars' shows the column 'none'"),
        ('"0.001" = "slow", "0.1" = "fast"', '"0.1" = "quick"', "point of 'quick', which is neither a column nor a row"),
        ('"0.001" = "slow", "0.1" = "fast"', '"0.1" = "pFedAFM"', "needs columns for its lines"),
        ('kind = "bars"', 'kind = "bras"', "figure.panels.bars.kind"),
        ("smooth = 3", "smooth = 4", "smooth = 4 is not an odd number"),
        ("smooth = 3", "smoth = 3", "'smoth'. Did you mean 'smooth'?"),
        ('rows = ["pFedAFM", "Standalone"]', 'rows = ["pFedAFM"]', "'difference' needs two rows"),
        ('rows = ["pFedAFM"]', 'rows = []', "shows one row; name it in rows"),
        ('title = "Mine"', 'title = "Mine"\nlike = "fedgh-table9"', "Unknown recipe in like 'fedgh-table9'"),
        ('title = "Mine"', 'title = "Mine"\nlike = { recipe = "fedgh-table3", rows = ["FedHG"] }', "no row 'FedHG'"),
        ('title = "Mine"', 'title = "Mine"\nlike = 3', "like = 3 is neither"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_figure_is_named(potluck, tmp_path: Path, old: str, new: str, says: str):
    assert old in OWN
    (tmp_path / "mine.toml").write_text(OWN.replace(old, new))
    code, _, err = potluck("reproduce", "mine.toml", "--scale", "paper")
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_the_list_shows_figures_and_their_panels(potluck):
    code, out, _ = potluck("recipes")
    assert code == 0
    assert "fedgh-fig3            FedGH, Figure 3" in out
    code, out, _ = potluck("recipes", "fedl2g-fig1")
    assert code == 0
    assert "loss increase: loss increase against round; a value of every round, a line per row" in out
