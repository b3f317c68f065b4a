"""Pages made from stored results: which one a suite makes is for the suite to say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from potluck.benchmark.pages import ablations, asynchrony, attacks, gain, leaks, privacy, tasks, usual
from potluck.benchmark.store import Results
from potluck.benchmark.suite import Suite
from potluck.core.errors import unknown

Page = tuple[Callable[[Suite, Results], str], Callable[[Suite, Results, Path], None], str]

PAGES: dict[str, Page] = {
    "tasks": (tasks.page, tasks.draw, "docs/benchmark.md"),
    "gain": (gain.page, gain.draw, "docs/when-it-helps.md"),
    "attacks": (attacks.page, attacks.draw, "docs/attacks.md"),
    "privacy": (privacy.page, privacy.draw, "docs/privacy-accuracy.md"),
    "leaks": (leaks.page, leaks.draw, "docs/leaks.md"),
    "usual": (usual.page, usual.draw, "docs/usual.md"),
    "ablations": (ablations.page, ablations.draw, "docs/ablations.md"),
    "asynchrony": (asynchrony.page, asynchrony.draw, "docs/asynchrony.md"),
}
"""For each kind of page: its text, its figures, and where it goes unless asked elsewhere."""


def page_text(suite: Suite, results: Results) -> str:
    """The page; the same text for the same results."""
    return _kind(suite)[0](suite, results)


def usual_place(suite: Suite) -> Path:
    """Where the page goes unless asked elsewhere."""
    return Path(_kind(suite)[2])


def write_page(suite: Suite, results: Results, path: Path) -> None:
    """The page, and its figures in a folder beside it."""
    folder = path.parent / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(page_text(suite, results), encoding="utf-8")
    _kind(suite)[1](suite, results, folder)


def _kind(suite: Suite) -> Page:
    if suite.page not in PAGES:
        raise unknown("kind of page", suite.page, PAGES)
    return PAGES[suite.page]
