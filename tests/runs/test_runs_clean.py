"""`potluck clean`: a finished run keeps results and its last checkpoint, which still exports and extends."""

from __future__ import annotations

from pathlib import Path

import potluck as library
from potluck.runs.clean import clean_run


def train(out: Path, rounds: int = 3, **more: object) -> library.Run:
    return library.run(
        "fedgh", clients=2, rounds=rounds, engine="serial", out=out, data={"limit": 100}, **more
    )


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_a_cleaned_run_exports_and_extends_as_before(potluck, tmp_path: Path):
    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "run")
    before = size(tmp_path / "run")
    code, out, _ = potluck("clean", "run")
    assert code == 0
    assert out.startswith("run: ")
    assert len(list((tmp_path / "run" / "checkpoint").glob("manifest-*.json"))) == 1
    assert size(tmp_path / "run") < before
    assert potluck("export", "run", "--out", "model")[0] == 0
    longer = train(tmp_path / "run", 4, resume=True)
    assert longer.summary["client_accuracy"] == whole.summary["client_accuracy"]


def test_without_its_checkpoint_a_run_keeps_its_results(potluck, tmp_path: Path):
    run = train(tmp_path / "run", 1)
    before = size(tmp_path / "run")
    cleaned = clean_run("run", checkpoint=True)
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert cleaned.deleted == before - cleaned.left > 0
    assert library.read_run("run").summary == run.summary
    code, _, err = potluck("export", "run")
    assert code == 2
    assert "has no checkpoint" in err


def test_only_finished_runs_are_cleaned(potluck, tmp_path: Path):
    train(tmp_path / "run", 1)
    (tmp_path / "run" / "summary.json").unlink()
    code, _, err = potluck("clean", "run")
    assert code == 2
    assert "has not finished, and its checkpoints are what it continues from" in err
    assert "is no run folder" in potluck("clean", "elsewhere")[2]
