"""The recipes that come with Potluck: every cell is an experiment, every printed number is the paper's."""

from __future__ import annotations

import pytest

from potluck.data import parse_partition, parse_split
from potluck.data.augment import augmentation
from potluck.data.load import SOURCES
from potluck.models import resolve_models
from potluck.recipes.recipe import find_recipe, recipe_names
from potluck.recipes.reproduce import plan
from potluck.recipes.scale import Scale

TABLES = {
    *("fedgh-table1", "fedgh-table3", "fedhe-homogeneous", "fedhe-heterogeneous"),
    *("pfedafm-table2", "pfedafm-table3", *(f"fedin-table{number}" for number in (1, 2, 3, 4, 5, 7, 8))),
    *(f"fedl2g-table{number}" for number in (1, 2, 3, 4)),
    *("fedgh-ablation", "fedgh-fig5", "pfedafm-ablation"),
}
UNTRAINED = {"fedl2g-fig5", "fedl2g-fig6"}  # partitions alone, of all samples
COUNTED = {"fedgh-traffic", "fedhe-traffic", "fedin-table6", "pfedafm-traffic"}


def test_every_table_has_its_recipe():
    figures = {name for name in recipe_names() if find_recipe(name).figure}
    assert set(recipe_names()) - figures == (TABLES | COUNTED) - figures
    assert {name for name in recipe_names() if find_recipe(name).counted} == COUNTED


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
@pytest.mark.parametrize("name", recipe_names())
def test_every_cell_is_an_experiment_that_can_be_built(name: str, scale: Scale):
    table = plan(find_recipe(name), scale)
    for experiment in table.work.values():
        experiment.build_method()
        assert experiment.data.name in SOURCES
        parse_partition(experiment.partition.rule)
        parse_split(experiment.data.split)
        augmentation(experiment.data.augment)
        if experiment.models.names != ("auto",):
            resolve_models(experiment.models.names)
    measured = {(row, table.recipe.columns[column].setting) for row in table.rows for column in table.columns
                if table.recipe.printed(row, column) != "n/a"}  # fmt: skip
    assert measured == {(row, setting) for row, setting, _ in table.work}


@pytest.mark.parametrize("name", sorted({*recipe_names()} - COUNTED))
def test_scales_have_their_documented_sizes(name: str):
    recipe = find_recipe(name)
    assert plan(recipe, "paper").differs == {}
    smoke, small, paper = (plan(recipe, scale).work for scale in ("smoke", "small", "paper"))
    for key, as_printed in paper.items():
        quick, little = smoke[key], small[key]
        assert (quick.data.name, quick.schedule.rounds, quick.training.epochs) == ("digits", 2, 1)
        assert quick.partition.clients <= 4
        assert quick.data.limit <= 500
        assert little.data.name == as_printed.data.name
        assert 2000 <= little.data.limit <= 4000 or name in UNTRAINED
        assert little.schedule.rounds <= 100
        assert little.partition.clients <= min(40, as_printed.partition.clients)
        warm_up = (little.method.model_extra or {}).get("warm_up")
        assert warm_up is None or warm_up < little.schedule.rounds / 2


def test_small_scale_keeps_populations_apart_with_equal_training():
    work = plan(find_recipe("fedgh-table1"), "small").work
    ten, fifty, hundred = (work["FedGH", setting, 0] for setting in ("c10-n10", "c10-n50", "c10-n100"))
    assert [experiment.partition.clients for experiment in (ten, fifty, hundred)] == [10, 15, 20]
    for planned in (ten, fifty, hundred):
        assert planned.schedule.rounds * planned.schedule.participation == pytest.approx(10, abs=0.5)
        assert planned.data.split == "3:1"
        assert planned.data.augment == ()


@pytest.mark.parametrize(
    ("name", "row", "column", "printed"),
    [
        ("fedgh-table1", "FedGH", "c100-n10", "73.62"),
        ("fedgh-table1", "FD", "c10-n50", "-"),
        ("fedgh-table3", "FedGH", "c10", "97.60"),
        ("fedgh-table3", "FedProto", "c100-total", "101.47"),
        ("fedhe-homogeneous", "FedAvg", "cifar10-numbers", "326976"),
        ("fedhe-heterogeneous", "FedHe", "cifar10", "62"),
        ("pfedafm-table2", "pFedAFM", "c10-n100", "95.67"),
        ("pfedafm-table3", "FML", "c100-n50", "21.96"),
        ("fedin-table1", "HeteroFL", "rounds", "140"),
        ("fedin-table2", "HeteroFL", "iid", "93.8"),
        ("fedin-table4", "MOON", "non-iid", "78.2"),
        ("fedin-table5", "Scaffold", "iid", "87.7"),
        ("fedin-table7", "w/o Prox", "non-iid", "66.4"),
        ("fedin-table8", "FedIN", "non200", "72.2"),
        ("fedl2g-table1", "FedKD", "dir-f102", "69.6±1.6"),
        ("fedl2g-table2", "FedL2G-f", "n50", "40.5±.0"),
        ("fedl2g-table3", "FedKD", "up", "63.02"),
        ("fedl2g-table4", "FedL2G-f", "1", "41.1±.5"),
    ],
)
def test_printed_numbers(name: str, row: str, column: str, printed: str):
    assert find_recipe(name).printed(row, column) == printed


def test_fedgh_totals_are_rounds_times_ten_clients():
    recipe = find_recipe("fedgh-table3")
    for row in ("LG-FedAvg", "FedProto", "FedGH"):
        for data, unit in (("c10", 1), ("c100", 1024)):
            each, rounds, total = (
                float(recipe.printed(row, f"{data}-{end}")) for end in ("kb", "rounds", "total")
            )
            assert each * rounds * 10 == pytest.approx(total * unit, rel=1e-3)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_fedin_speed_ups_are_of_the_printed_rounds(number: int):
    recipe = find_recipe(f"fedin-table{number}")
    for row in recipe.rows:
        own, first = (float(recipe.printed(method, "rounds")) for method in (row, "FedAvg"))
        assert first / own == pytest.approx(float(recipe.printed(row, "speed-up")), abs=0.06)


def test_fedin_tables_repeat_each_other():
    main, parts, many = (find_recipe(f"fedin-table{number}") for number in (3, 7, 8))
    for row, again in (("FedAvg", "FedAvg"), ("FedProx", "w/o IN"), ("FedIN", "FedIN")):
        assert main.rows[row].paper[:2] == parts.rows[again].paper
    for row in ("FedAvg", "InclusiveFL", "FedIN"):
        assert main.rows[row].paper[:2] == (many.printed(row, "iid100"), many.printed(row, "non100"))


def test_recipe_settings_match_the_papers():
    """A few settings by hand, where a slip would stay unseen in the numbers."""
    fedgh = plan(find_recipe("fedgh-table3"), "paper").work["FedGH", "cifar100", 0]
    assert fedgh.partition.rule == "pathological:10"
    assert fedgh.models.names == ("cnn5",)
    assert (fedgh.training.lr, fedgh.training.batch_size, fedgh.training.epochs) == (0.01, 512, 30)
    heterofl = plan(find_recipe("fedin-table3"), "paper").work["HeteroFL", "non-iid", 0]
    assert heterofl.models.names[0] == "preresnet152@1"
    assert heterofl.method.model_extra == {"rates": "dynamic"}
    assert (heterofl.partition.clients, heterofl.schedule.rounds) == (100, 500)
    small = plan(find_recipe("fedin-table3"), "small").work
    assert small["HeteroFL", "iid", 0].models.names == ("width5",)
    assert small["FedIN", "iid", 0].models.names == ("nested5",)
    guide = plan(find_recipe("fedl2g-table4"), "paper").work["FedL2G-f", "500", 0]
    assert guide.method.model_extra == {
        "server_lr": 500,
        "guide_weight": 1.0,
        "warm_up": 50,
        "quiz": "kept",
        "quiz_size": 10,
    }
    public = plan(find_recipe("fedhe-homogeneous"), "paper").work
    assert (public["FedMD", "mnist", 0].data.public, public["FedHe", "mnist", 0].data.public) == (0.1, 0.0)
