"""Follow a run on a Flower server to its end, over restarts of the server; say why, if it has another end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.flower.deploy.command import CONNECTION, flwr
from potluck.flower.deploy.processes import Processes
from potluck.loop.callbacks import Callback, Step
from potluck.loop.records import StepRecord
from potluck.runs import folder

AWAY = 900.0
"""Seconds that a server may be away before its follower gives up."""
LOOK = 15.0
"""Seconds between two questions to the server: each is a process of its own."""


class RunEnded(PotluckError):
    """The server's app is gone without a word, so nothing is wrong with the run: it can go on."""


@dataclass
class Follower:
    """Tells the callbacks of each round, until there is a summary or a reason why there is none.

    A run that is `patient` goes on without a node that has died, once all have taken part.
    """

    processes: Processes
    out: Path
    callbacks: Sequence[Callback] = ()
    patient: bool = False
    away: float = AWAY
    look: float = LOOK
    ask: Callable[[Processes, str], dict[str, Any] | None] = field(
        default=lambda processes, run: listed(processes, run)
    )
    seen: int = 0
    submitted: int = 0
    _completed: int = 0

    @property
    def trouble(self) -> Path:
        """Where the server's app leaves the sentence of what went wrong; what an earlier one says is past."""
        return self.processes.home / f"trouble-{self.submitted}"

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.out / folder.SUMMARY).exists()

    def news(self) -> bool:
        """Tell the callbacks of rounds that are new; says whether there were any."""
        before = self.seen
        self._tell()
        return self.seen > before

    def follow(self, run: str) -> None:
        """Until the run has ended; `RunEnded` if it has not come to its end."""
        looked = heard = time.monotonic()
        while not self.finished:
            self._raise_trouble()
            self._tell()
            self._check_processes()
            if time.monotonic() - looked > self.look:
                found = self.ask(self.processes, run)
                looked = time.monotonic()
                heard = heard if found is None else looked
                if found is not None:
                    self._check_status(found)
                elif looked - heard > self.away:
                    raise PotluckError(
                        f"The Flower server has not answered for {looked - heard:.0f} seconds; when it is back, go on "
                        f"with: potluck resume {self.out}"
                    )
            time.sleep(0.5)
        self._tell()

    def _raise_trouble(self) -> None:
        if self.trouble.exists():
            raise PotluckError(self.trouble.read_text(encoding="utf-8"))

    def _check_processes(self) -> None:
        """Programs that were started here and have died; a run on a server elsewhere has none."""
        dead = self.processes.dead()
        if not dead:
            return
        others = len(dead) == len(self.processes.running) - 1
        if "server" in dead or not (self.patient and self.seen) or others:
            raise PotluckError(f"A Flower process died: {next(iter(dead.values()))}")

    def _check_status(self, found: dict[str, Any]) -> None:
        """A run that the server calls finished, and that left no summary: with its own words, if it has any."""
        status = str(found.get("status", ""))
        if not status.startswith("finished"):
            return
        time.sleep(1.0)  # the app may be about to write down what was wrong
        if self.finished:
            return
        self._raise_trouble()
        if "completed" in status:
            self._completed += 1
            if self._completed > 1:  # it was there when the server was asked before
                raise PotluckError(
                    f"The run has come to its end on the server, but {str(self.out)!r} holds no summary here; look for "
                    "it on the server's own machine, and hand runs in there."
                )
            return
        if "stopped" in status:
            raise PotluckError(
                f"Somebody stopped the run on the server; go on with: potluck resume {self.out}"
            )
        said = str(found.get("status-details", "")).partition("ServerApp failed with exception: ")[2]
        if said and not said.startswith("The connection to the server was lost"):
            raise PotluckError(said)
        raise RunEnded(f"The run on the Flower server ended early ({status})")

    def _tell(self) -> None:
        rows = folder.read_lines(self.out / folder.ROUNDS)
        for row in rows[self.seen :]:
            for callback in self.callbacks:
                callback.on_step(Step(StepRecord(**row), None, (), (), _no_fetch))
        self.seen = max(self.seen, len(rows))


def listed(processes: Processes, run: str) -> dict[str, Any] | None:
    """What the server says of a run; None where it cannot be asked now."""
    try:
        found = json.loads(flwr(processes, "list", CONNECTION, "--run-id", run, "--format", "json"))
        return dict(found["runs"][0])
    except (
        PotluckError,
        ValueError,
        LookupError,
        TypeError,
    ):  # Flower's command says what is wrong in many ways
        return None


def _no_fetch(client: int) -> dict[str, Any]:
    raise PotluckError("On the flower engine a client's state stays on its node.")
