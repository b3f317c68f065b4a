"""Download from the publisher, verified before anything is put in place."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from potluck.core.errors import PotluckError


@dataclass(frozen=True)
class Download:
    """A publisher's file, its checksum (`md5:…` or `sha256:…`), and where it goes below the data root.

    A plain file goes to `target`. An archive is unpacked into the folder `target`; `inner` names an archive
    inside it that is unpacked there, too. `makes` is the file or folder that shows that it is in place.
    """

    url: str
    checksum: str
    target: str
    makes: str
    archive: bool = False
    inner: str | None = None

    def fetch(self, root: Path) -> None:
        """Download, verify, and only then put in place."""
        target = root / self.target
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as folder:
            file = Path(folder) / self.url.rsplit("/", 1)[-1]
            _download(self.url, file)
            _verify(self.url, file, self.checksum)
            if self.archive:
                self._unpack(file, Path(folder) / "unpacked", target)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)

    def _unpack(self, file: Path, temporary: Path, target: Path) -> None:
        _extract(file, temporary)
        if self.inner is not None:
            _extract(temporary / self.inner, temporary)
            (temporary / self.inner).unlink()
        target.mkdir(parents=True, exist_ok=True)
        for entry in temporary.iterdir():
            place = target / entry.name
            if place.is_dir():
                shutil.rmtree(place)
            os.replace(entry, place)


def _download(url: str, file: Path) -> None:
    try:
        request = urllib.request.Request(
            url, headers={"User-Agent": "potluck"}
        )  # some hosts refuse the default
        with urllib.request.urlopen(request, timeout=60) as answer, file.open("wb") as out:
            shutil.copyfileobj(answer, out, 1 << 20)
    except (urllib.error.URLError, OSError) as problem:
        reason = getattr(problem, "reason", problem)
        raise PotluckError(f"Cannot download {url} ({reason}); try again, or fetch it by hand.") from problem


def _verify(url: str, file: Path, checksum: str) -> None:
    kind, _, expected = checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise PotluckError(
            f"The download of {url} has {kind} {digest.hexdigest()} instead of {expected}; "
            "it is incomplete or was changed, so nothing was kept."
        )


def _extract(file: Path, folder: Path) -> None:
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                archive.extractall(folder)
        else:
            with tarfile.open(file) as tar:
                tar.extractall(folder, filter="data")
    except (zipfile.BadZipFile, tarfile.TarError, OSError, EOFError) as problem:
        raise PotluckError(f"Cannot unpack {file.name} ({problem}); fetch it again.") from problem
