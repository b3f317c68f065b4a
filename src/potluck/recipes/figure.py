"""A paper's figure as part of a recipe: what each of its panels shows, and of which runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

Kind = Literal[
    "sweep",
    "curves",
    "bars",
    "clients",
    "groups",
    "notes",
    "difference",
    "samples",
    "cka-stages",
    "cka",
    "tsne",
    "vectors",
]

ABOUT: dict[Kind, str] = {
    "sweep": "cells of the table against what varies between their settings, or between the rows",
    "curves": "a value of every round, a line per row",
    "bars": "cells of the table as bars, a group per column and a bar per row",
    "clients": "the accuracy of every client of one row over the rounds",
    "groups": "the mean accuracy of groups of clients over the rounds, for each row",
    "notes": "what clients of one row recorded over the rounds, such as mixing weights",
    "difference": "accuracy of each client under the first row minus that under the second",
    "samples": "training samples of each client and class, as the area of a circle",
    "cka-stages": "mean similarity (linear CKA) of the clients' networks at every stage, a bar per row",
    "cka": "similarity of each pair of clients at a stage",
    "tsne": "t-SNE of the output of a stage for common inputs, a marker per client",
    "vectors": "t-SNE of the server's vector of each class and the clients' mean of it",
}

OF_NETWORKS: tuple[Kind, ...] = ("cka-stages", "cka", "tsne", "vectors")
"""Kinds that are made of the trained networks, and so of a run's last checkpoint; of the first seed."""

OF_CELLS: tuple[Kind, ...] = ("sweep", "bars")
"""Kinds that show cells of the table; the others read the folders of one setting's runs."""


class Panel(BaseModel, extra="forbid", frozen=True):
    """One set of axes."""

    kind: Kind
    setting: str = ""
    rows: tuple[str, ...] = ()
    """Rows that are shown; all where there are none."""
    columns: tuple[str, ...] = ()
    """Bars: the groups. Sweep over rows: the lines."""
    points: dict[str, str] = {}
    """Sweep: the column, or the row, of each place on the x axis."""
    value: str = "accuracy"
    """Curves: a number of `rounds.jsonl`, or `loss_increase`. Notes: the name of the note."""
    along: Literal["rounds", "samples"] = "rounds"
    """Curves and groups: what the x axis measures; `samples` are those that all clients have trained on."""
    x: str = "round"
    y: str = "accuracy (%)"
    scale: Literal["linear", "log", "names"] = "linear"
    """How the x axis of a sweep is divided."""
    smooth: int = Field(1, ge=1)
    """Evaluations in the moving average of a line; the line itself is drawn in grey behind it."""
    target: float | None = Field(None, gt=0, le=1)
    lines: dict[str, float] = {}
    """Printed values that are drawn across, in the units of the y axis."""
    clients: tuple[int, ...] = ()
    """Clients that are shown; all, or the first ten where networks are compared."""
    stage: int = Field(-1, le=-1)
    """CKA, t-SNE: which output, counted from the last stage before the pooling (-1)."""
    label: int | None = Field(None, ge=0)
    """t-SNE: the class that all inputs are of; any where it is unset."""
    groups: dict[str, tuple[int, ...]] = {}

    @model_validator(mode="after")
    def _complete(self) -> Panel:
        needs = {"sweep": "points", "bars": "columns", "groups": "groups"}
        for name in (needs.get(self.kind, ""), "" if self.kind in OF_CELLS else "setting"):
            if name and not getattr(self, name):
                raise ValueError(f"a panel of kind {self.kind!r} needs {name}")
        if self.kind == "difference" and len(self.rows) != 2:
            raise ValueError("a panel of kind 'difference' needs two rows")
        single_run = ("clients", "notes", "samples", "cka", "tsne", "vectors")
        if self.kind in single_run and len(self.rows) != 1:
            raise ValueError(f"a panel of kind {self.kind!r} shows one row; name it in rows")
        if self.smooth % 2 == 0:
            raise ValueError(f"smooth = {self.smooth} is not an odd number")
        return self


class Figure(BaseModel, extra="forbid", frozen=True):
    """The panels of a figure; what stands beside `panels` holds for all of them that do not say otherwise."""

    panels: dict[str, Panel] = Field(min_length=1)
    across: int = Field(2, ge=1, le=3)
    """Panels side by side."""

    @model_validator(mode="before")
    @classmethod
    def _with_common(cls, content: Any) -> Any:
        if not isinstance(content, Mapping) or not isinstance(content.get("panels"), Mapping):
            return content
        own = {name: value for name, value in content.items() if name in cls.model_fields}
        common = {name: value for name, value in content.items() if name not in cls.model_fields}
        panels = {
            title: {**common, **panel} if isinstance(panel, Mapping) else panel
            for title, panel in content["panels"].items()
        }
        return {**own, "panels": panels}

    @property
    def reads_networks(self) -> bool:
        """Return whether a panel is made of checkpoints."""
        return any(panel.kind in OF_NETWORKS for panel in self.panels.values())

    def mistake(
        self, settings: Mapping[str, Any], columns: Mapping[str, Any], rows: Mapping[str, Any]
    ) -> str | None:
        """Return what a panel names and the recipe lacks, as a sentence; None where everything is there."""
        for title, panel in self.panels.items():
            for name in filter(None, [panel.setting]):
                if name not in settings:
                    return f"panel {title!r} is of the setting {name!r}, which is not there"
            for name in panel.rows:
                if name not in rows:
                    return f"panel {title!r} shows the row {name!r}, which is not there"
            for name in panel.columns:
                if name not in columns:
                    return f"panel {title!r} shows the column {name!r}, which is not there"
            allowed = columns if all(name in columns for name in panel.points.values()) else rows
            for name in panel.points.values():
                if name not in allowed:
                    return f"panel {title!r} has a point of {name!r}, which is neither a column nor a row"
            if allowed is rows and panel.points and not panel.columns:
                return f"panel {title!r} has rows as points, and needs columns for its lines"
        return None
