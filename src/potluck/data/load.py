"""Data by name: the list of sources, loading, and preparing (fetching what can be fetched)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from potluck.core.errors import PotluckError, unknown
from potluck.data.classes import with_class_names
from potluck.data.dataset import Data
from potluck.data.fetch import Download
from potluck.data.sources import (
    cifar,
    digits,
    flowers,
    folder,
    har,
    hf,
    idx,
    npz,
    sites,
    svhn,
    table,
    text,
    tiny_imagenet,
)
from potluck.data.sources.base import LoadRequest, Source, unused_option

_MODULES = (digits, idx, cifar, svhn, flowers, tiny_imagenet, har, text, folder, sites, npz, table, hf)
SOURCES: dict[str, Source] = {source.name: source for module in _MODULES for source in module.SOURCES}
WITH_ARGUMENT = ("folder", "sites", "npz", "csv", "hf")


def load_data(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    label: str | None = None,
    groups: str | None = None,
    image_size: int | None = None,
    text: str | None = None,
    class_names: Sequence[str] = (),
    missing: str | None = None,
) -> Data:
    """Return the data set called `name`: one of the list, or `folder:PATH`, `sites:PATH`, `npz:PATH`, `csv:PATH`,
    `hf:NAME`.

    Files are looked for below `root`, else `POTLUCK_DATA`, else the user's cache folder. `label` and `groups`
    name columns of a table (what to predict; who produced the row), `text` one of texts to read as words.
    `image_size` resizes pictures that come as files of many sizes. `class_names` lists the classes in the order of
    their numbers, where it should not be that of the data. `missing="impute"` fills missing values of a table.
    """
    source, argument = _source(name)
    options = {"label": label, "groups": groups, "image_size": image_size, "text": text}
    options["missing"] = None if missing == "refuse" else missing
    for option in [
        option for option, value in options.items() if value is not None and option not in source.options
    ]:
        raise unused_option(f"Data {name!r}", option, options[option])
    if image_size is not None and image_size < 1:
        raise PotluckError(f"image_size is {image_size}; it must be at least 1.")
    if missing not in (None, "refuse", "impute"):
        raise unknown("value of missing", missing, ["refuse", "impute"])
    classes, impute = tuple(class_names), missing == "impute"
    data = source.load(
        LoadRequest(data_root(root), argument, label, groups, image_size, text, classes, impute)
    )
    return with_class_names(data, classes, f"Data {name!r}") if classes else data


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that holds data sets: `root`, else `POTLUCK_DATA`, else the user's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if named := os.environ.get("POTLUCK_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "potluck"


def list_data() -> list[Source]:
    """Return every source, in the order of the documentation."""
    return list(SOURCES.values())


def prepare(
    name: str, root: str | os.PathLike[str] | None = None, say: Callable[[str], None] = lambda text: None
) -> str:
    """Fetch and verify what `name` needs, or say exactly which files to put where; returns what to print.

    `say` is called before every download, since some take minutes.
    """
    source, _ = _source(name)
    place = data_root(root)
    if not _complete(source, name, place):
        for download in source.downloads:
            if not (place / download.makes).exists():
                say(f"Fetching {download.url}")
                _fetch(download, source, place)
    return f"{load_data(name, place)!r} is ready in {str(place)!r}."


def _fetch(download: Download, source: Source, place: Path) -> None:
    try:
        download.fetch(place)
    except (PotluckError, OSError) as problem:
        by_hand = f"By hand: below {str(place)!r}, put {source.layout}."
        raise PotluckError(f"{str(problem).rstrip('.')}. {by_hand}") from problem


def _complete(source: Source, name: str, place: Path) -> bool:
    try:
        return len(load_data(name, place).merged()) >= source.rows
    except PotluckError:
        return False


def _source(name: str) -> tuple[Source, str]:
    kind, colon, argument = name.partition(":")
    if kind not in SOURCES or bool(colon) != (kind in WITH_ARGUMENT):
        raise unknown("data set", name, [f"{kind}:…" if kind in WITH_ARGUMENT else kind for kind in SOURCES])
    return SOURCES[kind], argument
