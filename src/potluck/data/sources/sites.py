"""One client per subfolder: `sites:PATH`, with images or texts in class folders, or CSV files, in every subfolder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from potluck.core.errors import PotluckError, plain
from potluck.data.cache import RawArrays, read_cached
from potluck.data.classes import sort_names
from potluck.data.dataset import Data, Normalise, statistics
from potluck.data.raw import image_rows, is_missing
from potluck.data.sources.base import LoadRequest, Source, unused_option
from potluck.data.sources.folder import list_texts
from potluck.data.sources.images import is_grey, list_images, read_images
from potluck.data.sources.table import missing_value, read_columns, read_table, table_choices
from potluck.data.sources.text import LENGTH, WORDS, decode, encode_texts

Rows = list[tuple[Path, str, int]]
"""A file, its class and the number of its site."""
PARTS = {"train", "test", "valid", "val", "validation"}


def load(request: LoadRequest) -> Data:
    """`PATH/SITE/CLASS/*.png` (or `.txt`), or `PATH/SITE/*.csv`; the classes of all sites are united."""
    path = Path(request.argument).expanduser()
    if not request.argument or not path.is_dir():
        raise PotluckError(
            f"Data 'sites:{request.argument}' need an existing folder with a folder for each site; check the path."
        )
    sites = _folders(path)
    if not sites:
        raise PotluckError(f"Folder {str(path)!r} has no folders; put each site's data in PATH/SITE.")
    kinds = [_kind(site) for site in sites]
    if len(set(kinds)) > 1:
        other = next(place for place, kind in enumerate(kinds) if kind != kinds[0])
        raise PotluckError(
            f"Site {sites[0].name!r} has {kinds[0]} and site {sites[other].name!r} has {kinds[other]}; give all sites "
            "data of one kind."
        )
    readers = {"images": _images, "texts": _texts, "tables": _tables}
    return readers[kinds[0]](request, path.name, sites)


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _kind(site: Path) -> str:
    """Return what a site's folder holds."""
    folders = _folders(site)
    if PARTS & {folder.name for folder in folders}:
        raise PotluckError(
            f"Site {site.name!r} has a folder {min(PARTS & {folder.name for folder in folders})!r}; put its rows "
            "together in class folders: data.split divides each site's rows."
        )
    if any(list_images(folder) for folder in folders):
        return "images"
    if any(list_texts(folder) for folder in folders):
        return "texts"
    if _csv_files(site):
        return "tables"
    raise PotluckError(
        f"Site {site.name!r} has no images or .txt files in class folders and no .csv file; put them in "
        f"{site.name}/CLASS/NAME.png."
    )


def _csv_files(site: Path) -> list[Path]:
    return sorted(path for path in site.iterdir() if path.suffix.lower() == ".csv")


def _rows(sites: list[Path], list_files: Callable[[Path], list[Path]]) -> Rows:
    return [
        (file, folder.name, number)
        for number, site in enumerate(sites)
        for folder in _folders(site)
        for file in list_files(folder)
    ]


def _labels(rows: Rows) -> tuple[tuple[str, ...], list[int]]:
    names = sort_names(name for _, name, _ in rows)
    place = {name: label for label, name in enumerate(names)}
    return names, [place[name] for _, name, _ in rows]


def _images(request: LoadRequest, name: str, sites: list[Path]) -> Data:
    rows = _rows(sites, list_images)
    files = [file for file, _, _ in rows]

    def read() -> RawArrays:
        names, labels = _labels(rows)
        x = read_images(files, request.image_size, is_grey(files[0]))
        raw = image_rows(x.shape[1:], x.dtype, resize=request.image_size is not None)
        return _with_sites(RawArrays(x, np.array(labels), len(rows), class_names=names, raw=raw), rows, sites)

    _check_options(request, ("image_size",), "images")
    arrays = read_cached(request.root, f"sites-{name}", files, read, "sites", request.image_size)
    return arrays.data(f"sites:{name}", Normalise())


def _texts(request: LoadRequest, name: str, sites: list[Path]) -> Data:
    rows = _rows(sites, list_texts)

    def read() -> RawArrays:
        names, labels = _labels(rows)
        texts = [(label, decode(file)) for label, (file, _, _) in zip(labels, rows, strict=True)]
        return _with_sites(encode_texts(texts, [], names, words=WORDS, length=LENGTH), rows, sites)

    _check_options(request, (), "texts")
    files = [file for file, _, _ in rows]
    return read_cached(request.root, f"sites-{name}", files, read, "sites").data(f"sites:{name}", None)


def _with_sites(arrays: RawArrays, rows: Rows, sites: list[Path]) -> RawArrays:
    groups = np.array([site for _, _, site in rows])
    return replace(arrays, groups=groups, group_names=tuple(site.name for site in sites))


def _tables(request: LoadRequest, name: str, sites: list[Path]) -> Data:
    files = [(file, number) for number, site in enumerate(sites) for file in _csv_files(site)]

    def read() -> RawArrays:
        columns: dict[str, list[str]] = {}
        numbers: list[int] = []
        for file, number in files:
            own = read_columns(file)
            if columns and set(own) != set(columns):
                raise _different_columns(file, set(own), files[0][0], set(columns))
            for column, values in own.items():
                if not request.impute and any(map(is_missing, values)):
                    raise missing_value(file, column, values, imputable=column != request.label)
                columns.setdefault(column, []).extend(values)
            numbers += [number] * len(next(iter(own.values())))
        groups = (np.array(numbers), tuple(site.name for site in sites))
        return read_table(Path(name), columns, request, groups)

    _check_options(request, ("label", "text", "missing"), "tables")
    choices = ("sites", "columns", *table_choices(request))
    arrays = read_cached(request.root, f"sites-{name}", [file for file, _ in files], read, *choices)
    data = arrays.data(f"sites:{name}", None)
    if arrays.vocabulary is not None:
        return data
    mean, std = statistics(data.x)
    return arrays.data(f"sites:{name}", Normalise(mean, std, scale=1.0))


def _different_columns(file: Path, own: set[str], first: Path, columns: set[str]) -> PotluckError:
    name = min(own ^ columns)
    has, lacks = (file, first) if name in own else (first, file)
    return PotluckError(
        f"Table {str(has)!r} has the column {plain(name, 100)!r}, which {str(lacks)!r} lacks; give the tables of all "
        "sites the same columns."
    )


def _check_options(request: LoadRequest, allowed: tuple[str, ...], kind: str) -> None:
    options = {
        "label": request.label,
        "text": request.text,
        "image_size": request.image_size,
        "missing": "impute" if request.impute else None,
    }
    for option, value in options.items():
        if value is not None and option not in allowed:
            raise unused_option(f"The {kind} of sites", option, value)


SOURCES = (
    Source(
        "sites",
        "sites:PATH — a folder for each site, which becomes a client: images or texts by class, or CSV files",
        load,
        options=("label", "text", "image_size", "missing"),
    ),
)
