"""Stored answers of clients, with the messages they answer, for the analysis of leaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method, Update, payload_types
from potluck.core.payload import Payload
from potluck.loop.callbacks import Callback
from potluck.runs.folder import ANSWERS, writing
from potluck.wire import decode, encode


@dataclass(frozen=True)
class KeptAnswer:
    """One answer: its client and job, the message it answers, and the payload."""

    client: int
    job: int
    message: Payload
    answer: Payload


class KeepAnswers(Callback):
    """Write every accepted answer and the message it answers to the run's folder, encoded as for transport."""

    def __init__(self, run: Path) -> None:
        self.folder = run / ANSWERS

    def on_update(self, update: Update[Any], round_number: int) -> None:
        """Write two files for each job: message and answer."""
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            for kind, payload in (("message", update.sent), ("answer", update.payload)):
                name = f"{update.client.index:05d}-{update.job:05d}-{kind}.safetensors"
                (self.folder / name).write_bytes(encode(payload))


def read_answers(run: Path, method: Method[Any, Any, Any]) -> list[KeptAnswer]:
    """Read every answer of a run, in the order of clients and jobs."""
    answers = list(_read(run / ANSWERS, method))
    if not answers:
        raise PotluckError(f"{str(run)!r} has no stored answers; repeat the run with --keep-answers.")
    return answers


def _read(folder: Path, method: Method[Any, Any, Any]) -> Iterator[KeptAnswer]:
    down, up = payload_types(method)
    for path in sorted(folder.glob("*-answer.safetensors")):
        client, job, _ = path.name.split("-", 2)
        message = path.with_name(path.name.replace("-answer.", "-message."))
        yield KeptAnswer(
            int(client), int(job), decode(down, message.read_bytes()), decode(up, path.read_bytes())
        )
