"""Writes a run down while it happens."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from potluck.core.callback import Callback, End, Step
from potluck.core.loop import Loop
from potluck.core.method import Method, Update
from potluck.core.payload import Payload
from potluck.core.records import ClientScore
from potluck.core.task import ClientInfo
from potluck.runs import folder
from potluck.runs.summary import Accounting, summarise_run


class RunWriter(Callback):
    """Appends to `rounds.jsonl` and `clients.jsonl` after every step; the summary comes at the end."""

    def __init__(self, path: Path, facts: dict[str, Any], class_counts: list[list[int]]) -> None:
        self.path = path
        self.facts = {**facts, "class_counts": class_counts}
        self.summary: dict[str, Any] = {}
        self._accounting = Accounting()
        self._method: Method[Any, Any, Any] | None = None
        self._sent: dict[int, Payload] = {}
        self._clients: Sequence[ClientInfo] = ()

    def on_start(self, loop: Loop) -> None:
        """Remember who takes part, and what those at work were sent."""
        self._method, self._clients = loop.method, loop.task.clients
        for flight in loop.progress.flights:
            if flight.job.message is not None:
                self._sent[flight.job.client] = flight.job.message

    def notes(self) -> dict[str, Any]:
        """What this writer knows beyond its files, so that another process can go on with `take_up`."""
        return {"accounting": asdict(self._accounting), "command": self.facts.get("command", "")}

    def take_up(self, notes: dict[str, Any]) -> None:
        """Go on from the notes of an earlier process; the command on record stays the one that began the run."""
        self._accounting = Accounting(**notes["accounting"])
        self.facts["command"] = notes["command"]

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        """Keep the message until its answer comes, for the papers' own way of counting."""
        self._sent[client.index] = message

    def on_update(self, update: Update[Any], round_number: int) -> None:
        """Count one exchange as the paper would."""
        message = self._sent.pop(update.client.index, None)
        if self._method is not None and message is not None:
            self._accounting.add(self._method.paper_accounting(message, update.payload))

    def on_step(self, step: Step) -> None:
        """One line per server step, one per client and evaluation."""
        folder.append_lines(
            self.path / folder.CLIENTS, [_client_row(score) for score in step.scores if score.client]
        )
        folder.append_lines(self.path / folder.ROUNDS, [_finite(asdict(step.record))])

    def on_end(self, end: End) -> None:
        """Every client's last score, and the summary."""
        folder.append_lines(self.path / folder.CLIENTS, [_client_row(score) for score in end.scores])
        rounds = folder.read_lines(self.path / folder.ROUNDS)
        self.summary = summarise_run(self.facts, rounds, self._clients, end.scores, self._accounting)
        path = self.path / folder.SUMMARY
        with folder.writing(path):
            folder.write_atomic(path, json.dumps(self.summary, indent=2) + "\n")


def _client_row(score: ClientScore) -> dict[str, Any]:
    client = score.client
    assert client is not None
    return {
        "round": score.round,
        "client": client.index,
        "name": client.name,
        "architecture": client.architecture,
        "protocol": score.protocol,
        "samples": score.score.samples,
        "train_samples": client.samples,
        "accuracy": score.score.accuracy,
        "loss": score.score.loss if math.isfinite(score.score.loss) else None,
        "final": score.final,
    }


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a diverged loss is recorded as null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
