"""What the lists of the command print, kept as a file: a list should answer at once, and torch takes seconds to load.

`python -m potluck.cli.catalogue` writes it again from the code; a test sees to it that the two agree.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("catalogue.json")


def catalogue() -> dict[str, dict[str, str]]:
    """Names with a line about each, by the kind of thing: methods, models, groups, datasets."""
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def collected() -> dict[str, dict[str, str]]:
    """The same out of the code itself."""
    from potluck.data import list_data
    from potluck.methods import METHODS, method_class
    from potluck.models import groups, model_names, model_summary

    return {
        "methods": {name: method_class(name).summary for name in METHODS},
        "models": {name: model_summary(name) for name in model_names()},
        "groups": {name: ", ".join(members) for name, members in groups.items()},
        "datasets": {source.name: source.about for source in list_data()},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(collected(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
