"""`python -m potluck.bench [--quick] [--out DIR] [--part NAME]…`"""

from __future__ import annotations

import argparse
from pathlib import Path

from potluck.bench.suite import PARTS, run_suite


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(prog="python -m potluck.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute; the figures mean little")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for bench.md and bench.json")
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="only this part (repeat for more)"
    )
    options = parser.parse_args()
    run_suite(options.out, quick=options.quick, parts=options.part or PARTS)


if __name__ == "__main__":
    main()
