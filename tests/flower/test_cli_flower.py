"""Deployment commands: messages for missing parts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from potluck.cli import app
from potluck.core.errors import PotluckError
from potluck.flower.node.config import Policy, read_node
from potluck.flower.node.host import NodeHost
from potluck.flower.node.registration import Assignment
from potluck.wire import Message as WireMessage
from support.own_nodes import experiment, write_node


def refusal(*arguments: str) -> str:
    with pytest.raises(PotluckError) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    return str(caught.value)


def test_without_flower_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "flwr" else find_spec(name, *a)
    )
    assert "pip install 'potluck[flower]'" in refusal(
        "run", "fedgh", "--engine", "flower", "--out", str(tmp_path / "r")
    )


def test_without_ray_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    specs = {"flwr": object(), "ray": None}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: specs[name] if name in specs else find_spec(name, *a)
    )
    out = str(tmp_path / "r")
    sentence = refusal("run", "fedgh", "--engine", "flower", "--simulation", "--out", out)
    assert sentence == "--simulation needs Ray; install it with: pip install 'potluck[simulation]'"
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "engine.simulation needs engine.name = 'flower', not 'auto'; pass --engine flower."),
        (["--engine", "serial"], "engine.simulation needs engine.name = 'flower', not 'serial'"),
        (["--engine", "flower", "--server", "h:1"], "leave out engine.server (--server) and engine.nodes"),
        (["--engine", "flower", "--set", "engine.nodes=2"], "leave out engine.server (--server)"),
        (["--engine", "flower", "--device", "cuda"], "not on engine.device = 'cuda'; use serial"),
    ],
)
def test_a_simulation_is_refused_where_it_makes_no_sense(
    tmp_path: Path, more: list[str], sentence: str
) -> None:
    assert sentence in refusal("run", "fedgh", "--simulation", "--out", str(tmp_path / "r"), *more)


def test_nodes_of_their_own_need_a_server(tmp_path: Path) -> None:
    out = str(tmp_path / "r")
    sentence = refusal("run", "fedgh", "--engine", "flower", "--set", "engine.nodes=3", "--out", out)
    assert "potluck server start" in sentence


def test_a_server_without_certificates_does_not_start(tmp_path: Path) -> None:
    sentence = refusal("server", "start", "--folder", str(tmp_path))
    assert "ca.crt' is missing; make certificates with: potluck server keys" in sentence


def test_a_node_without_the_authority_does_not_start(tmp_path: Path) -> None:
    assert "--ca is missing" in refusal("node", "start", str(tmp_path / "node.toml"), "--server", "h:1")


def test_python_objects_cannot_go_to_other_processes(tmp_path: Path) -> None:
    import potluck
    from potluck.methods.fedgh import FedGH

    with pytest.raises(PotluckError, match="works with names, not with Python objects"):
        potluck.run(FedGH(), engine="flower", out=tmp_path / "r")


def test_keys_and_certificates_are_made_once_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    runner: Any = CliRunner()
    assert runner.invoke(app, ["node", "init", "--name", "a"]).exit_code == 0
    assert runner.invoke(app, ["server", "keys", "--host", "server.example.org"]).exit_code == 0
    for name in ("node.key", "potluck-server/ca.key", "potluck-server/server.key"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert (tmp_path / "node.key.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    before = (tmp_path / "potluck-server" / "ca.crt").read_bytes()
    assert runner.invoke(app, ["server", "keys"]).exit_code == 0
    assert (tmp_path / "potluck-server" / "ca.crt").read_bytes() == before
    assert "exists; edit it" in refusal("node", "init")


def test_the_log_of_a_node_is_printed_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    path = write_node(tmp_path / "n", "logged", "mlp-1+6", 1)
    order = Assignment(experiment("fedgh").model_dump_json(exclude_none=True), "")
    NodeHost().handle_message(order.attach_to(WireMessage({"ask": "registration"})), {"node-file": str(path)})

    output = CliRunner().invoke(app, ["node", "log", str(path)]).output
    assert "fedgh  registration 0" in output
    assert "in all: 1 answers" in output
    log = read_node(path).audit_log()
    log.write_text(log.read_text().replace("fedgh", "fedxx"))
    assert "was changed at line 1" in refusal("node", "log", str(path))


def test_a_node_file_that_was_just_written_is_as_strict_as_the_defaults(tmp_path: Path) -> None:
    path = write_node(tmp_path / "n", "fresh", "mlp-1+6", 1)
    assert read_node(path).policy == Policy()
    path.write_text(path.read_text().replace("epochs = 100", "epochs = 0"))
    assert "policy.epochs is not valid" in refusal("node", "check", str(path))
