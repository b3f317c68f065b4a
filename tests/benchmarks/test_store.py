"""Benchmark rows are stored as data, and the page shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results import Row, Spread, store_rows, stored_rows
from benchmarks.small_clients import SimpleCNN, cohort
from generate import speed
from potluck.core.errors import PotluckError

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
SLOW = Row("pool", "cnn, alike", Spread(1.5, 1.4, 1.6), "×", 1.7, at_least=True)
LIGHT = Row("share", "codec", Spread(2.0, 1.0, 3.0), "%", 5.0)
GROWN = Row("growth", "10 clients", Spread(0.25, 0.2, 0.3), "s")


def test_rows_come_back_as_they_were(tmp_path: Path):
    path = tmp_path / "bench.csv"
    store_rows(path, [SLOW, LIGHT, GROWN])
    assert stored_rows(path) == [SLOW, LIGHT, GROWN]


def test_a_part_measured_again_takes_the_place_of_its_old_rows_alone(tmp_path: Path):
    path = tmp_path / "bench.csv"
    store_rows(path, [SLOW, LIGHT, Row("share", "broadcast", Spread(1.0, 1.0, 1.0), "%"), GROWN])
    better, new = (
        Row("share", "codec", Spread(1.0, 0.5, 1.5), "%", 5.0),
        Row("memory", "all", Spread.of([7.0]), "MB"),
    )
    store_rows(path, [better])
    store_rows(path, [new])
    assert stored_rows(path) == [SLOW, better, GROWN, new]


def test_another_table_is_not_overwritten(tmp_path: Path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(PotluckError, match="is no table of the benchmark"):
        store_rows(path, [SLOW])
    assert path.read_text() == "a,b\n1,2\n"


def test_the_page_shows_the_stored_rows():
    page = PAGE.read_text(encoding="utf-8")
    assert speed.update_page(page) == page, "run make pages, or PYTHONPATH=src:docs python -m generate"


def test_the_cohort_of_small_clients_takes_250_steps():
    federation = cohort()
    size = federation.training.batch_size
    assert sum(-(-len(member.train) // size) for member in federation.members) == 250
    assert sum(tensor.numel() for tensor in SimpleCNN().parameters()) == 896 + 18_496 + 1_605_760 + 1_290
