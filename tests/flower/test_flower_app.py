"""The app folder of examples/ is a Flower app: Flower bundles it, and its experiment is one of Potluck's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from potluck.flower.server_app import parse_configuration

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "flower-app"


def settings() -> dict[str, dict[str, str]]:
    app: dict[str, dict[str, str]] = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"][
        "app"
    ]
    return app


def test_flower_bundles_the_app(tmp_path: Path):
    app = shutil.copytree(APP, tmp_path / "app")
    flwr = Path(sys.executable).with_name("flwr")
    environment = {"HOME": str(tmp_path), "PATH": str(flwr.parent)}
    command = [str(flwr), "build", "--app", str(app)]
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert len(list(tmp_path.rglob("you.potluck-app.1-0-0.*.fab"))) == 1


def test_its_parts_are_flower_apps_and_its_experiment_is_read():
    parts = {}
    for name, place in settings()["components"].items():
        module, _, attribute = place.partition(":")
        parts[name] = getattr(import_module(module), attribute)
    assert isinstance(parts["serverapp"], ServerApp)
    assert isinstance(parts["clientapp"], ClientApp)
    experiment = parse_configuration(settings()["config"]["experiment"])
    assert (experiment.method.name, experiment.partition.clients, experiment.engine.name) == (
        "fedgh",
        2,
        "flower",
    )


def test_the_page_shows_the_same_experiment_and_parts():
    page = (ROOT / "docs" / "flower.md").read_text()
    for value in (*settings()["components"].values(), settings()["config"]["experiment"]):
        assert value in page
