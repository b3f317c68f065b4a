"""An audit that did not happen must not look like one that found nothing."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

AUDIT = runpy.run_path(str(Path(__file__).parents[2] / ".ci/audit.py"))
GOOD = {"name": "numpy", "version": "2.0", "vulns": []}
BAD = {"name": "pillow", "version": "9.0", "vulns": [{"id": "CVE-1", "fix_versions": ["9.1", "10.0"]}]}
UNKNOWN = {
    "name": "rich",
    "skip_reason": "Dependency not found on PyPI and could not be audited: rich (15.0.0)",
}
LOCAL = {
    "name": "torch",
    "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.13.0+cpu)",
}
OWN = {"name": "potluck", "skip_reason": "distribution marked as editable"}


@pytest.mark.parametrize(
    ("found", "code", "last"),
    [
        ([GOOD, LOCAL, OWN], 0, "pip-audit: 1 packages checked, 0 known holes."),
        ([GOOD, BAD], 1, "pip-audit: 2 packages checked, 1 known holes."),
        ([GOOD, UNKNOWN], 1, "Not checked: rich."),
        ([UNKNOWN, LOCAL, OWN], 1, "it knew none of 3 packages"),
    ],
)
def test_only_a_whole_audit_without_holes_passes(found: list[dict[str, Any]], code: int, last: str):
    lines, given = AUDIT["verdict"](found)
    assert given == code
    assert last in lines[-1]


def test_a_hole_is_named_with_the_version_that_mends_it():
    assert AUDIT["verdict"]([BAD])[0][0] == "pillow 9.0: CVE-1, mended in 9.1, 10.0"


@pytest.mark.parametrize("printed", ["", "echo '{' "])
def test_an_unreachable_source_is_one_line_and_a_failure(
    printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    program = tmp_path / "pip-audit"
    program.write_text(
        f"#!/bin/sh\n{printed}\necho 'Traceback (most recent call last):' >&2\necho 'ConnectionError: no route' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(AUDIT["sys"], "executable", str(tmp_path / "python"))
    assert AUDIT["main"]() == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert (
        "could not reach its source of known holes (ConnectionError: no route); nothing was checked"
        in said[0]
    )
