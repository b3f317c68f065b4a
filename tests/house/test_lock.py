"""The lock file names everything that the project asks for, each with a digest, and no place to fetch it from."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCK = runpy.run_path(str(ROOT / ".ci/lock.py"))
AUDIT = runpy.run_path(str(ROOT / ".ci/audit.py"))
TEXT = (ROOT / "requirements.lock").read_text()


def test_every_requirement_is_locked_in_a_version_that_fits():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [Requirement(one) for one in [*project["dependencies"], *extras["dev"], *extras["docs"]]]
    pins = LOCK["versions"](TEXT)
    for one in asked:
        if one.name != "potluck" and (one.marker is None or one.marker.evaluate()):
            assert one.specifier.contains(pins[LOCK["usual"](one.name)], prereleases=True), one
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#") and (one := Requirement(line)).name in pins:
            assert one.specifier.contains(pins[one.name])


def test_every_package_has_a_digest_and_nothing_else():
    pin = r"[a-z0-9._-]+==[^\s\\]+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
    assert re.fullmatch(rf"#[^\n]*\n(?:{pin})+", TEXT)
    assert "://" not in TEXT


def test_lines_are_made_from_pips_report():
    report = {
        "install": [
            {
                "metadata": {"name": "B", "version": "2.0"},
                "download_info": {"archive_info": {"hashes": {"sha256": "ab"}}},
            },
            {
                "metadata": {"name": "a", "version": "1+cpu"},
                "download_info": {"archive_info": {"hashes": {"sha256": "cd"}}},
            },
            {"metadata": {"name": "potluck", "version": "0"}, "download_info": {"dir_info": {}}},
        ]
    }
    assert LOCK["locked"](report) == "a==1+cpu \\\n    --hash=sha256:cd\nb==2.0 \\\n    --hash=sha256:ab\n"
    assert LOCK["versions"](LOCK["locked"](report)) == {"a": "1+cpu", "b": "2.0"}


def test_another_version_than_the_locked_one_is_named():
    wanted = {"numpy": "2.0", "rich": "15.0", "absent": "1"}
    assert AUDIT["unlocked"](wanted, {"numpy": "2.0", "rich": "15.0", "pip-audit": "3"}) == []
    (line,) = AUDIT["unlocked"](wanted, {"numpy": "2.1", "rich": "15.0"})
    assert line.startswith("Not as in requirements.lock: numpy 2.1 (locked: 2.0);")
