"""One row per server step in `track.csv` of the run's folder, for spreadsheets."""

from __future__ import annotations

import csv

from potluck.trackers.base import Tracker

NAME = "track.csv"


class CsvTracker(Tracker):
    """Long form, `step,figure,value`: nothing has to be known beforehand, and a resumed run appends."""

    def show(self, values: dict[str, float], step: int) -> None:
        """Append a row per figure."""
        file = self.path / NAME
        new = not file.exists()
        with file.open("a", newline="", encoding="utf-8") as out:
            table = csv.writer(out)
            if new:
                table.writerow(["step", "figure", "value"])
            table.writerows([step, name, value] for name, value in values.items())
