"""A node's private state: committed, restored and rejected versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from potluck.core.errors import PotluckError
from potluck.core.tree import Flat, flatten
from potluck.flower.node.journal import Journal


def after(jobs: int) -> Flat:
    return flatten({"model": {"w": torch.full((2,), float(jobs))}})


def filled(folder: Path, jobs: int, keep: int = 4) -> Journal:
    store = Journal(folder, keep)
    with store.locked():
        for job in range(jobs):
            store.commit(job, b"answer %d" % job, after(job + 1))
    return store


def value(flat: Flat | None) -> float:
    assert flat is not None
    return float(flat.tensors["/model/w"][0])


def test_a_new_node_has_no_state(tmp_path: Path) -> None:
    store = Journal(tmp_path / "run", 2)
    assert store.state() is None
    assert store.answer(0) is None


def test_a_job_starts_from_the_state_that_the_last_one_left(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    assert value(store.state()) == 3
    assert store.answer(5) is None  # jobs 3 and 4 failed and left nothing
    store.commit(5, b"answer 5", after(6))
    assert value(store.state()) == 6


def test_a_job_number_has_one_answer(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    assert [store.answer(job) for job in range(4)] == [b"answer 0", b"answer 1", b"answer 2", None]
    assert value(store.state()) == 3  # asking for job 0 again took nothing away


def test_a_job_that_failed_before_later_ones_were_done_is_over(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    store.commit(3, b"answer 3", after(4))
    with pytest.raises(
        PotluckError, match=r"job 2 is over, and this node has no answer to it \(only to jobs 0 to 3\)"
    ):
        store.answer(2)


def test_an_answer_without_its_state_was_never_committed(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    (tmp_path / "state-2.safetensors").unlink()  # killed between the two writes
    assert store.answer(1) is None
    assert value(store.state()) == 1


def test_only_the_last_jobs_are_kept_and_older_ones_are_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, 6, keep=2)
    assert sorted(path.name for path in tmp_path.glob("state-*")) == [
        "state-5.safetensors",
        "state-6.safetensors",
    ]
    assert store.answer(5) == b"answer 5"
    for job in (0, 3):
        with pytest.raises(PotluckError, match=f"job {job} is over"):
            store.answer(job)


def test_the_folder_and_its_files_are_the_owners_alone(tmp_path: Path) -> None:
    filled(tmp_path / "run", 1)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    entries = list((tmp_path / "run").iterdir())
    assert len(entries) == 3
    assert {path.stat().st_mode & 0o777 for path in entries} == {0o600}
