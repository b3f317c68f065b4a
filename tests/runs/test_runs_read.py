"""Reading run folders: finished, killed, sparse, asynchronous and invalid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potluck.core.errors import PotluckError
from potluck.runs.read import read_run
from potluck.runs.run import FailedJob


def write(
    folder: Path,
    rounds: list[dict[str, Any]],
    clients: list[dict[str, Any]] | None = None,
    summary: dict[str, Any] | None = None,
    toml: str = "",
    torn: str = "",
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rounds) + torn)
    (folder / "clients.jsonl").write_text("".join(json.dumps(c) + "\n" for c in clients or []))
    (folder / "experiment.toml").write_text(toml)
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def step(number: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    base = {"step": number, "round": number, "accuracy": accuracy, "participants": [0, 1]}
    traffic = {"floats_up": 10, "floats_down": 20, "bytes_up": 40, "bytes_down": 80, "seconds": 0.5}
    return {**base, **traffic, **more}


def test_curve_leaves_out_rounds_without_evaluation(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, [step(1, None), step(2, 0.5), step(3, None), step(4, 0.75)]))
    curve = run.curve("accuracy")
    assert curve.x.tolist() == [2, 4]
    assert curve.y.tolist() == [0.5, 0.75]


def test_traffic_and_time_add_up_over_steps_that_were_not_evaluated(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, [step(1, None), step(2, 0.5), step(3, 0.6)]))
    assert run.curve("accuracy", "bytes").x.tolist() == [240, 360]  # 2 and 3 times 40 up + 80 down
    assert run.curve("accuracy", "floats").x.tolist() == [60, 90]
    assert run.curve("accuracy", "seconds").x.tolist() == [1.0, 1.5]
    assert run.total("bytes_up") == 120


def test_virtual_seconds_are_a_clock_reading_and_may_be_missing(tmp_path: Path) -> None:
    clocked = read_run(
        write(tmp_path / "a", [step(1, 0.1, virtual_seconds=7.0), step(2, 0.2, virtual_seconds=9.0)])
    )
    assert clocked.curve("accuracy", "virtual_seconds").x.tolist() == [7, 9]
    plain = read_run(write(tmp_path / "b", [step(1, 0.1)]))
    assert len(plain.curve("accuracy", "virtual_seconds")) == 0
    still = read_run(write(tmp_path / "c", [step(1, 0.1, virtual_seconds=0.0)]))
    assert len(still.curve("accuracy", "virtual_seconds")) == 0


def test_asynchronous_round_keeps_its_last_value_against_rounds(tmp_path: Path) -> None:
    records = [step(1, 0.1, round=1), step(2, 0.3, round=1), step(3, None, round=2), step(4, 0.4, round=2)]
    run = read_run(write(tmp_path, records))
    assert run.curve("accuracy").y.tolist() == [0.3, 0.4]
    assert run.curve("accuracy", "seconds").y.tolist() == [0.1, 0.3, 0.4]


def test_killed_run_with_torn_last_line_reads_as_far_as_it_got(tmp_path: Path) -> None:
    clients = [
        {"round": 1, "client": 0, "name": "a", "architecture": "cnn-1", "accuracy": 0.2},
        {"round": 1, "client": 1, "name": "b", "architecture": "cnn-2", "accuracy": 0.4},
        {"round": 2, "client": 1, "name": "b", "architecture": "cnn-2", "accuracy": 0.8},
    ]
    toml = 'seed = 3\n[method]\nname = "fedhe"\n[data]\nname = "digits"\n'
    run = read_run(
        write(tmp_path, [step(1, 0.3), step(2, 0.6)], clients, toml=toml, torn='{"step": 3, "accu')
    )
    assert not run.finished
    assert (run.method, run.dataset, run.seed, run.num_rounds) == ("fedhe", "digits", 3, 2)
    assert (run.best_accuracy, run.best_round, run.last_accuracy) == (0.6, 2, 0.6)
    assert run.client_accuracy == {0: 0.2, 1: 0.8}  # each client's latest test
    assert run.final_accuracy == pytest.approx(0.5)
    assert run.per_client_round("floats_up") == 5  # 20 numbers over 4 answered jobs


def test_summary_values_take_precedence_over_computed_ones(tmp_path: Path) -> None:
    summary = {
        "method": "fedgh",
        "seed": 7,
        "best_accuracy": 0.9,
        "best_round": 5,
        "final_accuracy": 0.55,
        "client_accuracy": [0.5, None, 0.6],
        "client_names": ["x", "y", "z"],
        "client_architectures": ["a", "b", "c"],
        "class_counts": [[1, 2], [3, 4], [5, 6]],
    }
    run = read_run(write(tmp_path, [step(1, 0.3)], summary=summary, toml="seed = 1"))
    assert (run.finished, run.seed, run.best_accuracy, run.best_round) == (True, 7, 0.9, 5)
    assert run.final_accuracy == 0.55
    assert [(c.index, c.name, c.architecture, c.train_samples) for c in run.client_results] == [
        (0, "x", "a", 3),
        (2, "z", "c", 11),
    ]


def test_only_rows_of_the_runs_own_protocol_count(tmp_path: Path) -> None:
    clients = [
        {"round": 1, "client": 0, "protocol": "received", "accuracy": 0.9},
        {"round": 1, "client": 0, "protocol": "local", "accuracy": 0.3},
    ]
    run = read_run(write(tmp_path, [step(1, 0.3)], clients, toml='[evaluate]\nprotocol = "local"'))
    assert run.client_accuracy == {0: 0.3}


def test_final_evaluation_wins_over_later_lines(tmp_path: Path) -> None:
    clients = [{"client": 0, "accuracy": 0.7, "final": True}, {"client": 0, "accuracy": 0.1, "final": False}]
    assert read_run(write(tmp_path, [step(1, 0.3)], clients)).client_accuracy == {0: 0.7}


def test_failures_and_staleness_are_collected(tmp_path: Path) -> None:
    records = [step(1, 0.1, failures=[{"client": 4, "reason": "too late"}]), step(2, 0.1, staleness=[0, 3])]
    run = read_run(write(tmp_path, records))
    assert run.failures == (FailedJob(1, 4, "too late", "too late"),)
    assert run.staleness.tolist() == [0, 3]


def test_a_repeated_step_is_the_resumed_one(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, [step(1, 0.1), step(2, 0.2), step(2, 0.25), step(3, 0.3)]))
    assert run.curve().y.tolist() == [0.1, 0.25, 0.3]


def test_infinite_and_missing_metrics_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"round": 1, "loss": NaN}\n{"round": 2, "loss": 0.5}\n')
    run = read_run(tmp_path)
    assert run.curve("loss").y.tolist() == [0.5]
    assert not run.has("accuracy")
    assert np.isnan(run.best_accuracy)
    assert run.best_round is None


@pytest.mark.parametrize("content", [None, "notes.txt"])
def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "other"
    if content:
        folder.mkdir()
        (folder / content).write_text("hello")
    with pytest.raises(PotluckError, match=r"other.*pass the folder that `potluck run` wrote") as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["rounds.jsonl", "summary.json", "experiment.toml"])
def test_a_broken_file_is_named(tmp_path: Path, file: str) -> None:
    write(tmp_path, [step(1, 0.3)], summary={"method": "fedgh"})
    (tmp_path / file).write_text("{broken\n{}\n")
    with pytest.raises(PotluckError, match=file):
        read_run(tmp_path)


def test_unknown_axis_names_the_valid_ones(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, [step(1, 0.3)]))
    with pytest.raises(PotluckError, match="Did you mean 'rounds'"):
        run.curve("accuracy", "round")
