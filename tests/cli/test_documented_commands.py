"""Every command that the documentation shows runs as it stands, page by page, in one folder per page.

Training is made small (one round, one epoch, few rows, one process), everything else is as written. A command that needs
what a test has not is marked for the reader: a comment on its line, or on the line above, that says what it `needs` or
that it `takes` long; what follows `pip install 'potluck[…]'` needs that. Of such a command the flags and settings are read.
"""

import glob
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import potluck.api as api
from potluck.experiment import Experiment

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = ("", "sh", "bash", "shell", "console")
BLOCK = re.compile(
    r"^```(\w*)[^\n]*\n(.*?)^```|(?:(?<=\n\n)|\A)((?:^ {4}[^\n]*\n|^\n(?= {4}))+)", re.MULTILINE | re.DOTALL
)
EXTRA = "what follows needs an extra"
MARK = re.compile(r"#.*\b(needs|takes)\b")


def lines_of(block: str) -> Iterator[tuple[str, bool]]:
    """Commands of a block, continued lines joined, and whether each is marked as not to be run here."""
    above = ""
    if "pip install 'potluck[" in block:
        yield EXTRA, True
    for line in block.replace("\\\n", " ").splitlines():
        command = re.sub(r"^(\$ )?(\S*/)?potluck ", "potluck ", line.strip())
        if command.startswith("potluck "):
            yield re.split(r"\s#\s", command)[0].strip(), bool(MARK.search(above) or MARK.search(line))
        above = line if line.strip().startswith("#") else ""


def parts_of(page: Path) -> Iterator[tuple[str, str, bool]]:
    """What a page shows, in order: ("save", name, text) of files, ("run", command, marked) of commands."""
    text, extra = page.read_text(), False
    for block in BLOCK.finditer(text):
        language, fenced, indented = block.groups()
        before = text[: block.start()].rstrip().rpartition("\n")[2]
        name = re.search(r"`([\w.-]+\.(?:csv|toml|py))`[^`]*:$", before)
        if fenced is not None and language not in SHELL:
            if name:
                yield "save", f"{name.group(1)}\n{fenced}", False
            continue
        for command, marked in lines_of(
            fenced if fenced is not None else re.sub("^ {4}", "", indented, flags=re.M)
        ):
            extra = extra or command == EXTRA
            if command != EXTRA:
                yield "run", command, marked or extra


def with_commands() -> list[Path]:
    return [page for page in PAGES if any(kind == "run" for kind, _, _ in parts_of(page))]


def words_of(command: str) -> list[str]:
    """The words that a shell would give the command, patterns of files expanded."""
    words = shlex.split(command)[1:]
    return [name for word in words for name in ((sorted(glob.glob(word)) if "*" in word else []) or [word])]


def quickly(words: list[str]) -> list[str]:
    """The same with less to do, where other processes than this one do it."""
    if words[0] != "tune":
        return words
    fewer = ["--trials", "2"] if "--trials" in words else []
    return [*words, *fewer, "--rounds", "1", "--clients", "3", "--jobs", "1", "--set", "data.limit=300"]


def read_flags(words: list[str]) -> None:
    """Refuse a flag or a setting that there is not, without doing anything."""
    import typer.main

    from potluck.cli import app
    from potluck.experiment import flag_values, merge_settings, parse_experiment, read_target

    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    params = command.make_context("potluck", words).params
    targets = params.get("what") or ([params["target"]] if "target" in params else [])
    for target in [
        target
        for target in targets
        if isinstance(target, str) and not target.endswith(".toml") and target != "all"
    ]:
        values = merge_settings(read_target(target), flag_values(params), params.get("settings"))
        parse_experiment(values).build_method()


def small(experiment: Experiment) -> Experiment:
    less = {"schedule.rounds": 1, "training.epochs": 1, "engine.name": "serial", "engine.workers": 0}
    if not experiment.data.limit and experiment.partition.clients <= 20:
        less["data.limit"] = 400
    return experiment.with_settings(less)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one short round."""
    execute = api.execute

    def smaller(experiment: Experiment, *args: Any, **options: Any) -> Any:
        finished = options.get("resume") and (Path(options["out"] or "") / "summary.json").exists()
        return execute(experiment if finished else small(experiment), *args, **options)

    monkeypatch.setattr(api, "execute", smaller)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("page", with_commands(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_run(potluck, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    for kind, text, marked in parts_of(page):
        if kind == "save":
            name, _, content = text.partition("\n")
            (tmp_path / name).write_text(content)
        elif marked:
            read_flags(words_of(text))
        else:
            code, _, err = potluck(*quickly(words_of(text)))
            expected = 2 if re.search(rf"^ *\$ {re.escape(text)}\n *Error: ", page.read_text(), re.M) else 0
            assert code == expected, f"{text}\n{err}"


def test_commands_in_documentation_are_recognised():
    commands = [command for page in with_commands() for _, command, _ in parts_of(page)]
    assert len(commands) > 60
    assert any(command.startswith("potluck plot runs/compare") for command in commands)
    assert list(
        lines_of("# needs a GPU\npotluck run fedgh \\\n  --rounds 2\n$ potluck methods  # all\n")
    ) == [
        ("potluck run fedgh    --rounds 2", True),
        ("potluck methods", False),
    ]


def test_flags_of_marked_commands_are_read():
    read_flags(["run", "fedgh", "--data", "cifar10", "--set", "method.server_lr=0.1"])
    read_flags(["node", "start", "node.toml", "--server", "example.org:1"])
    for words in (
        ["run", "fedgh", "--dta", "cifar10"],
        ["run", "fedgh", "--set", "training.rl=1"],
        ["nod", "x"],
    ):
        with pytest.raises(Exception, match=r"dta|training\.rl|nod"):
            read_flags(words)


def test_files_and_commands_are_distinguished_from_other_text(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n    potluck methods\n\nSave as `a.csv`:\n\n```csv\nx,y\n```\n\nThen\n\n```\npotluck models\n```\n"
        "\n```python\npotluck.run()\n```\n\n    pip install 'potluck[flower]'\n\n    potluck node check x.toml\n"
    )
    assert list(parts_of(page)) == [
        ("run", "potluck methods", False),
        ("save", "a.csv\nx,y\n", False),
        ("run", "potluck models", False),
        ("run", "potluck node check x.toml", True),
    ]


def test_targets_of_make_exist():
    rules = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"^ *(?:\$ )?make ([a-z-]+)", page.read_text(), re.M):
            assert re.search(rf"^{target}:", rules, re.M), f"{page.name}: make {target}"
