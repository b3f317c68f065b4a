"""Human activity recognition (UCI): windows of a smartphone's gyroscope and accelerometer, by person."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data
from potluck.data.fetch import Download
from potluck.data.files import damaged_file, find_file, read_arrays
from potluck.data.sources.base import LoadRequest, Source

FOLDER = "UCI HAR Dataset"
COMPACT = "uci_har_6ch.npz"
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_gyro", "total_acc") for axis in "xyz")
ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")


def load(request: LoadRequest) -> Data:
    """10,299 windows of six signals and 128 steps, in rad/s and g, from 30 persons in the order of persons.

    The publisher's split keeps whole persons for testing. Here every person is a possible client, so both
    parts are pooled and there is no test part. The body acceleration, which the publisher computed from the
    total acceleration, is left out.
    """
    folder = request.root / "har"
    compact = folder / COMPACT
    if compact.is_file():
        raw = read_cached(request.root, "har", [compact], lambda: _read_compact(compact))
    else:
        places = (folder / FOLDER, request.root / FOLDER)
        home = find_file("har", places, "train/y_train.txt").parent.parent
        raw = read_cached(request.root, "har", _files(home), lambda: _read_published(home))
    return raw.data("har", None)


def _files(home: Path) -> list[Path]:
    files = []
    for part in ("train", "test"):
        names = [f"{part}/y_{part}.txt", f"{part}/subject_{part}.txt"]
        names += [f"{part}/Inertial Signals/{signal}_{part}.txt" for signal in SIGNALS]
        files += [find_file("har", (home,), name) for name in names]
    return files


def _read_published(home: Path) -> RawArrays:
    files = _files(home)
    parts = []
    for paths in (files[: len(files) // 2], files[len(files) // 2 :]):
        y, person, *signals = (_table(path) for path in paths)
        for path, array in zip(paths, (y, person, *signals), strict=True):
            if len(array) != len(y):
                raise damaged_file(path, f"{len(array):,} lines where the labels have {len(y):,}")
        parts.append((np.stack(signals, axis=1), y[:, 0].astype(np.int64) - 1, person[:, 0].astype(np.int64)))
    x, y, person = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(person, kind="stable")
    return _raw(files[0], x[order], y[order], person[order])


def _table(path: Path) -> NDArray[np.float32]:
    try:
        return np.loadtxt(path, dtype=np.float32, ndmin=2)
    except ValueError as problem:
        raise damaged_file(path, str(problem)) from problem


def _read_compact(path: Path) -> RawArrays:
    try:
        arrays = read_arrays(path)
        x: NDArray[np.float32] = (arrays["x"].astype(np.float32) / 1000).astype(np.float32, copy=False)
        y, person = arrays["y"], arrays["subject"]
    except (ValueError, KeyError) as problem:
        raise damaged_file(path, str(problem)) from problem
    return _raw(path, x, y, person)


def _raw(
    path: Path, x: NDArray[np.float32], y: NDArray[np.generic], person: NDArray[np.generic]
) -> RawArrays:
    labels = y.astype(np.int64)
    if x.ndim != 3 or x.shape[1] != len(SIGNALS) or not len(x) == len(labels) == len(person):
        raise damaged_file(
            path, f"signals of shape {x.shape} for {len(labels)} labels and {len(person)} persons"
        )
    if labels.min() < 0 or labels.max() >= len(ACTIVITIES):
        raise damaged_file(path, f"an activity outside the {len(ACTIVITIES)} known ones")
    return RawArrays(x, labels, len(labels), person.astype(np.int64), ACTIVITIES)


SOURCES = (
    Source(
        "har",
        "smartphone motion, 10,299 windows of 6 signals × 128 steps from 30 persons",
        load,
        f"har/{FOLDER}/ with train/ and test/ as the publisher's archive unpacks them",
        10_299,
        (
            Download(
                "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                "har",
                f"har/{FOLDER}/train/y_train.txt",
                archive=True,
                inner=f"{FOLDER}.zip",
            ),
        ),
    ),
)
