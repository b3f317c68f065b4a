"""The experiment files of examples/ begin with their command, and that command runs."""

import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from potluck.cli import app

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_begins_with_the_command_that_runs_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    command = path.read_text().splitlines()[0].removeprefix("# ")
    assert command == f"potluck run examples/{path.name}"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    small = ["--rounds", "1", "--engine", "serial", "--out", "run", "--set", "data.limit=300"]
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], *small])
    assert result.exit_code == 0, result.output
    written = tomllib.loads(Path("run/experiment.toml").read_text())
    assert written["method"]["name"] == tomllib.loads(path.read_text())["method"]["name"]


def test_the_list_of_examples_is_complete():
    page = (ROOT / "examples" / "README.md").read_text()
    named = {line.split("](")[1].split(")")[0] for line in page.splitlines() if line.startswith("| [")}
    scripts = {path.name for path in FILES} | {
        f"notebooks/{path.name}" for path in (ROOT / "examples/notebooks").glob("*.ipynb")
    }
    assert named == scripts
