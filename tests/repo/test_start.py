"""A short run loads only what it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch._dynamo", "torch._inductor.compile_fx", "sympy", "sklearn", "scipy", "matplotlib", "pandas")
RUN = f"""
import sys
from potluck.cli import main
sys.argv = ["potluck", "run", sys.argv[2], "--rounds", "1", "--clients", "2", "--engine", "serial", "--out", sys.argv[1],
            "--set", "data.limit=60"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("loaded:", [name for name in {HEAVY!r} if name in sys.modules])
"""


@pytest.mark.parametrize(
    "method", ["fedgh", "fedgen"]
)  # the second has an optimiser of its own on the server
def test_run_with_report_loads_neither_torch_compiler_nor_unneeded_packages(method: str, tmp_path: Path):
    process = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run"), method],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (tmp_path / "run" / "report.html").exists()
    assert process.stdout.splitlines()[-1] == "loaded: []"
