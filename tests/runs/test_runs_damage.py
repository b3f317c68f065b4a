"""Damaged checkpoints, full disks, locked folders: one sentence, and the last good checkpoint."""

import errno
import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from interrupted import Child, assert_same_run, checkpoint_of, run
from stopping import flip, stop, truncate

from potluck.core.errors import PotluckError
from potluck.runs import folder, generations
from potluck.runs.folder import lock_folder

NeverStopped = Callable[[str], Path]

HARMS: dict[str, Callable[[Path], None]] = {
    "a bit of the manifest": lambda path: flip(path / "manifest-3.json", 400),
    "a bit of the manifest's checksum": lambda path: flip(path / "manifest-3.json", 60),
    "half of the manifest": lambda path: truncate(path / "manifest-3.json"),
    "an empty manifest": lambda path: (path / "manifest-3.json").write_bytes(b""),
    "brackets instead of a manifest": lambda path: (path / "manifest-3.json").write_text("[" * 9000),
    "a manifest of brackets": lambda path: (path / "manifest-3.json").write_text(
        '{"version": 2, "sha256": "", "body": ' + "[" * 900 + "]" * 900 + "}"
    ),
    "a manifest of nothing": lambda path: (path / "manifest-3.json").write_text(
        json.dumps({"version": 2, "sha256": generations._digest("[]"), "body": []})
    ),
    "a bit of the server": lambda path: flip(path / "server-3.safetensors", -20),
    "a bit of a client": lambda path: flip(path / "client-2-3.safetensors", 100),
    "the end of a client": lambda path: truncate(path / "client-2-3.safetensors"),
    "a whole client": lambda path: (path / "client-2-3.safetensors").unlink(),
}


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with whole checkpoints of rounds 2 and 3."""
    path = tmp_path_factory.mktemp("stopped")
    for step in (2, 3, 4):  # the writing is always waited for when a run stops
        stop("fedgh", path, step)
    assert generations.CheckpointStore(path / "checkpoint").numbers() == [3, 2]
    return path


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of it to do harm to."""
    return Path(shutil.copytree(stopped_once, tmp_path / "stopped"))


@pytest.mark.parametrize("harm", HARMS)
def test_the_previous_checkpoint_is_used_with_one_line_of_warning(
    harm: str, stopped: Path, caplog: pytest.LogCaptureFixture
):
    assert checkpoint_of(stopped).manifest.round == 3
    HARMS[harm](stopped / "checkpoint")
    with caplog.at_level(logging.WARNING, "potluck"):
        assert checkpoint_of(stopped).manifest.round == 2
    (warning,) = caplog.messages
    assert "\n" not in warning
    assert warning.endswith("continuing from the checkpoint of round 2.")


def test_from_the_previous_checkpoint_it_goes_on_just_as_well(stopped: Path, never_stopped: NeverStopped):
    HARMS["a bit of a client"](stopped / "checkpoint")
    run("fedgh", stopped)
    assert_same_run(never_stopped("fedgh"), stopped)


def test_no_good_checkpoint_is_a_sentence_with_a_remedy(stopped: Path):
    for number in (2, 3):
        flip(stopped / f"checkpoint/server-{number}.safetensors", 50)
    with pytest.raises(
        PotluckError,
        match=r"All checkpoints .* are damaged \(server-3.safetensors does not match its checksum\); delete",
    ):
        run("fedgh", stopped)


def test_metrics_shorter_than_saved_count_as_damage(stopped: Path):
    os.truncate(stopped / "rounds.jsonl", checkpoint_of(stopped).manifest.metrics["rounds.jsonl"] - 10)
    assert checkpoint_of(stopped).manifest.round == 2


def test_a_checkpoint_of_a_later_potluck_is_not_guessed_at(stopped: Path):
    path = stopped / "checkpoint/manifest-3.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 9}))
    with pytest.raises(PotluckError, match=r"has format version 9, this Potluck reads 2"):
        run("fedgh", stopped)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_ends_the_run_with_a_sentence_and_harms_nothing(
    code: int, patient: None, monkeypatch: pytest.MonkeyPatch, never_stopped: NeverStopped, tmp_path: Path
):
    write = generations._write

    def full(path: Path, buffers: Sequence[bytes]) -> None:
        if path.name == "client-3-3.safetensors":
            path.write_bytes(buffers[0][:10])
            raise OSError(code, os.strerror(code))
        write(path, buffers)

    with monkeypatch.context() as patch:
        patch.setattr(generations, "_write", full)
        with pytest.raises(PotluckError) as caught:
            run("fedgh", tmp_path / "full")
    checkpoint = tmp_path / "full/checkpoint"
    assert str(caught.value) == (
        f"The checkpoint in {str(checkpoint)!r} could not be written ({os.strerror(code)}); make room or make it "
        f"writable, then continue with: potluck resume {tmp_path / 'full'}"
    )
    assert generations.CheckpointStore(checkpoint).numbers() == [2, 1]
    assert not list(checkpoint.glob("*-3.*"))
    run("fedgh", tmp_path / "full")
    assert_same_run(never_stopped("fedgh"), tmp_path / "full")


def test_metrics_that_cannot_be_written_end_the_run_with_a_sentence(
    patient: None, monkeypatch: pytest.MonkeyPatch, never_stopped: NeverStopped, tmp_path: Path
):
    count = 0

    def dumps(row: object) -> str:
        nonlocal count
        count += 1
        if count == 14:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return json.dumps(row)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "json", type("json", (), {"dumps": staticmethod(dumps)}))
        with pytest.raises(
            PotluckError, match=r"jsonl' could not be written \(No space left.*potluck resume"
        ):
            run("fedgh", tmp_path / "full")
    run("fedgh", tmp_path / "full")
    assert_same_run(never_stopped("fedgh"), tmp_path / "full")


def test_a_read_only_folder_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def refuse(*args: object, **kwargs: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PotluckError, match=r"cannot be written to \(Permission denied\); make it writable"):
        run("fedgh", tmp_path / "new")


def test_a_second_process_is_refused(tmp_path: Path):
    with (
        lock_folder(tmp_path),
        pytest.raises(PotluckError, match=rf"in use by another process \(id {os.getpid()}\)"),
    ):
        run("fedgh", tmp_path, rounds=1)
    run("fedgh", tmp_path, rounds=1)


def test_the_lock_ends_with_a_killed_process_whatever_it_forked(tmp_path: Path):
    def hold() -> None:
        with lock_folder(tmp_path):
            if os.fork() == 0:
                time.sleep(30)  # as a worker process would outlive its parent for a moment
                os._exit(0)
            (tmp_path / "held").touch()
            time.sleep(30)

    child = Child(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(PotluckError, match="in use"), lock_folder(tmp_path):
        pass
    os.kill(child.process.pid or 0, signal.SIGKILL)
    assert child.end()
    with lock_folder(tmp_path):
        pass
