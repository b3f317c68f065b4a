"""The commands and settings of the deployment guide work."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from potluck.experiment import parse_experiment
from potluck.flower.node.check import check_node
from potluck.flower.node.config import TEMPLATE

PAGE = (Path(__file__).parents[2] / "docs" / "three-machines.md").read_text()


def block(language: str) -> str:
    """Return the first code block of a language on the page."""
    return str(re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0])


def test_the_guides_node_passes_its_check_against_the_guides_experiment(tmp_path: Path) -> None:
    (tmp_path / "wards.py").write_text(block("python"))
    path = tmp_path / "node.toml"
    path.write_text(TEMPLATE.format(name="hospital-a", model="wards:Wards", source="wards:rows"))

    lines = check_node(path, parse_experiment(tomllib.loads(block("toml"))))

    assert "data: 18 training and 6 test rows of shape (4,)" in lines
    assert any(line.startswith("the server will know: ") for line in lines)
