"""Lists printed without heavy imports match the code."""

import subprocess
import sys

import pytest

from potluck.cli.lists import build_catalogue, catalogue


def test_the_catalogue_is_what_the_code_has():
    assert catalogue() == build_catalogue(), "write it again: python -m potluck.cli.lists"


@pytest.mark.parametrize("words", [["methods"], ["models"], ["datasets"], ["--version"], ["run", "--help"]])
def test_lists_load_nothing_heavy(words: list[str]):
    script = (
        "import sys; from potluck.cli import main\n"
        f"sys.argv = ['potluck', *{words!r}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_running_loads_neither_what_draws_nor_what_other_machines_need():
    script = (
        "import sys, potluck; potluck.run\n"
        "more = {'flwr', 'matplotlib', 'scipy', 'sklearn', 'PIL', 'rich', 'typer', 'opacus'} & set(sys.modules)\n"
        "assert not more, more"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
