"""Where and when a run was made: for a reader who wonders months later. No result depends on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("potluck", "torch", "numpy")


def provenance() -> dict[str, Any]:
    """Date, machine, versions, and the commit of the source where it lies in a repository."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count() or 1} cores",
        "python": platform.python_version(),
        **{name: version for name in _PACKAGES if (version := _version(name))},
        **({"commit": commit} if (commit := _commit()) else {}),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _commit() -> str:
    """The commit that this source is of, with a + where it was changed since; empty for an installed package."""
    git, root = shutil.which("git"), Path(__file__).parents[3]
    if git is None or not (root / ".git").exists():
        return ""
    try:
        asked = [
            [git, "-C", str(root), *words]
            for words in (["rev-parse", "--short=12", "HEAD"], ["diff", "--quiet"])
        ]
        named, changed = (subprocess.run(each, capture_output=True, text=True, timeout=5) for each in asked)
    except (OSError, subprocess.SubprocessError):
        return ""
    return named.stdout.strip() + ("+" if changed.returncode == 1 else "") if named.returncode == 0 else ""
