"""The folder of a run's checkpoints: files that become valid with a complete manifest with a checksum.

Each checkpoint is a generation. It writes the states of the server and of changed clients to new files, names every
file it needs (older ones, too) in its manifest, and renames the manifest into place last. Files that neither of the
two newest manifests names are then deleted. The process may be killed at any moment.
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
from potluck.wire import Buffer, encode_tensors, load_state

FORMAT, VERSION = "potluck checkpoint", 2

MAX_MANIFEST = 1 << 30
"""Maximum bytes of a manifest; with 100,000 clients it has about 20 million."""

Entry = dict[str, Any]
"""One file: its `file` name, `sha256` and `bytes`; a client's also says after how many `jobs` it was taken."""

_FILE_NAME = re.compile(r"(manifest|server|client-\d+)-(\d+)\.(json|safetensors)(\.new)?")


class DamagedCheckpoint(Exception):
    """A generation is not intact; the message says why."""


@dataclass(frozen=True)
class Manifest:
    """The content of one generation."""

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
        """Return every file that this generation needs."""
        return [self.server, *self.clients.values()]


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints below one folder."""

    path: Path

    def numbers(self) -> list[int]:
        """Return the generations that have a manifest, newest first."""
        matches = [_FILE_NAME.fullmatch(name) for name in _names(self.path)]
        return sorted((int(m[2]) for m in matches if m and m[1] == "manifest" and not m[4]), reverse=True)

    # -- writing ------------------------------------------------------------------------------------------

    def write_state(self, name: str, state: Flat) -> Entry:
        """Write a state to a new file, and sync it to disk."""
        self.path.mkdir(exist_ok=True)
        buffers, digest = encode_tensors(state), hashlib.sha256()
        for buffer in buffers:
            digest.update(buffer)
        _write(self.path / name, buffers)
        return {"file": name, "sha256": digest.hexdigest(), "bytes": sum(len(buffer) for buffer in buffers)}

    def adopt_file(self, name: str) -> Entry:
        """Add a file that an engine has written: compute its checksum, and sync it to disk."""
        with open(self.path / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
            return {"file": name, "sha256": digest, "bytes": file.tell()}

    def commit(self, manifest: Manifest) -> None:
        """Make a generation valid: its files are synced before its manifest is renamed into place."""
        self.path.mkdir(exist_ok=True)
        sync(self.path)
        place = self.path / f"manifest-{manifest.generation}.json"
        fresh = place.with_name(place.name + ".new")
        body = _canonical(vars(manifest))  # one serialisation for file and digest: it may be large
        head = json.dumps({"format": FORMAT, "version": VERSION, "sha256": _digest(body)})
        _write(fresh, [f'{head[:-1]}, "body": {body}}}'.encode()])
        os.replace(fresh, place)
        sync(self.path)

    def delete_unused(self, keep: Iterable[Manifest]) -> None:
        """Delete all files of checkpoints that these generations do not need."""
        needed: set[str] = set()
        for manifest in keep:
            needed |= {f"manifest-{manifest.generation}.json", *(e["file"] for e in manifest.entries())}
        for name in _names(self.path):
            if name not in needed and _FILE_NAME.fullmatch(name):
                (self.path / name).unlink(missing_ok=True)

    # -- reading ------------------------------------------------------------------------------------------

    def read(self, generation: int) -> Manifest:
        """Read the manifest of a generation; raise `DamagedCheckpoint` if it is not intact."""
        name = f"manifest-{generation}.json"
        try:
            content = parse_json(read_text(self.path / name, MAX_MANIFEST))
            version, digest, body = content["version"], content["sha256"], content["body"]
        except (OSError, ValueError, KeyError, TypeError, PotluckError):
            raise DamagedCheckpoint(f"{name} cannot be read") from None
        if version != VERSION:
            raise PotluckError(
                f"{str(self.path / name)!r} has format version {version!r}, this Potluck reads {VERSION}; "
                "use the Potluck that wrote it."
            )
        try:
            if _digest(_canonical(body)) == digest:
                return Manifest(**body)
        except (TypeError, RecursionError):  # intact, but not a manifest
            raise DamagedCheckpoint(f"{name} is not a manifest") from None
        raise DamagedCheckpoint(f"{name} does not match its checksum")

    def verify(self, manifest: Manifest) -> None:
        """Compare every file of a generation with its checksum; raise `DamagedCheckpoint` at the first difference."""
        for entry in manifest.entries():
            try:
                with open(self.path / entry["file"], "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise DamagedCheckpoint(f"{entry['file']}: {error.strerror}") from None
            if digest != entry["sha256"]:
                raise DamagedCheckpoint(f"{entry['file']} does not match its checksum")

    def read_state(self, entry: Entry) -> Flat:
        """Read the state in a file."""
        return load_state(self.path / entry["file"])


def sync(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to disk."""
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
