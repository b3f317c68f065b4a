"""Features on disk: computed once, checked on load, computed again where a file was damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from potluck.models import feature_store
from potluck.models.feature_store import FeatureStore, FeatureTable, row_keys


class Counted:
    """Features that say which rows they are of, and which were computed."""

    def __init__(self) -> None:
        self.places: list[int] = []

    def __call__(self, places: Sequence[int]) -> Tensor:
        self.places += places
        return torch.tensor([[float(place), -float(place)] for place in places])


def keys(*numbers: int) -> list[bytes]:
    return row_keys(torch.tensor(numbers).float()[:, None])


def test_rows_are_computed_once_and_read_by_later_requests(tmp_path: Path) -> None:
    first, second = Counted(), Counted()
    store = FeatureStore(tmp_path)
    features = store.read(keys(5, 6, 5), first, "net")
    assert first.places == [0, 1]  # equal rows are one
    assert features.tolist() == [[0, 0], [1, -1], [0, 0]]
    two = FeatureStore(tmp_path).read(keys(6, 7), second, "net")
    assert second.places == [1]
    assert two.tolist() == [[1, -1], [1, -1]]


def test_an_interrupted_computation_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "SEGMENT_ROWS", 2)
    counted = Counted()

    def stops(places: Sequence[int]) -> Tensor:
        if counted.places:
            raise KeyboardInterrupt
        return counted(places)

    with pytest.raises(KeyboardInterrupt):
        FeatureStore(tmp_path).read(keys(1, 2, 3), stops, "net")
    again = Counted()
    FeatureStore(tmp_path).read(keys(1, 2, 3), again, "net")
    assert again.places == [2]


@pytest.mark.parametrize("damage", ["features", "keys"])
def test_damaged_files_are_removed_and_their_rows_computed_again(tmp_path: Path, damage: str) -> None:
    FeatureStore(tmp_path).read(keys(1, 2), Counted(), "net")
    (file,) = tmp_path.glob(f"{damage}-*.npy")
    content = bytearray(file.read_bytes())
    content[-1 if damage == "features" else 10] ^= 1
    file.write_bytes(content)
    again = Counted()
    features = FeatureStore(tmp_path).read(keys(1, 2), again, "net")
    assert again.places == [0, 1]
    assert features.tolist() == [[0, 0], [1, -1]]
    assert not file.exists()


def test_features_stay_in_memory_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    features = FeatureStore(tmp_path / "file" / "folder").read(keys(1), Counted(), "net")
    assert np.array_equal(features, [[0, 0]])


def test_a_table_reads_rows_by_their_first_number() -> None:
    table = FeatureTable(torch.tensor([-1, 1, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert table.rows(torch.tensor([[2, 99], [1, 98]])).tolist() == [[1, 2], [3, 4]]
    assert table.width == 2
