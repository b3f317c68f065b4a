"""A node's private state: what is committed, what is given again, what is refused."""

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
            store.commit(job, b"question %d" % job, b"answer %d" % job, after(job + 1))
    return store


def value(flat: Flat | None) -> float:
    assert flat is not None
    return float(flat.tensors["/model/w"][0])


def test_a_new_node_has_no_state(tmp_path: Path) -> None:
    assert Journal(tmp_path / "run", 2).state(0) is None


def test_a_job_starts_from_the_state_that_the_one_before_left(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    assert value(store.state(3)) == 3
    assert value(store.state(2)) == 2  # a restarted server asks for job 2 again
    assert value(store.state(5)) == 3  # jobs 3 and 4 failed and left nothing


def test_the_same_question_gets_the_same_answer_another_one_none(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    assert store.answer(1, b"question 1") == b"answer 1"
    assert store.answer(1, b"another question") is None
    assert store.answer(2, b"question 2") is None


def test_an_answer_without_its_state_was_never_committed(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    (tmp_path / "state-2.safetensors").unlink()  # killed between the two writes
    assert store.answer(1, b"question 1") is None
    assert value(store.state(1)) == 1


def test_redoing_a_job_voids_what_followed_it(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    store.commit(1, b"new", b"fresh", after(7))
    assert store.answer(2, b"question 2") is None
    assert value(store.state(9)) == 7


def test_only_the_last_jobs_are_kept_and_older_ones_are_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, 6, keep=2)
    assert sorted(path.name for path in tmp_path.glob("state-*")) == [
        "state-5.safetensors",
        "state-6.safetensors",
    ]
    assert store.answer(5, b"question 5") == b"answer 5"
    with pytest.raises(PotluckError, match="job 2 is older than what this node keeps"):
        store.state(2)
    assert store.state(0) is None  # a run may always begin anew


def test_the_folder_is_the_owners_alone(tmp_path: Path) -> None:
    filled(tmp_path / "run", 1)
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
