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
def test_a_run_with_its_report_loads_neither_torchs_compiler_nor_what_only_others_need(
    method: str, tmp_path: Path
):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run"), method],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (tmp_path / "run" / "report.html").exists()
    assert done.stdout.splitlines()[-1] == "loaded: []"
