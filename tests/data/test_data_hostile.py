"""Files with false sizes or huge contents: one sentence, and no memory taken."""

from __future__ import annotations

import resource
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from potluck.core.errors import PotluckError
from potluck.core.files import csv_cell
from potluck.data import load_data
from potluck.data.files import read_arrays


def npy(shape: str, data: bytes = b"", descr: str = "'<f8'") -> bytes:
    """The bytes of an array whose header says what we like."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def archive(path: Path, **arrays: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in arrays.items():
            file.writestr(f"{name}.npy", data)
    return path


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (npy("(1000000000000, 10)", b"12345678"), "claims 80000000000000 bytes and has 8"),
        (npy("(3,)", b"12345678"), "claims 24 bytes and has 8"),
        (npy("(-1,)", b""), "claims -8 bytes"),
        (npy("(2,)", b"0" * 16, "'O'"), "numpy cannot read it"),
        (b"\x93NUMPY\x09\x00rest", r"version"),
        (b"nothing at all", "magic"),
        (npy("[" * 500), "is no .npz archive"),
    ],
)
def test_a_header_that_lies_is_a_sentence(data: bytes, why: str, tmp_path: Path):
    with pytest.raises(PotluckError, match=why):
        load_data(f"npz:{archive(tmp_path / 'a.npz', x=data, y=data)}", tmp_path)


def test_an_archive_that_would_take_gigabytes_is_refused_before_it_does(tmp_path: Path):
    """A gigabyte of zeros is 1 MB packed. The process that reads it may have no more than its own size and 300 MB."""
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w") as out:
        out.write(npy(f"({1 << 27},)"))
        for _ in range(64):
            out.write(bytes(1 << 24))
    assert bomb.stat().st_size < 2 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        ValueError, match=r"'x.npy' would grow 10\d\d-fold to 1.0 GB; save such arrays uncompressed"
    ):
        read_arrays(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_unused_arrays_are_not_unpacked(tmp_path: Path):
    path = archive(tmp_path / "a.npz", x=npy("(1,)", b"12345678"), other=b"nonsense")
    assert list(read_arrays(path, {"x", "y"})) == ["x"]


def test_honest_arrays_of_zeros_and_of_texts_are_read(tmp_path: Path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000)), names=np.array(["one", "two"]))
    arrays = read_arrays(tmp_path / "a.npz")
    assert arrays["x"].shape == (1000, 1000)
    assert arrays["names"].tolist() == ["one", "two"]


def huge_png(path: Path, side: int) -> None:
    """A picture that claims to be side × side, in a hundred bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


@pytest.mark.parametrize("side", [9_500, 30_000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_of_900_megapixels_is_a_sentence(side: int, tmp_path: Path):
    (tmp_path / "pictures/cats").mkdir(parents=True)
    huge_png(tmp_path / "pictures/cats/one.png", side)
    with pytest.raises(
        PotluckError, match=r"one.png' has .* pixels where 80,000,000 are allowed; make the picture"
    ):
        load_data(f"folder:{tmp_path / 'pictures'}", tmp_path)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("=1+2", "'=1+2"),
        ("+cmd", "'+cmd"),
        ("-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("-0.5", "-0.5"),
        ("+1e-3", "+1e-3"),
        (-0.5, -0.5),
        ("fedgh", "fedgh"),
        ("a=b", "a=b"),
        (None, None),
    ],
)
def test_cells_that_a_spreadsheet_would_calculate_are_quoted(value: object, written: object):
    assert csv_cell(value) == written
