"""Per-client differences, means per architecture, the ledger, and sweeps."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import pytest
from rich.console import Console

from potluck.analysis.clients import architecture_means, client_differences
from potluck.analysis.cost import traffic_cells, traffic_rows, traffic_table
from potluck.analysis.groups import sweep
from potluck.core.errors import PotluckError
from potluck.runs.run import Run

Maker = Callable[..., Run]


def with_accuracies(run_of: Maker, method: str, accuracies: list[float | None], seed: int = 0) -> Run:
    return run_of(method=method, seed=seed, clients=len(accuracies), summary={"client_accuracy": accuracies})


def test_share_of_better_clients_by_hand(run_of: Maker) -> None:
    a = with_accuracies(run_of, "a", [0.3, 0.5, 0.9, 0.2])
    b = with_accuracies(run_of, "b", [0.2, 0.5, 0.7, 0.4])
    result = client_differences([a], [b])
    assert [each.difference for each in result.clients] == [-0.2, 0, 0.1, 0.2]
    assert [each.client.index for each in result.clients] == [3, 1, 0, 2]
    assert (result.share_better, result.share_worse) == (0.5, 0.25)
    assert result.mean == pytest.approx(0.025)


def test_differences_are_taken_within_a_seed(run_of: Maker) -> None:
    a = [with_accuracies(run_of, "a", [0.9, 0.9], seed) for seed in (0, 1)]
    b = [with_accuracies(run_of, "b", [0.8, 0.7], seed) for seed in (1, 2)]
    result = client_differences(a, b)
    assert [(each.seed, each.difference) for each in result.clients] == [(1, 0.1), (1, 0.2)]


def test_clients_tested_in_one_run_only_are_left_out(run_of: Maker) -> None:
    a, b = with_accuracies(run_of, "a", [0.3, None]), with_accuracies(run_of, "b", [0.2, 0.5])
    assert len(client_differences([a], [b]).clients) == 1


def test_runs_that_cannot_be_paired_are_refused(run_of: Maker) -> None:
    with pytest.raises(PotluckError, match=r"seeds \[0\] and \[1\] have no seed in common"):
        client_differences([run_of(seed=0)], [run_of(seed=1)])
    with pytest.raises(PotluckError, match="different clients"):
        client_differences([run_of(clients=4)], [run_of(clients=5)])


def test_architecture_means_by_hand(run_of: Maker) -> None:
    """The made-up clients have cnn-1 … cnn-5 in turn: clients 0 and 5 share the first."""
    run = with_accuracies(run_of, "a", [0.2, 0.5, 0.5, 0.5, 0.5, 0.4])
    means = {each.name: each for each in architecture_means([run])}
    assert means["cnn-1"].mean == pytest.approx(0.3)
    assert means["cnn-1"].std == pytest.approx(0.1)
    assert means["cnn-1"].clients == 2
    assert len(means) == 5


def test_named_sets_of_architectures(run_of: Maker) -> None:
    run = with_accuracies(run_of, "a", [0.2, 0.4, 0.6, 0.8, 0.9])
    means = architecture_means([run], {"wide": ["cnn-1", "cnn-2"], "narrow": ["cnn-4"]})
    assert [(each.name, round(each.mean, 6)) for each in means] == [("wide", 0.3), ("narrow", 0.8)]


def test_ledger_per_client_round_and_total(run_of: Maker) -> None:
    row = traffic_rows([run_of(clients=10, rounds=20)])[0]
    assert (row.floats_up, row.floats_down) == (1010, 5010)
    assert row.bytes_up == 4 * 1010 + 64
    assert row.total_bytes_up == 200 * (4 * 1010 + 64)
    assert math.isnan(row.paper_bytes)
    assert "paper's KiB" not in traffic_cells([row])[0]


def test_papers_own_count_reproduces_its_table(run_of: Maker) -> None:
    """FedGH on ten classes: header without bias down, two class means with labels up, KB of 1024 B: 23.45."""
    paper = {"up": 2 * 501, "down": 5000, "note": "header without bias"}
    rows = traffic_rows([run_of(summary={"paper_accounting": paper}), run_of(method="other")])
    headings, cells = traffic_cells(rows)
    column = headings.index("paper's KiB")
    assert cells[0][column : column + 2] == ["23.45", "header without bias"]
    assert cells[1][column] == "–"
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(traffic_table(rows))
    assert "23.45" in console.export_text()


def test_sweep_groups_seeds_by_value_in_natural_order(run_of: Maker) -> None:
    runs = [
        run_of(seed=seed, settings={"partition": f"pathological:{classes}"}, summary={"best_accuracy": best})
        for classes, seed, best in ((10, 0, 0.5), (2, 0, 0.7), (2, 1, 0.9))
    ]
    result = sweep(runs, "partition")
    assert result.values == ["pathological:2", "pathological:10"]
    low, high = result.methods["fedgh"]
    assert (low.mean, low.seeds) == (pytest.approx(0.8), 2)
    assert low.std == pytest.approx(0.1 * math.sqrt(2))
    assert (high.mean, high.std) == (0.5, 0)


def test_sweep_over_an_unknown_setting_names_the_known_ones(run_of: Maker) -> None:
    with pytest.raises(PotluckError, match=r"Unknown setting of run .* 'alpha'.*partition"):
        sweep([run_of()], "alpha")
    with pytest.raises(PotluckError, match="Did you mean 'schedule.rounds'"):
        sweep([run_of()], "rounds")
    with pytest.raises(PotluckError, match="Unknown metric 'worst'"):
        sweep([run_of()], "partition", metric="worst")
