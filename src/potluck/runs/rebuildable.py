"""A server state that no checkpoint could bring back is refused while it can still be mended."""

from __future__ import annotations

from potluck.core import tree
from potluck.core.callback import Callback, Step
from potluck.core.errors import PotluckError
from potluck.core.loop import Loop


class Rebuildable(Callback):
    """Watches that modules and dataclasses stand in the server's state only where `init_server` puts them.

    A checkpoint holds tensors and numbers, no code: what is more than that is taken from a fresh state.
    """

    def __init__(self) -> None:
        self._loop: Loop | None = None
        self._fresh: dict[str, type] = {}
        self._round = 0

    def on_start(self, loop: Loop) -> None:
        """Note what a fresh state is made of."""
        self._loop, self._round = loop, loop.progress.ended // loop.cohort
        begun = loop.progress.step > 0
        self._fresh = dict(tree.made_parts(loop.initial_state() if begun else loop.progress.state))

    def on_step(self, step: Step) -> None:
        """Look at the state at the end of each round, which is when it is saved."""
        assert self._loop is not None
        ended = self._loop.progress.ended // self._loop.cohort
        if ended == self._round:
            return
        self._round = ended
        for path, kind in tree.made_parts(step.state):
            if self._fresh.get(path) is not kind:
                raise PotluckError(
                    f"The server of {type(self._loop.method).__name__} cannot be saved: state{path} is a "
                    f"{kind.__name__} that init_server does not make, so no checkpoint could bring it back; make it "
                    "there, keep its tensors in a dict, or pass --checkpoint-every 0."
                )
