"""`make pages`: write anew what is made out of the code."""

from __future__ import annotations

from pathlib import Path

from generate import which

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Every page with a part that is made here."""
    path = ROOT / "docs" / "which-method.md"
    path.write_text(which.renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
