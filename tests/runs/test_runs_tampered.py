"""Changed run folders are detected wherever they are read, and before a run resumes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from interrupted import checkpoint_of, run
from stopping import stop

import potluck
from potluck.core.errors import PotluckError
from potluck.runs.digests import GrowingDigest, file_digest
from support.tiny import tiny


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    potluck.run("fedproto", federation=tiny(2), rounds=2, engine="serial", out=path)
    return path


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_once, tmp_path / "run"))


def another_digit(path: Path) -> None:
    """Change one digit of the first line, so that it is as long and as good JSON as before."""
    text = path.read_text()
    place = re.search(r'"train_loss": \d\.(\d)|"loss": \d\.(\d)|"best_round": (\d)', text)
    assert place is not None
    at = place.end() - 1
    path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])


def another_rate(path: Path) -> None:
    text = path.read_text()
    changed = re.sub(r"^lr = .*$", "lr = 0.123", text, flags=re.M)
    assert changed != text
    path.write_text(changed)


HARMS: dict[str, Callable[[Path], None]] = {
    "rounds.jsonl": another_digit,
    "clients.jsonl": another_digit,
    "summary.json": another_digit,
    "experiment.toml": another_rate,
}


@pytest.mark.parametrize("name", HARMS)
def test_a_finished_run_that_was_changed_is_not_read(name: str, finished: Path):
    assert potluck.read_run(finished).summary["rounds"] == 2
    HARMS[name](finished / name)
    with pytest.raises(PotluckError, match=rf"{name}' was changed after the run ended: restore it or repeat"):
        potluck.read_run(finished)
    (finished / "digests.json").unlink()  # as the sentence says
    potluck.read_run(finished)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 9000])
def test_digests_that_are_none_count_as_a_change(text: str, finished: Path):
    (finished / "digests.json").write_text(text)
    with pytest.raises(PotluckError, match="was changed after the run ended"):
        potluck.read_run(finished)


def test_worker_count_may_differ_in_a_finished_run(finished: Path):
    file = finished / "experiment.toml"
    file.write_text("# a comment\n" + file.read_text().replace("workers = 0", "workers = 3"))
    potluck.read_run(finished)


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with whole checkpoints of rounds 2 and 3, which another process could go on with."""
    path = tmp_path_factory.mktemp("stopped")
    for step in (2, 3, 4):
        stop("fedgh", path, step)
    return path


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "stopped"))


def test_an_interrupted_run_does_not_go_on_with_another_learning_rate(stopped: Path):
    assert checkpoint_of(stopped).manifest.round == 3
    another_rate(stopped / "experiment.toml")
    with pytest.raises(PotluckError, match=r"experiment.toml' was changed after the run began: restore it"):
        checkpoint_of(stopped)


class Meddler(potluck.Callback):
    """Changes the experiment's file in the first round, before there is any checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_step(self, step: potluck.Step) -> None:
        if step.record.round == 1:
            another_rate(self.path / "experiment.toml")


def test_a_change_before_the_first_checkpoint_is_noticed_too(tmp_path: Path):
    meddler = Meddler(tmp_path / "run")
    potluck.run(
        "fedproto", federation=tiny(2), rounds=2, engine="serial", out=meddler.path, callbacks=[meddler]
    )
    with pytest.raises(PotluckError, match=r"experiment.toml' was changed after the run began: restore it"):
        checkpoint_of(meddler.path)


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
def test_an_interrupted_run_does_not_go_on_with_other_metrics(name: str, stopped: Path):
    another_digit(stopped / name)  # in the first line, which both checkpoints know
    with pytest.raises(
        PotluckError, match=rf"All checkpoints .* are damaged \({name} was changed after it was saved\)"
    ):
        run("fedgh", stopped)


def test_a_change_that_only_the_newest_checkpoint_knows_costs_one_round(stopped: Path):
    path = stopped / "rounds.jsonl"
    size = json.loads((stopped / "checkpoint/manifest-2.json").read_text())["body"]["metrics"]["rounds.jsonl"]
    data = bytearray(path.read_bytes())
    data[size + 10] ^= 1
    path.write_bytes(data)
    assert checkpoint_of(stopped).manifest.round == 2


def test_a_growing_file_is_read_once_and_has_the_digest_of_all(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    growing = GrowingDigest(path)
    assert growing.now() == (3, file_digest(path))
    with open(path, "ab") as file:
        file.write(b"two" * 10**6)
    assert growing.now() == (3 + 3 * 10**6, file_digest(path))
    assert file_digest(path, 3) != file_digest(path)
