"""`potluck clean`: a finished run keeps results and its last checkpoint, which still exports and extends."""

from __future__ import annotations

from pathlib import Path

from stopping import flip

import potluck as library
from potluck.runs.clean import clean_run


def train(out: Path, rounds: int = 3, **more: object) -> library.Run:
    return library.run(
        "fedgh", clients=2, rounds=rounds, engine="serial", out=out, data={"limit": 100}, **more
    )


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def manifests(run: Path) -> list[str]:
    return sorted(file.name for file in (run / "checkpoint").glob("manifest-*.json"))


def add_older_checkpoint(run: Path) -> None:
    """Add the files that a run leaves which was killed while it was extended."""
    (run / "checkpoint" / "manifest-0.json").write_text("{}")
    (run / "checkpoint" / "client-0-0.safetensors").write_bytes(bytes(100))


def test_a_finished_run_keeps_one_file_per_client(tmp_path: Path):
    train(tmp_path / "run")
    kept = sorted(file.name.rpartition("-")[0] for file in (tmp_path / "run" / "checkpoint").iterdir())
    assert kept == ["client-0", "client-1", "manifest", "server"]
    train(tmp_path / "run", 4, resume=True)
    assert len(manifests(tmp_path / "run")) == 1


def test_a_finished_run_with_a_damaged_checkpoint_is_one_sentence(potluck, tmp_path: Path):
    train(tmp_path / "run")
    (state,) = (tmp_path / "run" / "checkpoint").glob("client-0-*.safetensors")
    flip(state, 100)
    for words in (("export", "run"), ("resume", "run", "--rounds", "4"), ("clean", "run"), ("export", "run")):
        code, _, err = potluck(*words)
        assert code == 2
        assert f"checkpoints of 'run' are damaged ({state.name} does not match its checksum)" in err
        assert "Traceback" not in err
    assert (tmp_path / "run" / "summary.json").exists()
    assert potluck("report", "run")[0] == 0


def test_a_cleaned_run_exports_and_extends_as_before(potluck, tmp_path: Path):
    uninterrupted = train(tmp_path / "whole", 4)
    train(tmp_path / "run")
    add_older_checkpoint(tmp_path / "run")
    before = size(tmp_path / "run")
    code, out, _ = potluck("clean", "run")
    assert code == 0
    assert out.startswith("run: ")
    assert len(manifests(tmp_path / "run")) == 1
    assert size(tmp_path / "run") < before
    assert potluck("export", "run", "--out", "model")[0] == 0
    longer = train(tmp_path / "run", 4, resume=True)
    assert longer.summary["client_accuracy"] == uninterrupted.summary["client_accuracy"]


def test_without_its_checkpoint_a_run_keeps_its_results(potluck, tmp_path: Path):
    run = train(tmp_path / "run", 1)
    before = size(tmp_path / "run")
    cleaned = clean_run("run", checkpoint=True)
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert cleaned.deleted == before - cleaned.left > 0
    assert library.read_run("run").summary == run.summary
    code, _, err = potluck("export", "run")
    assert code == 2
    assert "has no checkpoint any more" in err
    assert "potluck clean --checkpoint removes it; train again: potluck run run/experiment.toml" in err
    longer = train(tmp_path / "run", 2, resume=True)  # from the start
    assert [row["round"] for row in longer.rounds] == [1, 2]


def test_only_finished_runs_are_cleaned(potluck, tmp_path: Path):
    train(tmp_path / "run", 1)
    (tmp_path / "run" / "summary.json").unlink()
    code, _, err = potluck("clean", "run")
    assert code == 2
    assert "has not finished, and its checkpoints are what it continues from" in err
    code, _, err = potluck("clean", "elsewhere")
    assert code == 2
    assert "No run folder at 'elsewhere'" in err


def test_a_folder_of_runs_is_cleaned_but_for_unfinished_ones(potluck, tmp_path: Path):
    for name in ("one", "two", "open"):
        train(tmp_path / "runs" / name, 2)
        add_older_checkpoint(tmp_path / "runs" / name)
    (tmp_path / "runs" / "table.csv").write_text("")
    (tmp_path / "runs" / "open" / "summary.json").unlink()
    code, out, _ = potluck("clean", "runs")
    assert code == 0
    assert [line.partition(": ")[0] for line in out.splitlines()] == ["runs/one", "runs/open", "runs/two"]
    assert "runs/open: not finished, left as it is" in out
    kept = {name: len(manifests(tmp_path / "runs" / name)) for name in ("one", "two", "open")}
    assert kept == {"one": 1, "two": 1, "open": 2}


def test_clients_are_exported_by_name(potluck, tmp_path: Path):
    run = train(tmp_path / "run", 1)
    name = run.summary["client_names"][1]
    assert potluck("export", "run", "--client", name)[0] == 0
    assert (tmp_path / "run" / "export" / "client-1" / "model.json").exists()
    code, _, err = potluck("export", "run", "--client", "client-7")
    assert code == 2
    assert "client-7" in err
