"""Arrays saved with numpy: `npz:PATH`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from potluck.core.errors import PotluckError, plain
from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data
from potluck.data.files import names_in, read_arrays
from potluck.data.memory import channels_first, default_transform
from potluck.data.sources.base import LoadRequest, Source
from potluck.data.targets import check_finite_rows, checked_labels

NAMES = (("x", "y", "test_x", "test_y"), ("x_train", "y_train", "x_test", "y_test"))
_KNOWN = {name for names in NAMES for name in names} | {"groups", "class_names"}


def load(request: LoadRequest) -> Data:
    """Arrays `x`, `y` and perhaps `test_x`, `test_y` (or `x_train`, `y_train`, `x_test`, `y_test`).

    `groups` (who produced each row of `x`) makes a natural partition possible, `class_names` a readable plot.
    """
    path = Path(request.argument).expanduser()
    if not request.argument or not path.is_file():
        raise PotluckError(f"Data 'npz:{request.argument}' need an existing .npz file; check the path.")
    raw = read_cached(request.root, f"npz-{path.stem}", [path], lambda: _read(path))
    x = raw.data(f"npz:{path.stem}", None)
    return raw.data(f"npz:{path.stem}", default_transform(x.x, None))


def _read(path: Path) -> RawArrays:
    try:
        arrays = read_arrays(path, _KNOWN)
    except ValueError as problem:
        # numpy's own words speak of loading such a file unsafely, which is not what anybody should do
        reason = "numpy cannot read it as .npz" if "pickle" in str(problem) else str(problem)
        raise PotluckError(
            f"File {str(path)!r} is no .npz archive ({reason}); write it with numpy.savez(file, x=..., y=...)."
        ) from None
    names = next((names for names in NAMES if names[0] in arrays and names[1] in arrays), None)
    if names is None:
        raise PotluckError(
            f"File {str(path)!r} has the arrays {plain(', '.join(names_in(path)) or '(none)', 200)}; "
            "name them x and y (and test_x, test_y), or x_train and y_train (and x_test, y_test)."
        )
    x, y = channels_first(arrays[names[0]]), checked_labels(arrays[names[1]], path.name)
    train = len(y)
    check_finite_rows(x, f"{names[0]!r} in {str(path)!r}")
    if names[2] in arrays and names[3] in arrays:
        check_finite_rows(arrays[names[2]], f"{names[2]!r} in {str(path)!r}")
        x = np.concatenate([x, channels_first(arrays[names[2]])])
        y = np.concatenate([y, checked_labels(arrays[names[3]], path.name)])
    if x.ndim < 2 or len(x) != len(y):
        raise PotluckError(
            f"File {str(path)!r} has {len(x)} rows and {len(y)} labels; give one label per row."
        )
    groups = arrays.get("groups")
    if groups is not None and len(groups) != train:
        raise PotluckError(
            f"File {str(path)!r} has {train} rows and {len(groups)} groups; give one group per row."
        )
    class_names = tuple(str(name) for name in arrays.get("class_names", np.array([])))
    group_ids = (
        None if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1).astype(np.int64)
    )
    return RawArrays(x, y, train, group_ids, class_names)


SOURCES = (Source("npz", "npz:PATH — your arrays x and y, saved with numpy", load),)
