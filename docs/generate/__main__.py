"""`make pages`: write anew what is made out of the code and the results."""

from __future__ import annotations

from pathlib import Path

from generate import claims, methods, papers, soak, speed, walk, which
from generate.picture import picture
from potluck.methods import METHODS

DOCS = Path(__file__).parents[1]


def main() -> None:
    """Every page with a part that is made here, and the pictures."""
    folder = DOCS / "figures" / "methods"
    folder.mkdir(parents=True, exist_ok=True)
    for name in METHODS:
        (folder / f"{name}.svg").write_text(picture(name), encoding="utf-8")
        path = DOCS / "methods" / f"{name}.md"
        path.write_text(methods.renewed(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    for name, renewed in (
        ("which-method", which.renewed),
        ("reproduce", papers.renewed),
        ("three-machines", soak.renewed),
        ("design", walk.renewed),
        ("engines", speed.renewed),
    ):
        path = DOCS / f"{name}.md"
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "claims.md").write_text(claims.page(), encoding="utf-8")
    readme = DOCS.parent / "README.md"
    readme.write_text(papers.summarised(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
