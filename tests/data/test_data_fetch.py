"""Data preparation: verified downloads from a local server, no wrong file kept, clear instructions."""

import dataclasses
import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from potluck.core.errors import PotluckError
from potluck.data import load, load_data, prepare
from potluck.data.fetch import Download


def md5(content):
    return "md5:" + hashlib.md5(content).hexdigest()


def sha256(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture
def shelf(tmp_path):
    """A folder of published files and its file:// address."""
    folder = tmp_path / "published"
    folder.mkdir()
    return folder


def test_a_plain_file_is_fetched_and_verified(shelf, tmp_path):
    (shelf / "a.txt").write_bytes(b"hello")
    Download((shelf / "a.txt").as_uri(), md5(b"hello"), "set/a.txt", "set/a.txt").fetch(tmp_path / "root")
    assert (tmp_path / "root" / "set" / "a.txt").read_bytes() == b"hello"
    assert [entry.name for entry in (tmp_path / "root" / "set").iterdir()] == ["a.txt"]


def test_a_wrong_checksum_keeps_nothing(shelf, tmp_path):
    (shelf / "a.txt").write_bytes(b"hell")
    download = Download((shelf / "a.txt").as_uri(), sha256(b"hello"), "set/a.txt", "set/a.txt")
    with pytest.raises(PotluckError, match=r"has sha256 .* instead of .*; it is incomplete or was changed"):
        download.fetch(tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_a_missing_file_is_an_error_of_one_sentence(tmp_path):
    download = Download((tmp_path / "none.bin").as_uri(), "md5:0", "x", "x")
    with pytest.raises(PotluckError, match=r"Cannot download file://.*none\.bin"):
        download.fetch(tmp_path / "root")


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_an_archive_inside_an_archive(shelf, tmp_path):
    content = zipped({"Inner Set.zip": zipped({"Inner Set/a.txt": "x"}), "names.txt": "y"})
    (shelf / "o.zip").write_bytes(content)
    download = Download(
        (shelf / "o.zip").as_uri(), md5(content), "har", "har/Inner Set", True, "Inner Set.zip"
    )
    download.fetch(tmp_path)
    assert (tmp_path / "har" / "Inner Set" / "a.txt").read_text() == "x"
    assert sorted(path.name for path in (tmp_path / "har").iterdir()) == ["Inner Set", "names.txt"]
    download.fetch(tmp_path)  # a second time replaces what is there
    assert (tmp_path / "har" / "Inner Set" / "a.txt").read_text() == "x"


def test_something_that_is_no_archive_is_named(shelf, tmp_path):
    (shelf / "o.tar.gz").write_bytes(b"not an archive")
    download = Download((shelf / "o.tar.gz").as_uri(), md5(b"not an archive"), ".", "x", archive=True)
    with pytest.raises(PotluckError, match=r"Cannot unpack o\.tar\.gz"):
        download.fetch(tmp_path / "root")


def cifar_archive():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        files = {f"data_batch_{part}.bin": bytes(3073) for part in range(1, 6)}
        files |= {"test_batch.bin": bytes(3073), "batches.meta.txt": b"a b c d e f g h i j\n"}
        for name, content in files.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def cifar_at(shelf, monkeypatch):
    """Point the CIFAR-10 source at an address and checksum of the test's own."""

    def point(url, checksum):
        source = load.SOURCES["cifar10"]
        download = dataclasses.replace(source.downloads[0], url=url, checksum=checksum)
        monkeypatch.setitem(load.SOURCES, "cifar10", dataclasses.replace(source, downloads=(download,)))

    return point


def test_prepare_over_http_then_load(shelf, tmp_path, cifar_at):
    content = cifar_archive()
    (shelf / "cifar-10-binary.tar.gz").write_bytes(content)

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args, **options):
            super().__init__(*args, directory=str(shelf), **options)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        cifar_at(f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz", md5(content))
        message = prepare("cifar10", tmp_path / "root")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert message.startswith("Data('cifar10': 5 rows, 1 test rows")
    assert message.endswith(f"is ready in '{tmp_path / 'root'}'.")
    assert len(load_data("cifar10", tmp_path / "root")) == 5


def test_prepare_without_network_names_files_and_folders(tmp_path, cifar_at):
    cifar_at((tmp_path / "gone.tar.gz").as_uri(), "md5:0")
    with pytest.raises(PotluckError) as problem:
        prepare("cifar10", tmp_path / "root")
    assert f"By hand: below '{tmp_path / 'root'}', put cifar-10-batches-bin/ with data_batch_1.bin" in str(
        problem.value
    )


def test_prepare_keeps_existing_files(tmp_path, cifar_at, monkeypatch):
    cifar_at((tmp_path / "gone.tar.gz").as_uri(), "md5:0")
    monkeypatch.setitem(load.SOURCES, "cifar10", dataclasses.replace(load.SOURCES["cifar10"], rows=6))
    folder = tmp_path / "root"
    with tarfile.open(fileobj=io.BytesIO(cifar_archive())) as tar:
        tar.extractall(folder, filter="data")
    assert "is ready" in prepare("cifar10", folder)


def test_prepare_names_its_downloads_and_stays_inside_the_root(shelf, tmp_path, cifar_at):
    content = cifar_archive()
    (shelf / "c.tar.gz").write_bytes(content)
    cifar_at((shelf / "c.tar.gz").as_uri(), md5(content))
    lines = []
    prepare("cifar10", tmp_path / "root", say=lines.append)
    assert lines == [f"Fetching {(shelf / 'c.tar.gz').as_uri()}"]
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == [".potluck", "cifar-10-batches-bin"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["published", "root"]


def test_prepare_of_data_that_need_nothing():
    assert prepare("digits").startswith("Data('digits': 1,797 rows")


def test_every_download_is_verified_and_goes_below_its_own_folder():
    for source in load.list_data():
        for download in source.downloads:
            kind, _, digest = download.checksum.partition(":")
            assert len(digest) == {"md5": 32, "sha256": 64}[kind]
            assert download.url.startswith("http")
            assert not download.makes.startswith(("/", "."))
            assert source.layout
            assert source.rows > 0


def test_npy_copies_are_no_pickles(tmp_path):
    with tarfile.open(fileobj=io.BytesIO(cifar_archive())) as tar:
        tar.extractall(tmp_path, filter="data")
    load_data("cifar10", tmp_path)
    files = sorted(path.name for path in (tmp_path / ".potluck").rglob("*.*") if path.is_file())
    assert files == ["meta.json", "x.npy", "y.npy"]
    for path in (tmp_path / ".potluck").rglob("*.npy"):
        np.load(path, allow_pickle=False)
