"""The cached copy: read once, noticed when stale or broken, never half-written."""

import os

import numpy as np
import pytest

from potluck.data.cache import RawArrays, read_cached
from potluck.data.load import data_root


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.bin"
    path.write_bytes(b"one")
    return path


def reader(calls, value=1):
    def read():
        calls.append(value)
        return RawArrays(
            np.full((4, 2), value, np.uint8), np.array([0, 1, 2, 0]), 3, np.arange(4), ("a", "b", "c"), 9
        )

    return read


def test_the_second_time_nothing_is_read(tmp_path, source):
    calls = []
    first = read_cached(tmp_path, "d", [source], reader(calls))
    second = read_cached(tmp_path, "d", [source], reader(calls))
    assert calls == [1]
    assert isinstance(second.x, np.memmap)
    for raw in (first, second):
        data = raw.data("d", None)
        assert (len(data), len(data.test_y)) == (3, 1)
        assert data.groups.tolist() == [0, 1, 2]
        assert data.test_groups.tolist() == [3]
        assert data.class_names == ("a", "b", "c")
        assert data.vocabulary == 9
        assert data.y.dtype == data.x.new_zeros(1).long().dtype


def test_a_changed_source_or_choice_is_read_again(tmp_path, source):
    calls = []
    read_cached(tmp_path, "d", [source], reader(calls), 32)
    read_cached(tmp_path, "d", [source], reader(calls), 64)
    source.write_bytes(b"longer")
    read_cached(tmp_path, "d", [source], reader(calls), 32)
    assert len(calls) == 3
    os.utime(source, (1, 1))
    read_cached(tmp_path, "d", [source], reader(calls), 32)
    assert len(calls) == 4


@pytest.mark.parametrize("file", ["x.npy", "y.npy", "meta.json"])
def test_a_broken_copy_is_thrown_away(tmp_path, source, file):
    calls = []
    read_cached(tmp_path, "d", [source], reader(calls))
    (copy,) = (tmp_path / ".potluck").iterdir()
    (copy / file).write_bytes((copy / file).read_bytes()[:-3])
    again = read_cached(tmp_path, "d", [source], reader(calls, 2))
    assert calls == [1, 2]
    assert again.x[0, 0] == 2
    assert read_cached(tmp_path, "d", [source], reader(calls, 3)).x[0, 0] == 2


def test_where_nothing_can_be_written_the_arrays_stay_in_memory(tmp_path, source):
    (tmp_path / "file").write_text("a file where the folder should be")
    raw = read_cached(tmp_path / "file", "d", [source], reader([]))
    assert raw.x.shape == (4, 2)
    assert not isinstance(raw.x, np.memmap)


def test_a_failed_write_leaves_nothing_behind(tmp_path, source, monkeypatch):
    def full(*_args, **_options):
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", full)
    read_cached(tmp_path, "d", [source], reader([]))
    assert list((tmp_path / ".potluck").iterdir()) == []


def test_two_processes_writing_at_once_end_with_one_copy(tmp_path, source):
    calls = []

    def slow():
        read_cached(
            tmp_path, "d", [source], reader(calls, 5)
        )  # the other process finishes while this one reads
        return reader(calls, 6)()

    assert read_cached(tmp_path, "d", [source], slow).x[0, 0] == 5
    assert calls == [5, 6]
    assert len(list((tmp_path / ".potluck").iterdir())) == 1


def test_the_root_is_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("POTLUCK_DATA", "/named")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert str(data_root("/given")) == "/given"
    assert str(data_root()) == "/named"
    monkeypatch.delenv("POTLUCK_DATA")
    assert data_root() == tmp_path / "potluck"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert str(data_root()).endswith("/.cache/potluck")


def test_copies_are_their_owners_alone(tmp_path, source):
    read_cached(tmp_path, "rows", [source], reader([]))
    (copy,) = (tmp_path / ".potluck").iterdir()
    assert copy.stat().st_mode & 0o777 == 0o700
