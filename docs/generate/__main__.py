"""Write every page, block and picture that is generated from code and stored results: `make pages`."""

from __future__ import annotations

from pathlib import Path

from generate import claims, demo, methods, papers, soak, speed, walk, which
from generate.benchmark import default_page_path, write_page
from generate.picture import picture
from potluck.methods import METHODS
from potluck.suites.store import Results
from potluck.suites.suite import find_suite, suite_names

DOCS = Path(__file__).parents[1]


def main() -> None:
    """Write everything that is made here."""
    write_suite_pages()
    folder = DOCS / "figures" / "methods"
    folder.mkdir(parents=True, exist_ok=True)
    for name in METHODS:
        (folder / f"{name}.svg").write_text(picture(name), encoding="utf-8")
        path = DOCS / "methods" / f"{name}.md"
        path.write_text(methods.update_page(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    for name, update_page in (
        ("which-method", which.update_page),
        ("security", methods.update_robust_table),
        ("reproduce", papers.update_page),
        ("three-machines", soak.update_page),
        ("design", walk.update_page),
        ("engines", speed.update_page),
    ):
        path = DOCS / f"{name}.md"
        path.write_text(update_page(path.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "claims.md").write_text(claims.page(), encoding="utf-8")
    readme = DOCS.parent / "README.md"
    readme.write_text(
        demo.updated(papers.update_readme(readme.read_text(encoding="utf-8"))), encoding="utf-8"
    )


def write_suite_pages(root: Path = DOCS.parent) -> list[str]:
    """Write the page and figures of every suite with stored results; returns the names of these suites."""
    written = []
    for suite in map(find_suite, suite_names()):
        results = Results.read(root / "results", suite.name)
        if results.rows:
            write_page(suite, results, root / default_page_path(suite))
            written.append(suite.name)
    return written


if __name__ == "__main__":
    main()
