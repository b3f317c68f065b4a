"""Write every page, block and picture that is generated from code and stored results: `make pages`, or `make pages PAGES="defaults readme"`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from generate import claims, curves, demo, figures, methods, papers, protections, soak, speed, walk, which
from generate.benchmark import WITHOUT_ROWS, default_page_path, write_page
from generate.picture import picture
from potluck.methods import METHODS
from potluck.suites.store import Results
from potluck.suites.suite import find_suite, suite_names

DOCS = Path(__file__).parents[1]


BLOCKS = {
    "which-method": which.update_page,
    "security": methods.update_robust_table,
    "reproduce": papers.update_page,
    "three-machines": soak.update_page,
    "design": walk.update_page,
    "engines": speed.update_page,
    "privacy": protections.update_page,
}
"""Pages of which a part is generated."""


def main(chosen: Sequence[str]) -> None:
    """Write the pages with these names: of suites, `methods`, `claims`, `readme` and `BLOCKS`; without names, all."""
    names = [*suite_names(), "methods", *BLOCKS, "claims", "readme"]
    if unknown := sorted(set(chosen) - set(names)):
        sys.exit(f"No page is named {', '.join(unknown)}; choose from {', '.join(names)}.")
    chosen = chosen or names
    write_suite_pages(names=chosen)
    if "methods" in chosen:
        write_method_pages()
    for name in BLOCKS.keys() & set(chosen):
        path = DOCS / f"{name}.md"
        path.write_text(BLOCKS[name](path.read_text(encoding="utf-8")), encoding="utf-8")
    if "reproduce" in chosen:
        curves.write_figures(DOCS.parent / "results")
    if "claims" in chosen:
        (DOCS / "claims.md").write_text(claims.page(), encoding="utf-8")
    if "readme" in chosen:
        readme = DOCS.parent / "README.md"
        text = papers.update_readme(readme.read_text(encoding="utf-8"))
        readme.write_text(demo.updated(text), encoding="utf-8")


def write_method_pages() -> None:
    """Write the generated parts of every method's page, and its picture."""
    figures.write_figures()
    folder = DOCS / "figures" / "methods"
    folder.mkdir(parents=True, exist_ok=True)
    for name in METHODS:
        (folder / f"{name}.svg").write_text(picture(name), encoding="utf-8")
        path = DOCS / "methods" / f"{name}.md"
        path.write_text(methods.update_page(name, path.read_text(encoding="utf-8")), encoding="utf-8")


def write_suite_pages(root: Path = DOCS.parent, names: Collection[str] | None = None) -> list[str]:
    """Write the page and figures of every suite with stored results; returns the names of these suites."""
    written = []
    for suite in map(find_suite, [name for name in suite_names() if names is None or name in names]):
        results = Results.read(root / "results", suite.name)
        if results.rows or suite.page in WITHOUT_ROWS:
            write_page(suite, results, root / default_page_path(suite))
            written.append(suite.name)
    return written


if __name__ == "__main__":
    main(sys.argv[1:])
