"""Known holes of what is installed, by pip-audit; what was not checked counts as a failure, in one line.

pip-audit itself ends well when its source knew none of the packages, or shows a traceback when it is not there at all.
"""

from __future__ import annotations

import importlib.metadata
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any


def verdict(found: list[dict[str, Any]]) -> tuple[list[str], int]:
    """What to say of pip-audit's list of packages, and the exit code."""
    holes = [_hole(package, hole) for package in found for hole in package.get("vulns", [])]
    # Our own package is no release, and builds for one kind of processor (1.2+cpu) are listed under their plain number.
    skipped = [each["name"] for each in found if "skip_reason" in each and not _expected(each["skip_reason"])]
    checked = sum("vulns" in package for package in found)
    if not checked:
        return [unreachable(f"it knew none of {len(found)} packages")], 1
    said = [*holes, f"pip-audit: {checked} packages checked, {len(holes)} known holes."]
    if skipped:
        said.append(f"Not checked: {', '.join(skipped)}.")
    return said, 1 if holes or skipped else 0


def unlocked(wanted: dict[str, str], installed: dict[str, str]) -> list[str]:
    """What is installed in another version than requirements.lock has, and so was not looked at."""
    other = [
        f"{name} {installed[name]} (locked: {version})"
        for name, version in wanted.items()
        if installed.get(name, version) != version
    ]
    return [f"Not as in requirements.lock: {', '.join(other)}; make locked, or make lock."] if other else []


def _as_locked() -> list[str]:
    lock = runpy.run_path(str(Path(__file__).with_name("lock.py")))
    found = {
        lock["usual"](each.metadata["Name"]): each.version for each in importlib.metadata.distributions()
    }
    return unlocked(lock["versions"](lock["LOCK"].read_text()), found)


def unreachable(why: str) -> str:
    """The one line for an audit that did not happen."""
    return f"pip-audit could not reach its source of known holes ({why}); nothing was checked."


def _hole(package: dict[str, Any], hole: dict[str, Any]) -> str:
    mended = ", ".join(hole["fix_versions"]) or "no version yet"
    return f"{package['name']} {package['version']}: {hole['id']}, mended in {mended}"


def _expected(reason: str) -> bool:
    return "editable" in reason or "+" in reason


def main() -> int:
    """Run the pip-audit that stands beside this Python."""
    command = [str(Path(sys.executable).with_name("pip-audit")), "--skip-editable", "--format", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        lines, code = verdict(json.loads(ended.stdout)["dependencies"])
    except (ValueError, KeyError):
        told = ended.stderr.strip().splitlines() or ["it said nothing"]
        lines, code = [unreachable(told[-1][:200])], 1
    changed = _as_locked()
    code = 1 if changed else code
    print(*lines, *changed, sep="\n", file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
