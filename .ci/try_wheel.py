"""Install the wheel of dist/ into a clean environment far from the repository, and do there what a newcomer does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Exit with an error unless the installed package compares two methods, from its own files."""
    (wheel,) = (ROOT / "dist").glob("potluck-*.whl")
    with tempfile.TemporaryDirectory(prefix="potluck-wheel-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = str(folder / "venv" / "bin" / "python")
        run([python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)], folder)
        home = run([python, "-c", "import potluck; print(potluck.__file__)"], folder)
        if not Path(home.strip()).is_relative_to(folder):
            sys.exit(f"The package came from {home.strip()}, not from the wheel.")
        version = run([python, "-c", "import potluck; print(potluck.__version__)"], folder).strip()
        if f"-{version}-" not in wheel.name:
            sys.exit(f"{wheel.name} says it is {version}.")
        command = [python, "-m", "potluck", "compare", "standalone", "fedgh", "--rounds", "3", "--out", "out"]
        print(run(command, folder))
        reports = list((folder / "out").rglob("*.html"))
        if not reports:
            sys.exit("The comparison wrote no report.")
        print(f"{wheel.name} works outside of the repository: {len(reports)} report.")


def run(command: list[str], folder: Path) -> str:
    """What a command prints; its failure is ours."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[1:4])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
