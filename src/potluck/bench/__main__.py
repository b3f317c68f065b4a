"""`python -m potluck.bench`: the same as `potluck bench`."""

from __future__ import annotations

import typer

from potluck.cli.bench import bench

if __name__ == "__main__":
    typer.run(bench)
