"""The way of one run: every file of `src/potluck` that `potluck run fedgh` goes through before a client begins to train.

A file counts when one of its functions is called; what modules do while they are imported does not. The list is taken
from a run that goes on in a process of its own and ends at the first job.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

from generate.text import code, replace_block, table

SOURCE = Path(__file__).parents[2] / "src" / "potluck"
COMMAND = ["run", "fedgh", "--rounds", "1", "--engine", "serial", "--out", "run"]


def update_page(page: str) -> str:
    """The page with the list as the code has it now."""
    return replace_block(page, "walk", format_files(trace_files()))


def format_files(files: list[str]) -> str:
    """One line per file, in the order in which a run comes to it, with what the file says of itself."""
    return table(
        ("", "file", "what it is"), [(n, code(file), _about(file)) for n, file in enumerate(files, 1)], (0,)
    )


def trace_files() -> list[str]:
    """The files on the way, in order, found out by a process that goes it."""
    with tempfile.TemporaryDirectory() as folder:
        places = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        process = subprocess.run(
            [sys.executable, "-m", "generate.walk"],
            cwd=folder,
            env=places,
            capture_output=True,
            text=True,
            check=False,
        )
        trace = Path(folder) / "walk.json"
        if not trace.exists():
            raise RuntimeError(f"the run never came to a client:\n{process.stdout}{process.stderr}")
        return [str(file) for file in json.loads(trace.read_text(encoding="utf-8"))]


def _about(file: str) -> str:
    text = ast.get_docstring(ast.parse((SOURCE / file).read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0]


# -- in the other process ---------------------------------------------------------------------------------------


def go() -> None:
    """Run the command, note every file, and end where a method's `client` is called for the first time."""
    from potluck.cli import main

    seen: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not _ours(frame) or not _is_function(frame) or _importing(frame):
            return
        name = Path(frame.f_code.co_filename).relative_to(SOURCE).as_posix()
        seen.setdefault(name)
        if name.startswith("methods/") and frame.f_code.co_name == "client":
            sys.setprofile(None)
            Path("walk.json").write_text(json.dumps(list(seen)), encoding="utf-8")
            os._exit(0)

    sys.argv = ["potluck", *COMMAND]
    sys.setprofile(note)
    main()


def _ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(f"{SOURCE}{os.sep}")


def _is_function(frame: FrameType) -> bool:
    """Whether it is neither the body of a module nor that of a class."""
    return bool(frame.f_code.co_flags & 1)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _ours(frame):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    go()
