"""The Python code of the documentation runs."""

import re
from pathlib import Path

import pytest

from generate import methods

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/tutorial.md",
    "docs/write-your-own-method.md",
    "docs/python.md",
    "docs/determinism.md",
    "docs/evaluation.md",
    "docs/traffic.md",
    "docs/resume.md",
    "docs/privacy.md",
    "docs/trackers.md",
    "docs/export.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    module = type(re)("__page__")
    monkeypatch.setitem(__import__("sys").modules, "__page__", module)
    names = module.__dict__
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            made = link.startswith(("reference/", "../reference/"))  # its strict build checks them
            if not link.startswith("http") and not made:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_security_page_lists_the_inputs_of_robust_rules():
    page = (ROOT / "docs" / "security.md").read_text()
    assert methods.update_robust_table(page) == page, "run make pages"
    assert "| fedgh | class means that train the head |" in page
    assert "| standalone | nothing |" in page
