"""Mistakes in the declaration of an own method end in one sentence, whatever their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.core import PotluckError
from potluck.experiment import parse_experiment

FUNCTIONS = """
    def init_server(self, ctx): return None
    def broadcast(self, state, client, ctx): return EmptyPayload()
    def client(self, me, message): return EmptyPayload()
    def server(self, state, updates, ctx): return None
"""
IMPORTS = "from dataclasses import dataclass\nfrom potluck import EmptyPayload, Method, Payload\nfrom torch import nn\n"
MISTAKES = {
    "undecorated": (
        f"class Own(Method[None, EmptyPayload, EmptyPayload]):\n    lr: float = 0.1\n{FUNCTIONS}",
        "^Own is not a dataclass; put @dataclass above its class line.$",
    ),
    "undecorated_child": (
        f"@dataclass\nclass Base(Method[None, EmptyPayload, EmptyPayload]):\n{FUNCTIONS}"
        "class Own(Base):\n    lr: float = 0.1\n",
        "^Own is not a dataclass; put @dataclass above its class line.$",
    ),
    "mutable_payload": (
        "@dataclass\nclass Sent(Payload):\n    x: int = 0\nclass Own(Method[None, Sent, Sent]): pass\n",
        r"a payload is not frozen .*; put @dataclass\(frozen=True\) above the class line of payloads.$",
    ),
    "two_types": (
        "class Own(Method[None, EmptyPayload]): pass\n",
        r"does not name its three types; write class Name\(Method\[State, Down, Up\]\).$",
    ),
    "network_as_setting": (
        f"@dataclass\nclass Own(Method[None, EmptyPayload, EmptyPayload]):\n    net: nn.Module = None\n{FUNCTIONS}",
        "^A setting of Own has a type that no experiment file holds .*Module.*; declare settings as numbers",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistaken_declaration_is_one_sentence(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, sentence = MISTAKES[mistake]
    (tmp_path / f"own_{mistake}.py").write_text(IMPORTS + source)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = parse_experiment({"method": {"name": f"own_{mistake}:Own"}})
    with pytest.raises(PotluckError, match=sentence):
        experiment.build_method()


def test_another_type_error_of_the_module_is_not_explained_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "own_broken.py").write_text("1 + 'a'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TypeError, match="unsupported operand"):
        parse_experiment({"method": {"name": "own_broken:Own"}}).build_method()


def test_a_child_without_settings_of_its_own_needs_no_decorator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "own_child.py").write_text("from potluck.methods import FedProx\nclass Own(FedProx): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    method = parse_experiment({"method": {"name": "own_child:Own", "mu": 0.25}}).build_method()
    assert vars(method)["mu"] == 0.25
