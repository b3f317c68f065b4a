"""The folder of a run's checkpoints: files that only a complete and checksummed manifest makes valid.

Each checkpoint is a generation. It writes the server's state and the clients that changed into files of its
own, names every file it needs (older ones too) in its manifest, and puts the manifest in place last. What
neither of the two newest manifests names is deleted then. A process may die at any moment in between.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.core.tree import Flat
from potluck.loop.letter import Buffer, image, load_state

FORMAT, VERSION = "potluck checkpoint", 2

MAX_MANIFEST = 1 << 30
"""Bytes of a manifest; one of 100,000 clients has some 20 million."""

Entry = dict[str, Any]
"""One file: its `file` name, `sha256` and `bytes`; a client's also says after how many `jobs` it was taken."""

_OURS = re.compile(r"(manifest|server|client-\d+)-(\d+)\.(json|safetensors)(\.new)?")


class Damaged(Exception):
    """What is wrong with a generation, in a few words."""


@dataclass(frozen=True)
class Manifest:
    """All that one generation consists of."""

    generation: int
    round: int
    server: Entry
    clients: dict[str, Entry]
    progress: dict[str, Any]
    metrics: dict[str, int] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    population: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def entries(self) -> list[Entry]:
        """Every file that this generation needs."""
        return [self.server, *self.clients.values()]


@dataclass(frozen=True)
class Generations:
    """The checkpoints below one folder."""

    path: Path

    def numbers(self) -> list[int]:
        """The generations that have a manifest, newest first."""
        found = [_OURS.fullmatch(name) for name in _names(self.path)]
        return sorted((int(m[2]) for m in found if m and m[1] == "manifest" and not m[4]), reverse=True)

    # -- writing ------------------------------------------------------------------------------------------

    def write_state(self, name: str, state: Flat) -> Entry:
        """Write a state to a file of its own, down to the disk."""
        self.path.mkdir(exist_ok=True)
        buffers, digest = image(state), hashlib.sha256()
        for buffer in buffers:
            digest.update(buffer)
        _write(self.path / name, buffers)
        return {"file": name, "sha256": digest.hexdigest(), "bytes": sum(len(buffer) for buffer in buffers)}

    def take_in(self, name: str) -> Entry:
        """Make a file that somebody else put here ours: measured, and down to the disk."""
        with open(self.path / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
            return {"file": name, "sha256": digest, "bytes": file.tell()}

    def commit(self, manifest: Manifest) -> None:
        """Make a generation valid: all its files are on the disk before its manifest has its name."""
        self.path.mkdir(exist_ok=True)
        sync(self.path)
        place = self.path / f"manifest-{manifest.generation}.json"
        fresh = place.with_name(place.name + ".new")
        body = _canonical(vars(manifest))  # written as it is digested: it lists every client that has worked
        head = json.dumps({"format": FORMAT, "version": VERSION, "sha256": _digest(body)})
        _write(fresh, [f'{head[:-1]}, "body": {body}}}'.encode()])
        os.replace(fresh, place)
        sync(self.path)

    def sweep(self, keep: Iterable[Manifest]) -> None:
        """Delete all files of checkpoints that these generations do not need."""
        wanted: set[str] = set()
        for manifest in keep:
            wanted |= {f"manifest-{manifest.generation}.json", *(e["file"] for e in manifest.entries())}
        for name in _names(self.path):
            if name not in wanted and _OURS.fullmatch(name):
                (self.path / name).unlink(missing_ok=True)

    # -- reading ------------------------------------------------------------------------------------------

    def read(self, generation: int) -> Manifest:
        """The manifest of a generation, whole and unchanged, or `Damaged`."""
        name = f"manifest-{generation}.json"
        try:
            content = parse_json(read_text(self.path / name, MAX_MANIFEST))
            version, digest, body = content["version"], content["sha256"], content["body"]
        except (OSError, ValueError, KeyError, TypeError, PotluckError):
            raise Damaged(f"{name} cannot be read") from None
        if version != VERSION:
            raise PotluckError(
                f"{str(self.path / name)!r} has format version {version!r}, this Potluck reads {VERSION}; "
                "use the Potluck that wrote it."
            )
        try:
            if _digest(_canonical(body)) == digest:
                return Manifest(**body)
        except (TypeError, RecursionError):  # whole, but nothing that we wrote
            raise Damaged(f"{name} is no manifest") from None
        raise Damaged(f"{name} does not match its checksum")

    def verify(self, manifest: Manifest) -> None:
        """Compare every file of a generation with its checksum, a piece at a time; `Damaged` at the first bad one."""
        for entry in manifest.entries():
            try:
                with open(self.path / entry["file"], "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise Damaged(f"{entry['file']}: {error.strerror}") from None
            if digest != entry["sha256"]:
                raise Damaged(f"{entry['file']} does not match its checksum")

    def read_state(self, entry: Entry) -> Flat:
        """The state in a file."""
        return load_state(self.path / entry["file"])


def sync(path: Path) -> None:
    """Down to the disk: a file's content, or the names in a folder."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _write(path: Path, buffers: Sequence[Buffer]) -> None:
    with open(path, "wb") as file:
        for buffer in buffers:
            file.write(buffer)
        file.flush()
        os.fsync(file.fileno())


def _canonical(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _names(path: Path) -> list[str]:
    return [entry.name for entry in path.iterdir()] if path.exists() else []
