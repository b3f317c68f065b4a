"""Write the notebooks of examples/notebooks as pages: text, code and the output of their last run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "notebooks"


def pages() -> dict[str, str]:
    """Every notebook's page, by its path."""
    return {f"notebooks/{path.stem}.md": page(path) for path in sorted(FOLDER.glob("*.ipynb"))}


def page(path: Path) -> str:
    """A notebook as Markdown, with its links as the site has them."""
    parts = [part for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] for part in _cell(cell)]
    parts.insert(1, f"*This page is the notebook `examples/notebooks/{path.name}`; a test runs it.*")
    return "\n\n".join(parts).replace("](../../docs/", "](../") + "\n"


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *[_output(each) for each in cell["outputs"]]]


def _output(output: dict[str, Any]) -> str:
    """What a cell printed or drew."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="what the cell above draws" src="data:image/png;base64,{picture}">'
    text = "".join(output.get("text") or data.get("text/plain", ""))
    return f"```text\n{text.rstrip()}\n```"
