"""Every notebook runs in a folder of its own, and its page shows its text, code and figures."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from generate import notebooks

NOTEBOOKS = sorted(notebooks.FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert list(tmp_path.iterdir()) == [], "a notebook leaves nothing where it is opened"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_results_and_its_links_lead_somewhere(path: Path):
    notebook = nbformat.read(path, as_version=4)
    kinds = [each.output_type for cell in notebook.cells if cell.cell_type == "code" for each in cell.outputs]
    assert kinds
    assert "error" not in kinds
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)#]+)", cell.source):
                assert (path.parent / link).exists(), f"{path.name} links to {link}"


def test_every_notebook_has_a_page():
    assert len(NOTEBOOKS) == len(notebooks.pages()) >= 4
    page = notebooks.pages()["notebooks/compare-methods.md"]
    assert page.startswith("# Compare methods")
    assert "](../results.md)" in page
    assert 'src="data:image/png;base64,' in page
    assert "```python\nimport tempfile" in page
