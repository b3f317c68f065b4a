"""The full scale: the paper's settings with fewer rounds, ordered, resumable, with the origin of every row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from potluck.api import execute
from potluck.core.errors import PotluckError
from potluck.experiment import parse_experiment
from potluck.recipes import store
from potluck.recipes.budget import parse_budget, processor_seconds
from potluck.recipes.cost import Estimator, TrialCosts, extrapolate_cost, trial_experiment
from potluck.recipes.order import core_size, informative_order, printed_lead, ranked_rows
from potluck.recipes.recipe import Recipe, find_recipe
from potluck.recipes.reproduce import plan
from potluck.recipes.scale import at_scale
from potluck.recipes.store import StoredCell, add_cells, read_cells, read_curves, take_stored_values
from potluck.runs.resolve import resolve

OWN = """
title = "Mine"
paper = "A paper, 2026."

[base]
data = { limit = 200 }
partition = { rule = "iid", clients = 2 }
models = { names = ["small-mlp"] }
training = { epochs = 1 }
schedule = { rounds = 8 }
engine = { name = "serial" }

[full]
schedule = { rounds = 4 }
training = { amp = "bf16" }

[settings.alike]

[settings.other]
data = { limit = 300 }
full = { schedule = { rounds = 2 } }

[columns]
alike = { setting = "alike", measure = "best" }
rounds = { setting = "alike", measure = "rounds", target = 1.0 }
other = { setting = "other", measure = "best" }

[rows]
Standalone = { method = "standalone", paper = "50.0 - 60.0" }
FedGH = { method = "fedgh", paper = "70.0 2 65.0" }
"""
COMMIT = "0123456789ab"


@pytest.fixture(autouse=True)
def clean_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of the full scale name their commit; here one is given, whatever the state of this tree."""
    monkeypatch.setattr("potluck.runs.writer._commit", lambda: COMMIT)


@pytest.fixture(autouse=True)
def fast_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes keep their bf16 whatever processor runs the test."""
    monkeypatch.setattr("potluck.recipes.scale.is_bf16_slow", lambda: False)


def recipe(tmp_path: Path, text: str = OWN) -> Recipe:
    (tmp_path / "mine.toml").write_text(text)
    return find_recipe(str(tmp_path / "mine.toml"))


# -- settings ------------------------------------------------------------------------------------------------------


def test_full_changes_rounds_precision_and_nothing_else(tmp_path: Path):
    table = plan(recipe(tmp_path), "full")
    assert {key: experiment.schedule.rounds for key, experiment in table.work.items()} == {
        ("Standalone", "alike", 0): 4,
        ("FedGH", "alike", 0): 4,
        ("Standalone", "other", 0): 2,
        ("FedGH", "other", 0): 2,
    }
    assert table.differs == {
        "schedule.rounds": [("8", "4"), ("8", "2")],
        "training.amp": [("off", "bf16")],
    }


def test_losses_are_float32_where_bf16_is_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("potluck.recipes.scale.is_bf16_slow", lambda: True)
    table = plan(recipe(tmp_path), "full")
    assert {experiment.training.amp for experiment in table.work.values()} == {"off"}
    assert "training.amp" not in table.differs


@pytest.mark.parametrize(
    ("own", "share", "rounds"),
    [
        ({}, None, 100),  # a fifth where nothing is stated
        ({"rounds_share": 0.5}, None, 250),
        (
            {"rounds_share": 0.5, "schedule": {"rounds": 30}},
            None,
            30,
        ),  # a number of rounds goes before a share
        ({"schedule": {"rounds": 30}}, 0.1, 50),  # and what the user states before both
        ({}, 0.0001, 1),
    ],
)
def test_rounds_at_the_full_scale(own: dict, share: float | None, rounds: int):
    values = {"schedule": {"rounds": 500}, "training": {"epochs": 30}}
    experiment = parse_experiment(at_scale(values, "full", own, share))
    assert (experiment.schedule.rounds, experiment.training.epochs) == (rounds, 30)


@pytest.mark.parametrize(
    ("name", "setting", "rounds"),
    [
        ("pfedafm-table3", "c100-n100", {500}),
        ("pfedafm-table3", "c10-n100", {500}),
        ("fedgh-table3", "cifar10", {10}),
        ("fedgh-table3", "cifar100", {20}),
        ("fedin-table3", "non-iid", {120}),
        ("fedhe-homogeneous", "mnist", {1000, 25}),  # a fifth of 5,000 rounds of ten jobs, and of 125 rounds
        ("fedl2g-table2", "htfe2", {100}),
    ],
)
def test_recipes_state_their_full_size(name: str, setting: str, rounds: set[int]):
    full, paper = plan(find_recipe(name), "full"), plan(find_recipe(name), "paper")
    planned = {key: experiment for key, experiment in full.work.items() if key[1] == setting}
    assert {experiment.schedule.rounds for experiment in planned.values()} == rounds
    for key, planned_experiment in planned.items():
        assert planned_experiment.data == paper.work[key].data
        assert planned_experiment.partition == paper.work[key].partition
        assert planned_experiment.models == paper.work[key].models
        assert planned_experiment.training.epochs == paper.work[key].training.epochs
        assert planned_experiment.training.batch_size == paper.work[key].training.batch_size
        assert planned_experiment.schedule.participation == paper.work[key].schedule.participation


# -- order ---------------------------------------------------------------------------------------------------------


def test_the_core_of_pfedafm_table3_comes_first_by_printed_lead():
    recipe = find_recipe("pfedafm-table3")
    assert printed_lead(recipe, "c100-n100") == pytest.approx(61.60 - 53.67)
    assert ranked_rows(recipe, "c100-n100")[:4] == ["pFedAFM", "FedProto", "LG-FedAvg", "Standalone"]
    assert core_size(recipe, "c100-n100") == 4
    order = informative_order(plan(recipe, "full", seeds=[3, 1]))
    assert [(row, seed) for row, setting, seed in order[:8] if setting == "c100-n100"] == [
        *((row, 3) for row in ("pFedAFM", "FedProto", "LG-FedAvg", "Standalone")),
        *((row, 1) for row in ("pFedAFM", "FedProto", "LG-FedAvg", "Standalone")),
    ]
    settings = list(dict.fromkeys(setting for _, setting, _ in order))
    assert settings == ["c100-n100", "c100-n50", "c100-n10", "c10-n100", "c10-n50", "c10-n10"]
    assert [setting for _, setting, _ in order].index("c10-n10") < order.index(("FML", "c100-n100", 3))


def test_a_table_without_clients_alone_has_its_first_row_for_reference():
    recipe = find_recipe("fedin-table3")
    core = ranked_rows(recipe, "non-iid")[: core_size(recipe, "non-iid")]
    assert core == ["FedIN", "FedProx", "Scaffold", "FedAvg"]


# -- runs and rows -------------------------------------------------------------------------------------------------


WORDS = ("reproduce", "mine.toml", "--scale", "full", "--store", "rows.csv", "-q")


def test_rows_have_provenance_and_are_made_once(potluck, tmp_path: Path):
    recipe(tmp_path)
    code, out, err = potluck(*WORDS)
    assert (code, err) == (0, "")
    assert "schedule.rounds 8 → 4, 8 → 2" in " ".join(out.split())
    rows = read_cells(tmp_path / "rows.csv")
    assert len(rows) == 6
    best = next(cell for cell in rows if (cell.row, cell.column) == ("FedGH", "alike"))
    assert (best.rounds, best.paper_rounds, best.precision, best.commit) == (4, 8, "bf16", COMMIT)
    assert best.data.startswith("digits sha256:")
    assert best.processor
    assert "cores" in best.machine
    assert best.command == "potluck " + " ".join(WORDS)
    assert (best.core_seconds or 0) > 0
    curves = read_curves(tmp_path / "rows.csv")
    assert set(curves) == {cell.experiment for cell in rows}
    rounds, accuracy = zip(*curves[best.experiment]["curve"], strict=True)
    assert rounds == (1, 2, 3, 4)
    assert 100 * max(accuracy) == pytest.approx(best.here, abs=0.01)

    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/mine-full/*/*/summary.json")}
    assert len(before) == 4
    text = (tmp_path / "rows.csv").read_text()
    assert potluck(*WORDS)[0] == 0  # the same command: nothing to do
    assert {path: path.stat().st_mtime_ns for path in before} == before
    code, out, _ = potluck(*WORDS, "--out", "elsewhere")  # known from the rows alone
    assert code == 0
    assert not list(tmp_path.glob("elsewhere/*/*/summary.json"))
    assert f"{best.here:.1f}" in out
    assert (tmp_path / "rows.csv").read_text() == text


def test_a_stored_row_of_another_experiment_is_not_taken(potluck, tmp_path: Path):
    changed = recipe(tmp_path)
    assert potluck(*WORDS, "--columns", "alike,rounds")[0] == 0
    cells = read_cells(tmp_path / "rows.csv")
    assert take_stored_values(plan(changed, "full"), cells) == 2
    assert take_stored_values(plan(changed, "full", rounds_share=1.0), cells) == 0
    assert take_stored_values(plan(changed, "full", seeds=[1]), cells) == 0
    table = store.stored_table(changed, "full", cells)
    assert set(table.values) == {("FedGH", "alike", 0), ("Standalone", "alike", 0)}


def test_a_table_of_cells_from_before_has_empty_later_columns(tmp_path: Path):
    first = "recipe,scale,row,column,seed,paper,here,method,experiment,commit,versions,machine,date,command,core_seconds"
    (tmp_path / "old.csv").write_text(f"{first}\nr,small,a,b,0,1.0,2.5,fd,e,c,v,m,d,w,3.5\n")
    (cell,) = read_cells(tmp_path / "old.csv")
    assert (cell.here, cell.core_seconds, cell.rounds, cell.data) == (2.5, 3.5, None, "")


def test_rows_that_are_added_at_the_same_time_are_all_kept(tmp_path: Path):
    cell = StoredCell("mine", "full", "a", "b", 0, "1.0", 2.5, "fd", "e", "c", "v", "m", "d", "w", 3.5)

    def add(seeds: range) -> None:
        for seed in seeds:
            add_cells(
                tmp_path / "rows.csv", [replace(cell, seed=seed, experiment=f"e{seed}")], {f"e{seed}": {}}
            )

    threads = [threading.Thread(target=add, args=(range(start, start + 10),)) for start in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [cell.seed for cell in read_cells(tmp_path / "rows.csv")] == list(range(30))
    assert len(read_curves(tmp_path / "rows.csv")) == 30


@pytest.mark.parametrize(
    ("commit", "says"), [("", "in no git repository"), (f"{COMMIT}+", "changes that are in none")]
)
def test_results_of_no_clean_commit_are_not_stored(
    potluck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str, says: str
):
    recipe(tmp_path)
    monkeypatch.setattr("potluck.runs.writer._commit", lambda: commit)
    code, _, err = potluck(*WORDS)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_killed_reproduction_continues_bit_by_bit(tmp_path: Path):
    """The process group is killed in the middle of a run; the same command gives what an undisturbed one gives."""
    long = OWN.replace("rounds = 4", "rounds = 40").replace("rounds = 2 }", "rounds = 40 }")
    words = [
        sys.executable,
        "-m",
        "potluck",
        "reproduce",
        "mine.toml",
        "--scale",
        "full",
        "--columns",
        "alike",
        "-q",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.toml").write_text(long)
    process = subprocess.Popen(
        words, cwd=tmp_path / "killed", env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    lines = tmp_path / "killed/runs/mine-full/alike/fedgh-seed0/rounds.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and (not lines.exists() or len(lines.read_text().splitlines()) < 5):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (lines.parent / "summary.json").exists()
    for name in ("killed", "whole"):
        subprocess.run(words, cwd=tmp_path / name, env=environment, check=True, stdout=subprocess.DEVNULL)
    accuracies = []
    for name in ("killed", "whole"):
        folder = tmp_path / name / "runs/mine-full/alike/fedgh-seed0"
        rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        accuracies.append([(row["round"], row["accuracy"], row["train_loss"]) for row in rows])
    assert accuracies[0] == accuracies[1]
    assert len(accuracies[0]) == 40


def test_a_spent_budget_stops_after_a_round_and_the_same_command_continues(
    potluck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe(tmp_path)
    clock = iter(range(10_000))  # a second passes whenever the time is looked at
    monkeypatch.setattr("potluck.recipes.budget.monotonic", lambda: next(clock))
    code, out, _ = potluck(*WORDS, "--budget", "3s")
    assert code == 0
    assert (
        "The budget of 3s is spent: 0 of 4 runs are done; continue with: potluck reproduce mine.toml" in out
    )
    lines = tmp_path / "runs/mine-full/alike/fedgh-seed0/rounds.jsonl"
    assert 0 < len(lines.read_text().splitlines()) < 4
    assert not (tmp_path / "rows.csv").exists()
    code, out, _ = potluck(*WORDS)
    assert code == 0
    assert len(read_cells(tmp_path / "rows.csv")) == 6
    assert [json.loads(line)["round"] for line in lines.read_text().splitlines()] == [1, 2, 3, 4]


def test_an_estimate_shows_order_and_cost_and_trains_nothing(potluck, tmp_path: Path):
    recipe(tmp_path)
    code, out, err = potluck(*WORDS, "--estimate", "--seeds", "0,1", "--budget", "1d")
    assert (code, err) == (0, "")
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "rows.csv").exists()
    rows = [line.split() for line in out.splitlines() if " alike " in line or " other " in line]
    assert [(row[1], row[2], row[3], row[4]) for row in rows] == [
        *((name, "alike", seed, "0/4") for seed in "01" for name in ("FedGH", "Standalone")),
        *((name, "other", seed, "0/2") for seed in "01" for name in ("FedGH", "Standalone")),
    ]
    assert "8 of 8 runs are to be done" in out
    assert "A budget of 24 h 0 min covers 8 of them." in out
    ((command, estimate),) = json.loads((tmp_path / "rows.estimates.json").read_text()).items()
    assert (estimate["command"], estimate["runs"]) == (command, 8)
    assert "--estimate" not in command
    assert 0 <= estimate["hours"] <= estimate["core_hours"] + 0.001
    assert potluck(*WORDS, "--columns", "other")[0] == 0
    _, out, _ = potluck(*WORDS, "--estimate")
    assert "2 of 4 runs are to be done" in out
    assert out.count("2/2") == 2


def test_an_estimate_scales_with_rounds_and_agrees_with_a_run(tmp_path: Path):
    long = plan(recipe(tmp_path), "full", rounds_share=1.0).work["Standalone", "other", 0]
    long = long.with_settings({"data.limit": 0, "training.epochs": 20, "schedule.rounds": 10})
    estimator = Estimator()
    ten = estimator.cost(long)
    twenty = estimator.cost(long.with_settings({"schedule.rounds": 20}))
    assert twenty.training == pytest.approx(2 * ten.training, rel=0.2)  # what is alike was measured once
    before = processor_seconds()
    execute(long.with_settings({"engine.checkpoint_every": 0}), out=tmp_path / "run")
    spent = processor_seconds() - before
    assert spent / 3 < ten.core_seconds < 3 * spent
    assert (ten.max_concurrent, ten.workers) == (1, 1)


def test_a_warm_up_costs_what_the_first_rounds_do(tmp_path: Path):
    text = OWN.replace('method = "fedgh"', 'method = "fedl2g-f", options = { warm_up = 3 }')
    table = plan(recipe(tmp_path, text), "full")
    resolved = resolve(table.work["FedGH", "alike", 0])
    assert (trial_experiment(resolved).method.model_extra or {})["warm_up"] == 1
    kind = next(iter(resolved.federation.task.architectures))
    samples = resolved.federation.task.clients[0].samples
    costs = TrialCosts(first={kind: 1.0}, later={kind: 2.0}, tested={kind: 0.0}, samples={kind: samples})
    # two clients of one size; three of four rounds warm up
    assert extrapolate_cost(resolved, costs).training == pytest.approx(2 * (3 * 1.0 + 1 * 2.0))


def test_a_longer_first_job_is_counted_once_per_client(tmp_path: Path):
    resolved = resolve(plan(recipe(tmp_path), "full").work["FedGH", "alike", 0])
    kind = next(iter(resolved.federation.task.architectures))
    info = resolved.federation.task.clients[0]
    costs = TrialCosts(
        first={kind: 7.0}, later={kind: 2.0}, tested={kind: 0.01}, samples={kind: info.samples}, server=0.5
    )
    cost = extrapolate_cost(resolved, costs)
    assert cost.training == pytest.approx(2 * (4 * 2.0 + (7.0 - 2.0)))
    assert cost.server == pytest.approx(0.5 * 2 * 4)
    tested = sum(len(member.test) for member in resolved.federation.members)
    assert cost.testing == pytest.approx(0.01 * tested * (4 + 1))


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("6h", 21600), ("1.5d", 129600), ("45s", 45)])
def test_durations(text: str, seconds: float):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["6", "h", "0h", "-1h", "6 hours"])
def test_invalid_durations_are_rejected(text: str):
    with pytest.raises(PotluckError, match="write for instance 90m, 6h"):
        parse_budget(text)


def test_processor_time_counts_living_children():
    busy = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\ninput()"
    before = processor_seconds()
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE) as child:
        until = time.monotonic() + 60
        while processor_seconds() - before < 0.5 and time.monotonic() < until:
            time.sleep(0.05)
        alive = processor_seconds() - before
        child.communicate(b"\n")
    assert alive >= 0.5
    assert processor_seconds() - before >= 0.5  # ended, it counts once


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--scale", "small", "--rounds-share", "0.2"), "--rounds-share 0.2 has no effect at --scale small; use --scale full."),
        (("--scale", "full", "--rounds-share", "1.5"), "--rounds-share 1.5 must be above 0 and at most 1"),
        (("--scale", "full", "--budget", "6 hours"), "--budget '6 hours' is not a duration"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(potluck, tmp_path: Path, words: tuple[str, ...], says: str):
    recipe(tmp_path)
    code, _, err = potluck("reproduce", "mine.toml", *words)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_unknown_keys_of_a_full_table_are_named(potluck, tmp_path: Path):
    recipe(tmp_path, OWN.replace('training = { amp = "bf16" }', "trainings = { epochs = 2 }"))
    code, _, err = potluck("reproduce", "mine.toml", "--scale", "full")
    assert code == 2
    assert "trainings" in err
