"""Where a run stands this very moment, in one small file, for those who look at it from outside."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from potluck.core.files import parse_json, read_text
from potluck.loop.callbacks import Arrival, Callback, End, Step
from potluck.loop.loop import Loop

PROGRESS = ".progress"
EVERY = 1.0
"""Seconds between two writings, at the least."""


class Heartbeat(Callback):
    """Writes the present round, how far it is, and (of machines far away) when each was last heard of.

    It is no part of the results: nobody reads it to go on with a run, and a full disk does not matter to it.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.file, self._now = path / PROGRESS, now
        self._written = 0.0
        self._told: dict[str, Any] = {}
        self._nodes: dict[int, dict[str, Any]] = {}

    def on_start(self, loop: Loop) -> None:
        """Remember who takes part, and say that the run goes on."""
        done = loop.progress.ended // loop.cohort
        self._told = {"round": done + 1, "rounds": loop.schedule.rounds, "cohort": loop.cohort}
        self._told |= {"phase": "training", "arrived": 0, "samples": 0, "since": self._now()}
        if loop.dispatcher.engine.remote:
            self._nodes = {
                info.index: {"name": info.name, "architecture": info.architecture, "answered": 0, "failed": 0}
                for info in loop.task.clients
            }
        self._write(at_once=True)

    def on_arrival(self, arrival: Arrival) -> None:
        """One more client is done."""
        phase = "training" if arrival.kind in ("train", "join") else "testing"
        if (phase, arrival.round) != (self._told["phase"], self._told["round"]):
            self._told |= {"phase": phase, "round": arrival.round, "arrived": 0}
        self._told["arrived"] += 1
        self._told["samples"] += arrival.samples
        if arrival.client in self._nodes:
            self._nodes[arrival.client] |= _seen(self._nodes[arrival.client], arrival, self._now())
        self._write()

    def on_step(self, step: Step) -> None:
        """A round, or a part of one, is over."""
        self._write()

    def on_end(self, end: End) -> None:
        """Nothing goes on any more."""
        self._told["phase"] = "ended"
        self._write(at_once=True)

    def _write(self, *, at_once: bool = False) -> None:
        if not at_once and self._now() - self._written < EVERY:
            return
        self._written = self._now()
        told = {
            **self._told,
            "time": self._written,
            "process": os.getpid(),
            "nodes": list(self._nodes.values()),
        }
        part = self.file.with_name(f"{PROGRESS}.part")
        with suppress(OSError):
            part.write_text(json.dumps(told), encoding="utf-8")
            part.replace(self.file)


def read_heartbeat(run: Path) -> dict[str, Any]:
    """What a run last said of itself; empty where it never did."""
    try:
        told = parse_json(read_text(run / PROGRESS))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _seen(node: dict[str, Any], arrival: Arrival, now: float) -> dict[str, Any]:
    if arrival.failure is None:
        return {"answered": node["answered"] + 1, "seen": now, "trouble": ""}
    gone = {} if arrival.failure.kind in ("lost", "late") else {"seen": now}
    return {"failed": node["failed"] + 1, "trouble": arrival.failure.kind, **gone}
