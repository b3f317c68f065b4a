"""What the caller of a figure asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.analysis.groups import Group
from potluck.core.errors import unknown


@dataclass(frozen=True)
class Options:
    """See `potluck.report.figures.plot` for what each means."""

    x: str = "rounds"
    target: float | None = None
    smooth: int = 1
    reference: str | None = None
    field: str | None = None
    client: int | None = None

    def reference_of(self, groups: Sequence[Group]) -> Group:
        """The group that the others are held against; the first unless named."""
        if self.reference is None:
            return groups[0]
        for group in groups:
            if self.reference in (group.label, group.method):
                return group
        raise unknown("reference method", self.reference, [group.label for group in groups])
