"""A project made by `potluck new` works as it stands: its own tests, its experiment in Python and the one in a file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_project_runs(potluck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code, out, _ = potluck("new", "fed-mine")
    assert code == 0
    assert re.search(r"Try it: cd fed-mine && \S+ experiment.py", out)
    project = tmp_path / "fed-mine"
    names = {
        "README.md",
        "data.py",
        "experiment.py",
        "experiment.toml",
        "method.py",
        "model.py",
        "test_method.py",
    }
    assert {path.name for path in project.iterdir()} == names
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    for words in (
        ["-m", "pytest", "-q", "-p", "no:cacheprovider"],
        ["experiment.py"],
        ["-m", "potluck", "run", "experiment.toml", "-q", "--rounds", "1", "--engine", "serial"],
    ):
        process = subprocess.run(
            [sys.executable, *words], cwd=project, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout + process.stderr
    assert (project / "runs/fedmine-digits-seed0/report.html").exists()
    assert 'name = "method:FedMine"' in (project / "experiment.toml").read_text()
    assert 'name: ClassVar[str] = "fed-mine"' in (project / "method.py").read_text()


def test_printed_commands_work_for_a_folder_with_spaces(
    potluck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, out, _ = potluck("new", "my first project")
    assert code == 0
    command = re.search(r"Try it: (.*)", out).group(1)
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    process = subprocess.run(
        command.replace("experiment.py", "-c 'import experiment'"), shell=True, cwd=tmp_path, check=False
    )
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("name", "says"), [("full", "exists and is not empty"), ("42", "begins with a letter")]
)
def test_a_name_that_cannot_be_is_one_sentence(potluck, tmp_path: Path, name: str, says: str):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    code, out, err = potluck("new", name)
    assert (code, out) == (2, "")
    assert says in err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
