"""Answers kept as the server got them, with the messages they answer, for whoever asks what they give away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method, Update, payload_types
from potluck.core.payload import Payload
from potluck.loop.callbacks import Callback
from potluck.loop.letter import decode, encode
from potluck.runs.folder import ANSWERS, writing


@dataclass(frozen=True)
class Kept:
    """One answer: whose, to which of its jobs, what it had been sent and what it sent back."""

    client: int
    job: int
    message: Payload
    answer: Payload


class KeepAnswers(Callback):
    """Writes every accepted answer, and the message it answers, into the run's folder as the images that travel."""

    def __init__(self, run: Path) -> None:
        self.folder = run / ANSWERS

    def on_update(self, update: Update[Any], round_number: int) -> None:
        """Two files for each job: what the client got and what it gave."""
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            for kind, payload in (("message", update.sent), ("answer", update.payload)):
                name = f"{update.client.index:05d}-{update.job:05d}-{kind}.safetensors"
                (self.folder / name).write_bytes(encode(payload))


def read_answers(run: Path, method: Method[Any, Any, Any]) -> list[Kept]:
    """Every answer of a run, by clients and their jobs; a run that kept none is told how to."""
    found = list(_read(run / ANSWERS, method))
    if not found:
        raise PotluckError(f"{str(run)!r} has kept no answers; repeat the run with --keep-answers.")
    return found


def _read(folder: Path, method: Method[Any, Any, Any]) -> Iterator[Kept]:
    down, up = payload_types(method)
    for path in sorted(folder.glob("*-answer.safetensors")):
        client, job, _ = path.name.split("-", 2)
        message = path.with_name(path.name.replace("-answer.", "-message."))
        yield Kept(int(client), int(job), decode(down, message.read_bytes()), decode(up, path.read_bytes()))
