"""Rejected answers, failed jobs and divergence are sentences below every table and in the summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import potluck
from potluck.analysis.comparison import compare
from potluck.analysis.failures import divergence, outcome_notes
from potluck.analysis.tables import to_markdown
from potluck.runs.read import read_run
from support.synthetic_runs import Synthetic


def changed(folder: Path, **values: Any) -> potluck.Run:
    """A made-up run of three rounds of ten jobs whose second round has other values."""
    path = Synthetic(rounds=3).write(folder)
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    lines[1] |= values
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_run(path)


def test_rejected_answers_are_counted_with_their_reasons(tmp_path: Path) -> None:
    failures = [
        {"client": client, "kind": "invalid", "reason": f"client {client}: means hold NaN."}
        for client in (1, 2)
    ]
    failures += [{"client": 4, "kind": "lost", "reason": "gone"}]
    run = changed(tmp_path, failures=failures, participants=[0, 3])
    notes = outcome_notes("fedgh", [run])
    answered = int(run.jobs[-1])
    assert notes == [
        f"fedgh: 2 of {answered + 2} answers rejected: a client: means hold NaN.",
        f"fedgh: 1 of {answered + 3} jobs without an answer: lost 1.",
    ]
    comparison = compare([run])
    assert set(notes) <= set(comparison.notes)
    assert notes[0] in to_markdown(comparison)


def test_a_loss_beyond_every_scale_is_divergence(tmp_path: Path) -> None:
    assert outcome_notes("fedgh", [changed(tmp_path)]) == []
    message = divergence([changed(tmp_path, loss=7e19)])
    assert message == "training diverged: the loss was 7e+19 in round 2; lower training.lr"


def test_a_run_that_rejects_answers_says_so_in_its_summary_and_report(tmp_path: Path) -> None:
    run = potluck.run(
        "standalone", clients=3, rounds=2, models="small-mlp", out=tmp_path / "run", lr=1000.0,
        data={"limit": 90}, training={"epochs": 1, "lr": 1000.0}, engine="serial",
    )  # fmt: skip
    assert any("training diverged: the loss was" in note for note in compare([run]).notes)
    run = potluck.run(
        "fedgh", clients=4, rounds=2, models="small-mlp", out=tmp_path / "bad", engine="serial", data={"limit": 90},
        training={"epochs": 1}, faults={"corrupt": 0.5}, seed=1,
    )  # fmt: skip
    rejected = sum(len(row["failures"]) for row in run.rounds)
    assert rejected
    assert run.summary["rejected_answers"] == rejected
    assert "not finite" in run.summary["rejected_because"]
    assert any(f"{rejected} of 8 answers rejected" in note for note in compare([run]).notes)
