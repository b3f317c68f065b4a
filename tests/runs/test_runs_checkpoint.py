"""Checkpoints: contents, times, and exact continuation."""

import json
import threading
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from interrupted import assert_same_run, assert_same_state, checkpoint_of, run, summary
from stopping import stop

import potluck
from potluck.core.errors import PotluckError
from potluck.runs import checkpointer, generations
from potluck.runs.checkpoint import Checkpoint, last_checkpoint
from potluck.runs.digests import fingerprint
from potluck.wire import from_bytes
from support.tiny import StopAt, tiny

NeverStopped = Callable[[str], Path]


@pytest.mark.parametrize(
    ("case", "step"),
    [(case, step) for case in ("fedgh", "fedavg", "scaffold") for step in (2, 5)]
    + [("fedhe", 3), ("fedhe", 8), ("fedhe", 14), ("fedgh-async", 4), ("fedgh-async", 9)],
)
def test_stopped_and_resumed_is_as_never_stopped(
    case: str, step: int, never_stopped: NeverStopped, tmp_path: Path
):
    stop(case, tmp_path / "stopped", step)
    resumed = run(case, tmp_path / "stopped")
    assert not resumed.was_finished
    assert_same_run(never_stopped(case), tmp_path / "stopped")


def test_running_jobs_are_saved_with_their_updates(patient: None, tmp_path: Path):
    stop("fedgh-async", tmp_path, 6)
    manifest = checkpoint_of(tmp_path).manifest
    assert len(manifest.progress["flights"]) == 1  # three at work, two of them have just been folded in
    state = checkpoint_of(tmp_path).generations.read_state(manifest.server).tensors
    sent, came = (from_bytes(state[f"/flights/0/{part}"].numpy().tobytes()) for part in ("job", "result"))
    assert came.facts["answer"]["train_loss"] > 0
    assert came.facts["scores"]["own"]["samples"] == 9
    assert sent.payload.tensors["weights.weight"].shape == (3, 3)
    assert came.payload.tensors["means"].shape[1] == 3


def test_only_changed_state_is_written(patient: None, tmp_path: Path):
    stop("fedavg", tmp_path, 4)
    rows = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    manifest = checkpoint_of(tmp_path).manifest
    written = {
        int(index) for index, entry in manifest.clients.items() if entry["file"].endswith("-3.safetensors")
    }
    assert manifest.generation == manifest.round == 3
    assert written == set(rows[2]["participants"])
    assert len(written) == 2
    assert set(map(int, manifest.clients)) == {client for row in rows[:3] for client in row["participants"]}


def test_the_last_two_generations_are_kept_and_nothing_else(patient: None, tmp_path: Path):
    stop("fedavg", tmp_path, 5)
    store = generations.CheckpointStore(tmp_path / "checkpoint")
    assert store.numbers() == [4, 3]
    needed = {entry["file"] for number in (4, 3) for entry in store.read(number).entries()}
    there = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert there == needed | {"manifest-4.json", "manifest-3.json"}


def test_every_so_many_rounds_and_always_the_last(patient: None, tmp_path: Path):
    stop("fedgh", tmp_path, 5, rounds=5, checkpoint_every=2)
    assert [checkpoint_of(tmp_path).manifest.generation, checkpoint_of(tmp_path).manifest.round] == [2, 4]
    run("fedgh", tmp_path, rounds=5, checkpoint_every=2)
    assert [checkpoint_of(tmp_path).manifest.generation, checkpoint_of(tmp_path).manifest.round] == [3, 5]
    assert generations.CheckpointStore(tmp_path / "checkpoint").numbers() == [3]


def test_no_checkpoints_where_disabled(tmp_path: Path):
    run("fedgh", tmp_path, rounds=2, checkpoint_every=0)
    assert not (tmp_path / "checkpoint").exists()
    assert last_checkpoint(tmp_path) is None


def test_a_slow_disk_costs_checkpoints_and_not_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The disk sticks from the first write on until round 4 is over: rounds 2 and 3 are not waited for."""
    free, write = threading.Event(), generations._write

    def slow(path: Path, buffers: Sequence[bytes]) -> None:
        assert free.wait(60)
        write(path, buffers)

    class Free(potluck.Callback):
        def on_step(self, step: potluck.Step) -> None:
            if step.record.round == 4:
                free.set()

    monkeypatch.setattr(generations, "_write", slow)
    run("fedgh", tmp_path, callbacks=[Free()])
    assert checkpoint_of(tmp_path).manifest.round == 6
    assert checkpoint_of(tmp_path).manifest.generation in (2, 3, 4)


def test_a_population_larger_than_memory_is_saved_piece_by_piece(
    patient: None, monkeypatch: pytest.MonkeyPatch, never_stopped: NeverStopped, tmp_path: Path
):
    monkeypatch.setattr(checkpointer, "MAX_PENDING_BYTES", 100)
    stop("fedgh", tmp_path / "stopped", 3)
    run("fedgh", tmp_path / "stopped")
    assert_same_run(never_stopped("fedgh"), tmp_path / "stopped")


def test_clients_are_read_only_when_they_are_needed(
    patient: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    stop("fedavg", tmp_path, 5)
    saved = set(map(int, checkpoint_of(tmp_path).manifest.clients))
    reads: list[int] = []
    client = Checkpoint.client
    monkeypatch.setattr(Checkpoint, "client", lambda self, index: reads.append(index) or client(self, index))
    stop("fedavg", tmp_path, 5)
    rows = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert reads == rows[-1]["participants"]
    assert len(reads) < len(saved)


def test_a_finished_run_says_so_and_is_left_alone(tmp_path: Path):
    first = run("fedgh", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}
    again = run("fedgh", tmp_path)
    assert again.was_finished
    assert again.summary == first.summary
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_final_checkpoint_holds_the_trained_clients(tmp_path: Path):
    clients = {}

    class Look(potluck.Callback):
        def on_end(self, end: potluck.End) -> None:
            clients.update(end.fetch(2))

    run("fedgh", tmp_path, callbacks=[Look()])
    saved = checkpoint_of(tmp_path).client(2)
    assert saved is not None
    from potluck.core.tree import flatten

    assert_same_state(saved, flatten(clients))


def test_without_a_checkpoint_it_starts_from_the_beginning(never_stopped: NeverStopped, tmp_path: Path):
    stop("fedgh", tmp_path / "stopped", 3, checkpoint_every=0)
    assert len((tmp_path / "stopped/rounds.jsonl").read_text().splitlines()) == 3
    run("fedgh", tmp_path / "stopped")
    assert_same_run(never_stopped("fedgh"), tmp_path / "stopped")


def test_ctrl_c_says_how_to_go_on(tmp_path: Path):
    assert stop("fedgh", tmp_path, 2).__notes__ == [f"Continue with: potluck resume {tmp_path}"]


def test_ctrl_c_while_a_client_trains(
    monkeypatch: pytest.MonkeyPatch, never_stopped: NeverStopped, tmp_path: Path
):
    from potluck.core.client import Client

    count, apply = 0, Client.apply

    def stopping(self: Client, optimizer: torch.optim.Optimizer) -> None:
        nonlocal count
        count += 1
        if count == 50:
            raise KeyboardInterrupt
        apply(self, optimizer)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "apply", stopping)
        with pytest.raises(KeyboardInterrupt):
            run("fedgh", tmp_path / "stopped")
    run("fedgh", tmp_path / "stopped")
    assert_same_run(never_stopped("fedgh"), tmp_path / "stopped")


def test_a_client_that_failed_is_saved_as_the_failure_left_it(tmp_path: Path):
    more = {
        "faults": {"crash": 0.3, "dropout": 0.1},
        "schedule": {"on_failure": "continue", "min_clients": 0},
    }
    run("fedavg", tmp_path / "whole", **more)
    rows = [json.loads(line) for line in (tmp_path / "whole/rounds.jsonl").read_text().splitlines()]
    assert any(row["failures"] for row in rows)
    stop("fedavg", tmp_path / "stopped", 4, **more)
    run("fedavg", tmp_path / "stopped", **more)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_the_papers_way_of_counting_goes_on(never_stopped: NeverStopped, tmp_path: Path):
    """Clients hold different classes, so that the mean over exchanges tells which ones were counted."""
    stop("fedgh-async", tmp_path, 9)
    counted = run("fedgh-async", tmp_path).summary["paper_accounting"]
    assert counted["down"] == 9
    assert counted == summary(never_stopped("fedgh-async"))["paper_accounting"]


# -- what the experiment file cannot hold ---------------------------------------------------------------------


def test_user_objects_are_recorded_and_required_on_resume(tmp_path: Path):
    stop("fedgh", tmp_path, 2)
    assert tomllib.loads((tmp_path / "experiment.toml").read_text())["objects"] == ["federation"]
    with pytest.raises(PotluckError, match=r"made with Python objects \(federation\).*resume=True"):
        potluck.run(tmp_path / "experiment.toml", out=tmp_path, resume=True)


def test_other_clients_or_models_are_refused(tmp_path: Path):
    stop("fedgh", tmp_path, 2)
    with pytest.raises(
        PotluckError,
        match=r"The model of client 0 \(Net\) is not the one that the run .* began with: .* pass the same models",
    ):
        run("fedgh", tmp_path, hidden=(6, 7))
    with pytest.raises(PotluckError, match=r"The clients are not those of the run"):
        run("fedgh", tmp_path, sizes=(12, 9, 15))


def test_a_fingerprint_sees_names_data_and_first_weights():
    first_fingerprint = fingerprint(tiny(3))
    assert fingerprint(tiny(3)) == first_fingerprint
    assert fingerprint(tiny(3, sizes=(11,)))["clients"] != first_fingerprint["clients"]
    assert fingerprint(tiny(3, seed=1))["models"] != first_fingerprint["models"]
    assert fingerprint(tiny(3, norm=True))["models"] != first_fingerprint["models"]


def test_another_setting_is_refused(tmp_path: Path):
    stop("fedgh", tmp_path, 2)
    with pytest.raises(PotluckError, match=r"schedule.rounds is 6 there and 5 here"):
        run("fedgh", tmp_path, rounds=5)


def test_runs_with_user_data_and_models_resume(tmp_path: Path):
    from support.tiny import Net, points

    x, y = points(60, 3)
    torch.manual_seed(0)
    own = {"data": (x.float(), y), "models": [Net(hidden=4), Net(hidden=6)], "clients": 4, "partition": "iid"}

    def go(name: str, **more: object) -> None:
        potluck.run("fedgh", rounds=4, out=tmp_path / name, resume=True, **own, **more)

    go("whole")
    with pytest.raises(KeyboardInterrupt):
        go("stopped", callbacks=[StopAt(3)])
    go("stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
