"""Flower's own command, `flwr`, as the rest of this package uses it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import tomli_w

from potluck.core.errors import PotluckError
from potluck.flower.deploy.processes import Processes, program

CONNECTION = "potluck"
PATIENCE = 90.0
"""Seconds for one call: Flower's command waits for ever at a server that has stopped."""


def connect(processes: Processes, address: str, ca: str) -> None:
    """Tell Flower's command which server to talk to."""
    link: dict[str, Any] = {"address": address}
    link |= {"root-certificates": str(Path(ca).resolve())} if ca else {"insecure": True}
    text = tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: link}})
    (processes.home / "config.toml").write_text(text, encoding="utf-8")


def flwr(processes: Processes, *arguments: str) -> str:
    """Flower's own command; its complaint becomes ours."""
    try:
        done = subprocess.run(
            [program("flwr"), *arguments],
            env=processes.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise PotluckError(
            f"The Flower server did not answer within {PATIENCE:g} seconds; is it up?"
        ) from None
    if done.returncode:
        raise PotluckError(f"Flower refused: {' '.join((done.stderr + done.stdout).split())}")
    return done.stdout
