"""Write requirements.lock: every package that `.[dev]` needs, with its version and the digests of its file.

pip works it out without installing anything. The digests are those of files for this system (Linux on x86-64, this
Python); `pip install --require-hashes -r requirements.lock` takes these very files or none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
HEAD = "# Made by `make lock`: what was looked at is what is installed. Linux, x86-64, Python {}.{}.\n"


def usual(name: str) -> str:
    """A package's name as registries write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(report: dict[str, Any]) -> str:
    """The lines of the lock file out of pip's report, by name; our own package is no part of it."""
    lines = []
    for entry in sorted(report["install"], key=lambda entry: usual(entry["metadata"]["name"])):
        about, archive = entry["metadata"], entry["download_info"].get("archive_info")
        if archive is None:
            continue
        digests = "".join(
            f" \\\n    --hash={kind}:{value}" for kind, value in sorted(archive["hashes"].items())
        )
        lines.append(f"{usual(about['name'])}=={about['version']}{digests}\n")
    return "".join(lines)


def versions(text: str) -> dict[str, str]:
    """Names and versions of a lock file."""
    pins = [line.split()[0] for line in text.splitlines() if "==" in line and not line.startswith("#")]
    return {name: version for name, _, version in (pin.partition("==") for pin in pins)}


def main() -> None:
    """Ask pip, and write what it says."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "-q", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run(
            [sys.executable, "-m", "pip", *words, "-c", "constraints.txt", ".[dev]"], check=True, cwd=ROOT
        )
        found = json.loads(report.read_text())
    LOCK.write_text(HEAD.format(*sys.version_info[:2]) + locked(found))
    print(f"{LOCK.name}: {len(versions(LOCK.read_text()))} packages")


if __name__ == "__main__":
    main()
