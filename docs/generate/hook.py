"""What mkdocs is told beyond mkdocs.yml: pages that come out of the code, and what makes a build fail.

The front page and the project's pages are the files of the repository's root, so that nothing is written twice.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from generate import formulas, notebooks, reference  # noqa: E402

ROOT_PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "report-a-vulnerability.md": "SECURITY.md",
}
REFERENCE = {
    "Settings": "reference/settings.md",
    "Commands": "reference/commands.md",
    "Methods": "reference/methods.md",
    "Models": "reference/models.md",
    "Models beside their papers": "models.md",
    "Data sets and partitions": "data.md",
}


MEASURED = {
    "Benchmark": "benchmark.md",
    "When federating helps": "when-it-helps.md",
    "Default settings": "defaults.md",
    "Options, one at a time": "ablations.md",
    "Synchronous or asynchronous": "asynchrony.md",
    "What the papers claim": "claims.md",
}
"""Pages made from stored results, where there are some."""


def on_config(config: Any) -> Any:
    """The sections of the navigation that follow from the code."""
    from potluck import __version__
    from potluck.methods import METHODS

    config.site_name = f"Potluck {__version__}"
    for section in config.nav:
        if "Methods" in section:
            section["Methods"] += [f"methods/{name}.md" for name in METHODS]
            section["Methods"][1:1] = [
                {title: path} for title, path in MEASURED.items() if (ROOT / "docs" / path).exists()
            ]
        if "Reference" in section:
            section["Reference"] += [{title: path} for title, path in REFERENCE.items()]
            section["Reference"].append(
                {"Python": [{name: f"reference/api/{name}.md"} for name in reference.API]}
            )
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    if silent := reference.undocumented():
        raise PluginError(f"Public names without a docstring: {', '.join(silent)}.")
    for path, source in ROOT_PAGES.items():
        files.append(
            File.generated(config, path, content=at_root((ROOT / source).read_text(encoding="utf-8")))
        )
    for path, text in (reference.pages() | notebooks.pages()).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Render the formulas of a page."""
    return formulas.render(html, page.file.src_uri)


def at_root(text: str) -> str:
    """A page of the repository's root with its links as the site has them."""
    places = {source: path for path, source in ROOT_PAGES.items()}
    text = re.sub(r"\]\(docs/methods\)", "](reference/methods.md)", text)
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\]\(([A-Z]+\.md)", lambda match: f"]({places.get(match[1], match[1])}", text)


def on_post_build(config: Any) -> None:
    """Nothing on a page may be fetched from elsewhere."""
    for page in Path(config.site_dir).rglob("*.html"):
        foreign = re.findall(
            r'<(?:script|img|iframe)[^>]*src="(https?://[^"]*)"', page.read_text(encoding="utf-8")
        )
        foreign += re.findall(
            r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(https?://[^"]*)"',
            page.read_text(encoding="utf-8"),
        )
        if foreign:
            raise PluginError(f"{page.name} would load {foreign[0]} from elsewhere.")
