"""Write the page of each suite from its stored results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from generate.benchmark import (
    ablations,
    asynchrony,
    attacks,
    defaults,
    gain,
    leaks,
    pretrained,
    privacy,
    safeguard,
    tasks,
)
from potluck.core.errors import unknown
from potluck.suites.store import Results
from potluck.suites.suite import Suite

Page = tuple[Callable[[Suite, Results], str], Callable[[Suite, Results, Path], None], str]

PAGES: dict[str, Page] = {
    "tasks": (tasks.page, tasks.draw, "docs/benchmark.md"),
    "gain": (gain.page, gain.draw, "docs/when-it-helps.md"),
    "attacks": (attacks.page, attacks.draw, "docs/attacks.md"),
    "privacy": (privacy.page, privacy.draw, "docs/privacy-accuracy.md"),
    "leaks": (leaks.page, leaks.draw, "docs/leaks.md"),
    "safeguard": (safeguard.page, safeguard.draw, "docs/safeguard.md"),
    "defaults": (defaults.page, defaults.draw, "docs/defaults.md"),
    "ablations": (ablations.page, ablations.draw, "docs/ablations.md"),
    "pretrained": (pretrained.page, pretrained.draw, "docs/pretrained-results.md"),
    "asynchrony": (asynchrony.page, asynchrony.draw, "docs/asynchrony.md"),
}
"""For each kind of page: functions for its text and figures, and its path in the repository."""
WITHOUT_ROWS = ("tasks", "gain")
"""Kinds of pages that say what is not run where nothing is stored."""


def page_text(suite: Suite, results: Results) -> str:
    """Return the page; the same text for the same results."""
    return _kind(suite)[0](suite, results)


def default_page_path(suite: Suite) -> Path:
    """Return the path of the page in the repository."""
    return Path(_kind(suite)[2])


def write_page(suite: Suite, results: Results, path: Path) -> None:
    """Write the page, and its figures into the folder `figures` beside it."""
    folder = path.parent / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(page_text(suite, results), encoding="utf-8")
    _kind(suite)[1](suite, results, folder)


def _kind(suite: Suite) -> Page:
    if suite.page not in PAGES:
        raise unknown("kind of page", suite.page, PAGES)
    return PAGES[suite.page]
