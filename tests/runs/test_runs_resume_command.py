"""The commands `potluck resume RUN` and `potluck run … --resume`."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interrupted import assert_same_run
from stopping import stop

from potluck.cli import main

WORDS = [
    "run",
    "fedgh",
    "--rounds",
    "3",
    "--clients",
    "3",
    "--models",
    "small-mlp",
    "--set",
    "training.epochs=1",
    "--quiet",
]


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["potluck", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_a_killed_command_is_resumed_by_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first process is a real one: it is killed as soon as its first checkpoint is there."""
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    program = [sys.executable, "-c", "from potluck.cli import main; main()"]
    process = subprocess.Popen([*program, *WORDS, "--rounds", "40", "--out", str(tmp_path / "killed")])
    while not (tmp_path / "killed/checkpoint/manifest-1.json").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed/summary.json").exists()  # forty rounds left time to kill it
    assert call(monkeypatch, "resume", str(tmp_path / "killed"), "--quiet") == 0
    assert call(monkeypatch, *WORDS, "--rounds", "40", "--out", str(tmp_path / "whole")) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_a_finished_run_says_so_and_exits_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out = ["--out", str(tmp_path / "run"), "--rounds", "1"]
    assert call(monkeypatch, *WORDS, *out) == 0
    for words in ((*WORDS, *out, "--resume"), ("resume", str(tmp_path / "run"))):
        capsys.readouterr()
        assert call(monkeypatch, *words) == 0
        assert "is finished already; nothing to do." in capsys.readouterr().out
    command = f"potluck run fedgh {' '.join(WORDS[2:])}"
    assert command in (tmp_path / "run/summary.json").read_text()


def test_a_folder_that_is_no_run_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert call(monkeypatch, "resume", str(tmp_path)) == 2
    assert "is no run folder (it has no experiment.toml); check the path." in capsys.readouterr().err


def test_runs_with_user_objects_resume_only_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    stop("fedgh", tmp_path, 2)
    assert call(monkeypatch, "resume", str(tmp_path)) == 2
    assert "made with Python objects (federation), which its file cannot hold" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_no_room_for_a_client_is_one_sentence_and_the_run_goes_on_later(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A limit on the size of files stands in for a full disk: what is larger than four pages cannot be written."""
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (16384, -1)); "
        "from potluck.cli import main; main()"
    )
    words = [*WORDS, "--engine", engine, "--out", str(tmp_path / "full")]
    ended = subprocess.run(
        [sys.executable, "-c", limited, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert "could not be written (File too large); make room" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert call(monkeypatch, "resume", str(tmp_path / "full")) == 0
    assert call(monkeypatch, *WORDS, "--out", str(tmp_path / "whole")) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "full")


@pytest.mark.parametrize(
    "words", [["resume", "run", "--rounds", "3", "-q"], [*WORDS, "--out", "run", "--resume"]]
)
def test_a_finished_run_is_extended_to_the_bits_of_a_longer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    monkeypatch.chdir(tmp_path)
    shorter = [
        "2" if word == "3" and WORDS[number - 1] == "--rounds" else word for number, word in enumerate(WORDS)
    ]
    assert call(monkeypatch, *WORDS, "--out", "whole") == 0
    assert call(monkeypatch, *shorter, "--out", "run") == 0
    assert '"rounds": 2' in (tmp_path / "run" / "summary.json").read_text()
    assert call(monkeypatch, *words) == 0
    assert '"rounds": 3' in (tmp_path / "run" / "summary.json").read_text()
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_fewer_rounds_or_another_question_are_still_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *WORDS, "--out", "run") == 0
    before = (tmp_path / "run" / "summary.json").read_text()
    capsys.readouterr()
    assert call(monkeypatch, "resume", "run", "--rounds", "2", "-q") == 2
    assert "schedule.rounds is 3 there and 2 here" in capsys.readouterr().err
    assert call(monkeypatch, *WORDS, "--out", "run", "--rounds", "4") == 2  # without --resume
    assert call(monkeypatch, *WORDS, "--out", "run", "--resume", "--rounds", "4", "--seed", "1") == 2
    assert (tmp_path / "run" / "summary.json").read_text() == before
