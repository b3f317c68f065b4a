"""What every message to a node says of its run."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace

from potluck.core.payload import PayloadError
from potluck.loop.letter import Letter, section


@dataclass(frozen=True)
class Assignment:
    """The experiment as JSON, the run's id, and where clients of a dealt data set keep their states."""

    experiment: str
    run: str
    state: str = ""

    def on(self, letter: Letter) -> Letter:
        """The letter with this written on it."""
        return replace(letter, facts={**letter.facts, "assignment": asdict(self)})

    @staticmethod
    def read(letter: Letter) -> Assignment:
        """What is written on a letter. A run's id names a folder, so it may hold nothing else."""
        values = section(letter, "assignment")
        if set(values) != {"experiment", "run", "state"} or not all(
            isinstance(value, str) for value in values.values()
        ):
            raise PayloadError("The message does not say which experiment it belongs to.")
        if not re.fullmatch(r"[0-9a-f]{0,32}", values["run"]):
            raise PayloadError(f"The run id {values['run']!r} is not one of Potluck's.")
        return Assignment(**values)
