"""Who a run's clients are, on record in its folder: a run goes on with those it began with, and with no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.core.payload import PayloadError, Tensors
from potluck.core.tree import Flat
from potluck.flower.node.registration import Registration
from potluck.loop.letter import Letter, load_state, save_state
from potluck.runs.folder import write_atomic

NODES = "nodes.json"
WEIGHTS = "first-weights"
MOST = 100
"""Sentences about nodes that were left out; nobody reads more of them."""


@dataclass(frozen=True)
class Roster:
    """The clients as they registered, in their order, and why other nodes were left out."""

    clients: Sequence[Registration]
    left_out: Sequence[str] = ()

    def write(self, run: Path) -> None:
        """Into the run's folder."""
        facts = {
            "clients": [asdict(one) for one in self.clients],
            "left_out": [*dict.fromkeys(self.left_out)][:MOST],
        }
        write_atomic(run / NODES, json.dumps(facts, indent=1) + "\n")

    @staticmethod
    def read(run: Path, limit: int) -> Roster | None:
        """What the folder of a run says of its clients; None for one that has none yet."""
        path = run / NODES
        if not path.exists():
            return None
        try:
            facts = parse_json(read_text(path, max(limit, 1 << 30)))
            people = [Registration.read(Letter({"registration": one}), limit) for one in facts["clients"]]
            return Roster(people, [str(one) for one in facts["left_out"]])
        except (PayloadError, ValueError, LookupError, TypeError):
            raise PotluckError(
                f"{str(path)!r} was changed and cannot be read; restore it, or begin anew in another folder."
            ) from None


class FirstWeights:
    """First weights by client: those that the run's folder holds, else what the client's node sends."""

    def __init__(self, run: Path, ask: Callable[[int], Tensors]) -> None:
        self.folder, self._ask = run / WEIGHTS, ask
        self._found: dict[int, Tensors] = {}

    def __call__(self, client: int) -> Tensors:
        """The weights that this client's kind of model starts from."""
        path = self._path(client)
        if not path.exists():
            self._found[client] = self._ask(client)
            return self._found[client]
        return dict(load_state(path).tensors)

    def write(self) -> None:
        """Keep what was sent: a run that is resumed need not find the same node."""
        for client, tensors in self._found.items():
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self._path(client).with_suffix(".new")
            save_state(temporary, Flat(tensors, None))
            temporary.replace(self._path(client))

    def _path(self, client: int) -> Path:
        return self.folder / f"{client}.safetensors"
