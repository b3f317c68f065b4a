"""Read small files with bounds, list packaged files, and read facts of processes and processors."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError

MAX_TEXT = 16 << 20
"""Bytes of a settings or summary file; the largest that Potluck writes is far smaller."""


def read_text(path: Path, limit: int = MAX_TEXT) -> str:
    """Return the text of a file that is not larger than `limit`."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise PotluckError(f"{str(path)!r} is larger than the {limit >> 20} MB that such a file may have.")
    return data.decode("utf-8")


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as nested values; nesting without end is a `ValueError` like any other mistake."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_json(text: str) -> Any:
    """JSON as nested values, with the same bound on nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def csv_cell(value: Any) -> Any:
    """Return a cell that a spreadsheet shows as it is: text that looks like a formula gets a quote before it.

    Names of runs, members and figures come from others; numbers, which may begin with a sign, stay as they are.
    """
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def read_cpuinfo() -> str:
    """Return what Linux says about the processors; empty on other systems."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def packaged_names(package: str) -> list[str]:
    """Return the names of the .toml files that come with a package, sorted."""
    names = [file.name for file in resources.files(package).iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def process_status(pid: int) -> list[str] | None:
    """Return the fields of `/proc/PID/stat` from the state on; None where there is no such file."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name before it, in brackets, may hold anything
