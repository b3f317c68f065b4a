"""Reading a file or a message runs no code: no unpickling, no evaluation, bounded sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import potluck
from potluck.core.errors import PotluckError
from potluck.core.files import MAX_TEXT, read_text
from potluck.experiment import read_experiment

SOURCE = Path(potluck.__file__).parent
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}
BETWEEN_OWN_PROCESSES = "engines/pool/spawn.py"
"""Hands objects to worker processes that it just started itself, over sockets that have no name; it reads no file."""
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}", node


def test_no_module_that_unpickles_is_imported():
    for where, node in nodes():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        forbidden = {name.split(".")[0] for name in names} & FORBIDDEN_MODULES
        assert not forbidden or (where.startswith(f"{BETWEEN_OWN_PROCESSES}:") and forbidden == {"pickle"}), (
            where
        )


def test_nothing_is_evaluated():
    for where, node in nodes():
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in FORBIDDEN_CALLS, where
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert keywords.get("shell") != "True", where
            assert keywords.get("allow_pickle") != "True", where
            assert keywords.get("trust_remote_code") != "True", where
            if name in ("torch.load", "load") and name.startswith("torch"):
                assert keywords.get("weights_only") == "True", where
            if name in ("np.load", "numpy.load"):
                assert keywords.get("allow_pickle") == "False", where


def test_import_check_detects_forbidden_imports():
    """A test of this kind can pass because it looks nowhere."""
    assert sum(1 for _, node in nodes() if isinstance(node, ast.Call)) > 1000


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(MAX_TEXT + 1)
    with pytest.raises(PotluckError, match=r"is larger than the 16 MB that such a file may have"):
        read_experiment(path)
    with pytest.raises(PotluckError, match="is larger"):
        read_text(path)


@pytest.mark.parametrize("text", ["x = " + "[" * 5000 + "]" * 5000, "a" * 100, "\0", "x = 1e999999\nx = 2"])
def test_hostile_experiment_files_give_one_sentence(tmp_path: Path, text: str):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(PotluckError, match="is not valid TOML"):
        read_experiment(path)
