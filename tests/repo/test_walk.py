"""Few files run between the command and the first training step, and the design page lists them."""

from pathlib import Path

import pytest

from generate import walk
from generate.text import find_block


@pytest.fixture(scope="module")
def files() -> list[str]:
    return walk.trace_files()


def test_the_walk_begins_at_the_command_and_ends_at_the_client(files: list[str]):
    assert files[:2] == ["cli/__init__.py", "cli/run.py"]
    assert {"api.py", "runs/resolve.py", "runs/train.py", "loop/loop.py", "methods/fedgh.py"} <= set(files)
    assert files[-1] == "core/client.py"


def test_unused_features_are_not_entered(files: list[str]):
    off = (
        "attacks/",
        "loop/faults",
        "privacy/",
        "loop/newcomers",
        "federation/devices",
    )
    assert [name for name in files if name.startswith((*off, "trackers/", "flower/", "engines/pool/"))] == []
    assert "worker/hardware.py" not in files  # lines that only an accelerator can prove


def test_the_page_has_the_list(files: list[str]):
    page = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
    due = "run make pages, or PYTHONPATH=src:docs python -m generate"
    assert (find_block(page, "walk") or "").strip() == walk.format_files(files), due
