"""Suites: equal trials for every method, rows stored one by one, pages from rows alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from generate.benchmark import WITHOUT_ROWS, default_page_path, page_text, write_page
from generate.benchmark.figures import mean_curve
from potluck.core.errors import PotluckError
from potluck.suites.baselines import LINES
from potluck.suites.confirm import choose_sample, confirm, differences
from potluck.suites.provenance import experiment_digest, made_at, provenance_text
from potluck.suites.runner import Runner, estimate, neighbour_rate, short_trial
from potluck.suites.statistics import holm, summarise_task
from potluck.suites.store import Results, thin_curve
from potluck.suites.suite import Suite, find_suite, parse_suite, suite_names
from potluck.suites.work import Work
from tests.support.suites import add_rows, make_row

ROOT = Path(__file__).parents[2]
SMALL = """
title = "One small task."
seeds = [0, 1]
[methods]
any = ["standalone", "fedproto"]
[tuning]
seeds = [100]
share = 0.5
[tuning.options]
fedproto = { prototype_weight = [0.1, 1.0] }
[[task]]
name = "few"
title = "Few digits"
methods = ["any"]
rates = [0.05, 0.1]
[task.experiment]
data = { name = "digits", limit = 150, split = "6:2:2" }
partition = { rule = "iid", clients = 4 }
models = { names = ["small-mlp"] }
training = { epochs = 3 }
schedule = { rounds = 2 }
evaluate = { newcomers = 0.25 }
"""


def small() -> Suite:
    return parse_suite("small", SMALL)


def runner(
    folder: Path, suite: Suite | None = None, methods: tuple[str, ...] = ("standalone", "fedproto")
) -> Runner:
    suite = suite or small()
    return Runner(
        suite, Results.read(folder, suite.name), suite.tasks, methods, suite.seeds, "potluck benchmark"
    )


def test_every_method_sees_the_same_learning_rates():
    for suite in (find_suite(name) for name in suite_names()):
        for task in suite.tasks:
            for method in set(task.methods) - set(LINES) - set(suite.without_rate):
                rates = {settings["training.lr"] for settings in suite.candidates(task, method)}
                assert rates == (set(task.rates) if suite.tuning_seeds else {task.rates[0]})
            assert not {*task.seeds, *suite.seeds} & {*suite.tuning_seeds}
    suite = small()
    assert suite.candidates(suite.tasks[0], "standalone") == [{"training.lr": 0.05}, {"training.lr": 0.1}]
    assert suite.candidates(suite.tasks[0], "majority") == [{}]
    assert suite.candidates(suite.tasks[0], "fedproto") == [
        {"training.lr": rate, "method.prototype_weight": weight}
        for rate in (0.05, 0.1)
        for weight in (0.1, 1.0)
    ]


def test_a_method_without_rate_is_tuned_by_its_option_alone(tmp_path: Path):
    text = SMALL.replace("share = 0.5", 'share = 0.5\nwider = 2\nwithout_rate = ["fedproto"]')
    suite = parse_suite("small", text)
    assert suite.candidates(suite.tasks[0], "fedproto") == [
        {"method.prototype_weight": 0.1},
        {"method.prototype_weight": 1.0},
    ]
    assert suite.candidates(suite.tasks[0], "fedproto", added=(0.3,)) == suite.candidates(
        suite.tasks[0], "fedproto"
    )
    work = runner(tmp_path, suite)
    assert [entry.wider for entry in estimate(work, lambda work: 1.0)] == [2, 0]
    for run in work.trials(suite.tasks[0], "fedproto"):
        assert "training.lr" not in run.settings
        work.results.add_trial(work._as_trial(run, run.settings["method.prototype_weight"], 1.0))
    assert work.best(suite.tasks[0], "fedproto") == {"method.prototype_weight": 1.0}


def test_trials_are_on_another_seed_for_a_part_of_the_rounds():
    suite = small()
    trial = suite.experiment(suite.tasks[0], "fedproto", 100, {"training.lr": 0.05}, tuning=True)
    assert (trial.seed, trial.schedule.rounds, trial.evaluate.newcomers) == (100, 1, 0.0)
    assert 100 not in suite.seeds


def test_learning_rates_are_added_beyond_the_best_while_it_is_at_an_end(tmp_path: Path):
    """Of 0.05 and 0.1 the higher is better, so 0.3 is tried, then 1; two are added at most."""
    tuned = runner(tmp_path, parse_suite("small", SMALL.replace("share = 0.5", "share = 0.5\nwider = 2")))
    task = tuned.suite.tasks[0]

    def store(rate: float, validation: float | None) -> None:
        (trial,) = [t for t in tuned.trials(task, "standalone") if t.settings["training.lr"] == rate]
        tuned.results.add_trial(tuned._as_trial(trial, validation, 1.0))

    def rates() -> list[float]:
        return [settings["training.lr"] for settings in tuned.candidates(task, "standalone")]

    assert rates() == [0.05, 0.1]
    store(0.1, 0.5)
    assert rates() == [0.05, 0.1]  # a trial is to come
    store(0.05, 0.4)
    assert rates() == [0.05, 0.1, 0.3]
    store(0.3, 0.6)
    assert rates() == [0.05, 0.1, 0.3, 1.0]
    store(1.0, None)  # it failed: worse than any
    assert rates() == [0.05, 0.1, 0.3, 1.0]
    assert tuned.best(task, "standalone") == {"training.lr": 0.3}


def test_no_learning_rate_is_added_where_the_best_is_inside(tmp_path: Path):
    text = SMALL.replace("share = 0.5", "share = 0.5\nwider = 2").replace("[0.05, 0.1]", "[0.03, 0.1, 0.3]")
    tuned = runner(tmp_path, parse_suite("small", text))
    task = tuned.suite.tasks[0]
    for trial, validation in zip(tuned.trials(task, "standalone"), (0.5, 0.6, 0.5), strict=True):
        tuned.results.add_trial(tuned._as_trial(trial, validation, 1.0))
    assert len(tuned.candidates(task, "standalone")) == 3
    assert [neighbour_rate(rate, up=False) for rate in (0.3, 0.1, 0.03)] == [0.1, 0.03, 0.01]


def test_a_benchmark_is_done_in_pieces_and_nothing_twice(tmp_path: Path):
    messages: list[str] = []
    first = runner(tmp_path, methods=("standalone",))
    assert first.count() == (2, 2)
    assert first.run(1, messages.append) == []
    assert len(messages) == 4
    second = runner(tmp_path)
    assert second.count() == (4, 2)  # fedproto alone is left
    second.run(2, messages.append)
    third = runner(tmp_path)
    assert third.count() == (0, 0)
    stored = Results.read(tmp_path, "small")
    assert [(row.task, row.method, row.seed) for row in stored.rows] == [
        ("few", method, seed) for method in ("fedproto", "standalone") for seed in (0, 1)
    ]
    best = max(
        (trial for trial in stored.trials if trial.method == "fedproto"), key=lambda trial: trial.validation
    )
    assert {row.settings for row in stored.rows if row.method == "fedproto"} == {best.settings}
    row = stored.rows[0]
    assert 0 < row.accuracy <= 1
    assert row.newcomers is not None
    assert row.versions.startswith("potluck ")
    details = stored.details[row.experiment]
    assert len(details["clients"]) == len(details["best_clients"]) == 3  # a fourth is the newcomer
    assert row.accuracy == pytest.approx(sum(details["best_clients"]) / 3, abs=1e-4)
    assert row.worst_best == pytest.approx(min(details["best_clients"]), abs=1e-4)
    assert row.best_round in (1, 2)
    assert (row.rounds, len(details["client_samples"])) == (2, 3)
    text = page_text(small(), stored)
    assert "| standalone |" in text
    assert text == page_text(small(), Results.read(tmp_path, "small"))
    write_page(small(), stored, tmp_path / "docs" / "page.md")
    assert (tmp_path / "docs" / "figures" / "benchmark-gains.svg").read_text().count("fedproto") == 1


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path: Path):
    broken = parse_suite(
        "small", SMALL.replace('"standalone", "fedproto"', '"standalone", "fedmrl", "fedin"')
    )
    failures = runner(tmp_path, broken, ("standalone", "fedin")).run(1, lambda _: None)
    assert failures
    assert all("fedin" in sentence and "FedIN needs" in sentence for sentence in failures)
    assert {row.method for row in Results.read(tmp_path, "small").rows} == {"standalone"}


def test_rows_of_another_machine_are_taken_where_they_are_missing_or_newer(tmp_path: Path):
    here, there = Results(tmp_path / "here", "made"), Results(tmp_path / "there", "made")
    old, new = make_row("one", "fedgh", 0, 0.5), replace(make_row("one", "fedgh", 0, 0.7), date="2030-01-02")
    here.add(replace(old, date="2030-01-01"), {"clients": [0.5]})
    here.add(replace(make_row("one", "fedgh", 1, 0.6), date="2030-01-05"), {"clients": [0.6]})
    there.add(new, {"clients": [0.7]})
    there.add(replace(make_row("one", "fedgh", 1, 0.1), date="2030-01-04"), {"clients": [0.1]})
    there.add(make_row("one", "fedgh", 2, 0.8), {"clients": [0.8]})
    assert here.merge(Results.read(tmp_path / "there", "made")) == 2
    merged = Results.read(tmp_path / "here", "made")
    assert [row.accuracy for row in merged.rows] == [0.7, 0.6, 0.8]
    assert [merged.details[row.experiment]["clients"] for row in merged.rows] == [[0.7], [0.6], [0.8]]


def test_a_row_of_other_settings_takes_the_place_of_the_old_one(tmp_path: Path):
    results = Results(tmp_path, "made")
    first = make_row("one", "fedgh", 0, 0.5)
    results.add(first, {"clients": [0.5]})
    results.add(make_row("one", "fedgh", 1, 0.6), {"clients": [0.6]})
    results.add(replace(first, accuracy=0.9, experiment="tuned otherwise"), {"clients": [0.9]})
    stored = Results.read(tmp_path, "made")
    assert [(row.seed, row.accuracy) for row in stored.rows] == [(0, 0.9), (1, 0.6)]
    assert stored.details.keys() == {row.experiment for row in stored.rows}


def test_merging_a_folder_without_results_is_refused(potluck, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    code, _, err = potluck("benchmark", "cpu", "--results", "here", "--merge", "empty")
    assert code == 2
    assert "there is no cpu.csv with results in 'empty'" in err


def test_holms_correction_by_hand():
    """0.01, 0.02, 0.04 of three: times 3, times 2, times 1; an order is never turned round."""
    assert holm({"a": 0.02, "b": 0.01, "c": 0.04}) == pytest.approx({"b": 0.03, "a": 0.04, "c": 0.04})
    assert holm({"a": 0.9, "b": 0.8}) == pytest.approx({"b": 1.0, "a": 1.0})


def test_experiment_digest_depends_on_settings_that_decide_results():
    suite = small()
    task = suite.tasks[0]
    first = suite.experiment(task, "fedproto", 0, {"training.lr": 0.1})
    assert experiment_digest(first) == experiment_digest(first.with_settings({"engine.workers": 2}))
    other_seed = suite.experiment(task, "fedproto", 1, {"training.lr": 0.1})
    other_rate = suite.experiment(task, "fedproto", 0, {"training.lr": 0.2})
    assert len({experiment_digest(experiment) for experiment in (first, other_seed, other_rate)}) == 3
    # A default may be written out or not: a setting that is added later changes no digest.
    spelled = suite.experiment(task, "fedproto", 0, {"training.lr": 0.1, "schedule.participation": 1.0})
    assert experiment_digest(first) == experiment_digest(spelled)


@pytest.fixture
def at_commit(monkeypatch: pytest.MonkeyPatch):
    """Let the source be at a commit."""

    def set_commit(commit: str) -> None:
        monkeypatch.setattr("potluck.suites.provenance.provenance", lambda: {"commit": commit})

    return set_commit


def test_confirmation_is_recorded_without_changing_rows(tmp_path: Path, at_commit):
    at_commit("aaaa")
    runner(tmp_path).run(1, lambda _: None)
    results = Results.read(tmp_path, "small")
    assert {made_at(row) for row in results.rows} == {"aaaa"}
    before = results.table.read_bytes(), results.curves.read_bytes()
    at_commit("bbbb")
    chosen = choose_sample(results, results.rows, 1)
    assert confirm(small(), results, chosen, 1, lambda _: None) == (1, 0)
    again = Results.read(tmp_path, "small")
    assert (again.table.read_bytes(), again.curves.read_bytes()) == before
    assert [
        (confirmation.experiment, confirmation.made, confirmation.commit, confirmation.outcome)
        for confirmation in again.confirmations
    ] == [(chosen[0].experiment, "aaaa", "bbbb", "same")]
    assert provenance_text(again.rows, again.confirmations) == "Made at aaaa; 1 of 4 rows confirmed at bbbb."
    assert chosen[0] not in choose_sample(again, again.rows, 4)  # the next sample takes other rows
    assert len(choose_sample(again, again.rows, 4)) == 3


def test_a_row_that_gives_other_numbers_is_recorded_as_different(tmp_path: Path, at_commit):
    at_commit("aaaa")
    runner(tmp_path, methods=("standalone",)).run(1, lambda _: None)
    results = Results.read(tmp_path, "small")
    results.rows = [replace(row, worst_tenth=0.123) for row in results.rows]
    results.write()
    messages: list[str] = []
    assert confirm(small(), results, results.rows[:1], 1, messages.append) == (0, 1)
    assert messages == ["few, standalone, seed 0 (made at aaaa): other numbers (worst_tenth)"]
    again = Results.read(tmp_path, "small")
    assert {row.worst_tenth for row in again.rows} == {0.123}
    assert provenance_text(again.rows, again.confirmations).endswith(
        "1 of 2 rows not confirmed: other numbers at aaaa."
    )
    # A row that is measured again is a new row: the old record no longer counts.
    again.rows = [replace(row, commit="cccc") for row in again.rows]
    assert provenance_text(again.rows, again.confirmations) == "Made at cccc; 0 of 2 rows confirmed."


def test_every_stored_number_is_compared():
    row = make_row("few", "fedgh", 0, 0.5)
    numbers = {
        "accuracy": 0.5,
        "final_accuracy": 0.5,
        "worst_tenth": 0.5,
        "newcomers": 0.6,
        "newcomers_alone": 0.5,
    }
    same = {
        "row": {**numbers, "macro_f1": 0.4, "seconds": 9.0},
        "details": {"curve": [(1, 0.5)], "clients": [0.5]},
    }
    details = {"curve": [[1, 0.5]], "clients": []}  # macro F1 and clients were not stored then
    assert differences(row, details, same) == []
    assert differences(row, details, {**same, "row": {**numbers, "newcomers": 0.61}}) == ["newcomers"]
    assert differences(row, {"curve": [[1, 0.6]]}, same) == ["curve"]


def test_rows_without_a_clean_commit_are_of_an_unknown_one(tmp_path: Path, at_commit):
    rows = [
        replace(make_row("few", "fedgh", seed, 0.5), commit=commit)
        for seed, commit in enumerate(("", "a+", "a"))
    ]
    assert [made_at(row) for row in rows] == ["unknown", "unknown", "a"]
    assert provenance_text(rows, []) == "Made at a; 2 of 3 rows at an unknown commit; 0 of 3 rows confirmed."
    at_commit("bbbb+")
    with pytest.raises(PotluckError, match="changes that are in none"):
        confirm(small(), Results(tmp_path, "small", rows), rows, 1, lambda _: None)


def test_rows_with_a_column_of_an_earlier_version_are_read(tmp_path: Path):
    results = Results(tmp_path, "small")
    results.add(make_row("few", "fedgh", 0, 0.5), {})
    lines = results.table.read_text().splitlines()
    old = [
        line.replace("experiment,", "experiment,code,").replace("few-fedgh-0,", "few-fedgh-0,1234,")
        for line in lines
    ]
    results.table.write_text("\n".join(old) + "\n")
    assert "code" in results.table.read_text()
    assert Results.read(tmp_path, "small").rows == results.rows


def test_a_suite_ends_with_a_table_of_means(potluck, tmp_path: Path):
    (tmp_path / "small.toml").write_text(SMALL)
    code, out, _ = potluck(
        "benchmark", "small.toml", "--results", "here", "--jobs", "1", "--quiet", "--draft"
    )
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    stored = Results.read(Path("here"), "small")
    for line in summarise_task(stored, "few"):
        gain = [] if line.gain is None else [f"{100 * line.gain.mean:+.1f}"]
        assert ["few", line.method, "2", f"{100 * line.accuracy:.1f}", *gain] in lines


def test_confirm_options_are_checked(potluck, tmp_path: Path):
    code, _, err = potluck("benchmark", "cpu", "--results", "here", "--sample", "3")
    assert (code, "--sample 3 has no effect without --confirm" in err) == (2, True)
    code, _, err = potluck("benchmark", "cpu", "--results", "here", "--confirm")
    assert (code, "no rows of 'here/cpu.csv' match" in err) == (2, True)


def test_curves_are_thinned_to_their_last_point():
    points = thin_curve([None if number % 2 else number / 100 for number in range(100)])
    assert len(points) <= 25
    assert points[-1] == (99, 0.98)
    assert thin_curve([]) == []


def test_mistakes_are_one_sentence(tmp_path: Path):
    with pytest.raises(PotluckError, match="Unknown suite 'cpuu'. Did you mean 'cpu'"):
        find_suite("cpuu")
    with pytest.raises(PotluckError, match="Suite 'x' is not understood: KeyError 'methods'"):
        parse_suite("x", 'title = "x"')
    with pytest.raises(PotluckError, match="Unknown setting of method 'fedproto' 'weight'"):
        parse_suite("x", SMALL.replace("prototype_weight", "weight"))
    with pytest.raises(PotluckError, match="Unknown task of the suite 'feww'"):
        small().task("feww")


@pytest.mark.parametrize("name", suite_names())
def test_pages_equal_those_generated_from_stored_rows(name: str):
    suite, stored = find_suite(name), Results.read(ROOT / "results", name)
    if not stored.rows and suite.page not in WITHOUT_ROWS:
        pytest.skip("no results are stored")
    assert (ROOT / default_page_path(suite)).read_text() == page_text(suite, stored)
    assert stored.details.keys() >= {row.experiment for row in stored.rows}


def test_the_page_on_asynchrony_compares_seed_by_seed(tmp_path: Path):
    """Accuracy 1, 2 and 3 points lower: -2 ± 4.3027 / √3. Half, a quarter and an eighth of the time: a quarter."""
    suite, stored = find_suite("asynchrony"), Results(tmp_path, "asynchrony")
    ends = {"sync": [(0.90, 8.0)] * 3, "async, 5 at work": [(0.89, 4.0), (0.88, 2.0), (0.87, 1.0)]}
    for schedule, runs in ends.items():
        task = f"two-classes-{schedule}"
        for seed, (accuracy, seconds) in enumerate(runs):
            stored.rows.append(make_row(task, "fedavg", seed, accuracy))
            clock = [(seconds / 2, 0.5), (seconds, 0.8), (9.0, accuracy)]
            stored.details[f"{task}-fedavg-{seed}"] = {"clock": clock, "clients": [1 / 299]}
    text = page_text(suite, stored)
    # 4.3027 · ln 2 / √3 = 1.7219, and e to that is 5.595: from 0.25 / 5.595 to 0.25 · 5.595
    assert "| fedavg | async, 5 at work | -2.0 [-4.5, +0.5] | 0.25 [0.04, 1.40] |" in text
    assert text.index("## Against whole rounds") < text.index("## Provenance")
    assert "**Weak evidence.** With 3 seeds" in text


def test_rows_need_a_clean_commit_or_are_drafts(potluck, tmp_path: Path, at_commit):
    (tmp_path / "small.toml").write_text(SMALL)
    at_commit("bbbb+")
    code, _, err = potluck("benchmark", "small.toml", "--results", "here")
    assert code == 2
    assert "Rows name the commit that made them, and the source has changes" in err
    assert "pass --draft" in err
    at_commit("")
    code, _, err = potluck("benchmark", "small.toml", "--results", "here")
    assert (code, "in no git repository" in err) == (2, True)
    assert not Path("here").exists()


@pytest.mark.parametrize("name", suite_names())
def test_stored_rows_name_a_clean_commit(name: str):
    assert "unknown" not in {made_at(row) for row in Results.read(ROOT / "results", name).rows}


def test_estimate_counts_missing_runs(tmp_path: Path):
    """Standalone lacks 2 trials and 2 runs, fedproto 4 and 2; half an hour each makes 2 and 3 core-hours."""
    estimates = list(estimate(runner(tmp_path), lambda work: 1800.0))
    assert [(line.method, line.trials, line.runs, line.core_hours) for line in estimates] == [
        ("standalone", 2, 2, 2.0),
        ("fedproto", 4, 2, 3.0),
    ]
    stored = runner(tmp_path, methods=("fedproto",))
    stored.results.rows.append(make_row("few", "fedproto", 7, 0.5, core_seconds=900.0))
    assert [line.seconds for line in estimate(stored, lambda work: 1.0)] == [900.0]


def test_a_suite_is_estimated_by_short_trials(potluck, tmp_path: Path):
    (tmp_path / "small.toml").write_text(SMALL)
    code, out, _ = potluck(
        "benchmark", "small.toml", "--estimate", "--results", "here", "--methods", "standalone"
    )
    assert code == 0
    assert "few, standalone: 2 trials and 2 runs of" in out
    assert out.splitlines()[-1].startswith("Missing in all: ")
    assert not Path("here").exists()


def test_start_up_is_counted_once_in_an_estimate():
    """Three seconds before the first round and half a second for each of 20 rounds: 13 seconds."""
    suite = small()
    work = suite.work(suite.tasks[0], "fedproto", 0, {"training.lr": 0.1})

    def longer(changes: dict[str, int]) -> Work:
        return replace(work, experiment=work.experiment.with_settings(changes))

    calls: list[int] = []

    def spent(work: Work, rounds: int) -> float:
        calls.append(rounds)
        return 3.0 + 0.5 * rounds

    assert short_trial(longer({"schedule.rounds": 20}), spent) == pytest.approx(13.0)
    assert calls == [2, 4]  # a second more
    assert short_trial(longer({"schedule.rounds": 20, "evaluate.every": 5}), spent) == pytest.approx(13.0)
    assert calls[2:] == [5, 10]  # whole periods of evaluation
    assert short_trial(longer({"schedule.rounds": 2}), spent) == pytest.approx(4.0)
    assert calls[4:] == [2]
    calls.clear()
    assert short_trial(longer({"schedule.rounds": 20}), lambda w, n: spent(w, n) / 10) == pytest.approx(1.3)
    assert calls == [
        2,
        4,
        8,
        16,
        20,
    ]  # quick rounds: 0.9 seconds for 18 of them, so the whole run is measured


def test_an_estimate_says_how_many_trials_may_come_on_top(tmp_path: Path):
    """Two rates more at most: one trial each of standalone, two of fedproto, on one tuning seed."""
    wide = parse_suite("small", SMALL.replace("share = 0.5", "share = 0.5\nwider = 2"))
    assert [cost.wider for cost in estimate(runner(tmp_path, wide), lambda work: 1.0)] == [2, 4]
    assert [cost.wider for cost in estimate(runner(tmp_path), lambda work: 1.0)] == [0, 0]


def test_estimate_of_invalid_experiment_gives_the_reason(potluck, tmp_path: Path):
    (tmp_path / "small.toml").write_text(SMALL.replace("6:2:2", "10:390:100"))
    code, out, _ = potluck("benchmark", "small.toml", "--estimate", "--results", "here")
    assert code == 1
    assert "few, standalone: 2 trials and 2 runs cannot run: Split '10:390:100' adds up to 500" in out
    assert out.splitlines()[-1] == "2 of 2 methods cannot run and are not counted."
    assert "nan" not in out
    assert "Missing in all" not in out


def test_statements_on_tuning_follow_from_the_stored_trials(tmp_path: Path):
    """Best at 0.05, the lowest of two; then 0.01 is tried and is worse, so the best is inside."""
    tuned = runner(tmp_path, parse_suite("small", SMALL.replace("share = 0.5", "share = 0.5\nwider = 2")))
    suite, task = tuned.suite, tuned.suite.tasks[0]
    add_rows(tuned.results, "few", "standalone", [0.8, 0.8])
    add_rows(tuned.results, "few", "fedproto", [0.8, 0.7])
    tuned.results.rows = [replace(row, settings="{}") for row in tuned.results.rows]
    for trial, validation in zip(tuned.trials(task, "standalone"), (0.6, 0.5), strict=True):
        tuned.results.add_trial(tuned._as_trial(trial, validation, 1.0))
    text = " ".join(page_text(suite, tuned.results).split())
    assert (
        "In 1 of the 1 tunings the best learning rate is the lowest or the highest that was tried; the"
        in text
    )
    assert "are not among the stored trials" in text
    (wider,) = [run for run in tuned.trials(task, "standalone") if run.settings["training.lr"] == 0.01]
    tuned.results.add_trial(tuned._as_trial(wider, 0.4, 1.0))
    text = " ".join(page_text(suite, tuned.results).split())
    assert (
        "In 0 of the 1 tunings the best learning rate is the lowest or the highest that was tried; in 1"
        in text
    )


def test_curves_are_means_over_seeds_with_a_band():
    """50 and 70 per cent: 60 with a standard deviation of √200; the round that one seed lacks is left out."""
    rounds, mean, spread = mean_curve([[(1, 0.5), (2, 0.6)], [(1, 0.7)]])
    assert rounds == [1]
    assert mean == pytest.approx([60.0])
    assert spread == pytest.approx([200**0.5])
    assert mean_curve([[(1, 0.5), (2, 0.6)]])[2] == pytest.approx([0.0, 0.0])


def test_the_page_shows_curves_of_training_alone_and_the_three_best(tmp_path: Path):
    results, suite = Results(tmp_path, "cpu"), find_suite("cpu")
    methods = {"standalone": 0.5, "fedgh": 0.9, "fedhe": 0.8, "fedproto": 0.7, "fd": 0.6}
    for name, accuracy in methods.items():
        add_rows(results, "digits-labels", name, [accuracy] * 5)
    results.rows = [replace(row, settings="{}") for row in results.rows]
    assert "Accuracy over rounds" not in page_text(suite, results)  # no curves are stored
    for row in results.rows:
        results.details[row.experiment]["curve"] = [[1, row.accuracy / 2], [2, row.accuracy]]
    write_page(suite, results, tmp_path / "page.md")
    text = " ".join((tmp_path / "page.md").read_text().split())
    assert "deviation: standalone, fedgh, fedhe, fedproto (training alone and the 3 best methods)" in text
    figure = (tmp_path / "figures" / "cpu-curves-digits-labels.svg").read_text()
    assert [f">{name}<" in figure for name in methods] == [True, True, True, True, False]
