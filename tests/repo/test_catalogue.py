"""Lists printed without heavy imports match the code."""

import subprocess
import sys

import pytest

from potluck.cli.lists import build_catalogue, catalogue


def test_catalogue_equals_the_code():
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
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout


def test_running_loads_neither_plotting_nor_networking_packages():
    script = (
        "import sys, potluck; potluck.run\n"
        "more = {'flwr', 'matplotlib', 'scipy', 'sklearn', 'PIL', 'rich', 'typer', 'opacus'} & set(sys.modules)\n"
        "assert not more, more"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
