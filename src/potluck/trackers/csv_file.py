"""One row per figure and server step in `track.csv` of the run's folder, for spreadsheets."""

from __future__ import annotations

import csv
import io

from potluck.core.files import csv_cell
from potluck.loop.loop import Loop
from potluck.runs.folder import write_atomic
from potluck.trackers.base import Tracker

NAME = "track.csv"
HEADINGS = ["step", "figure", "value"]


class CsvTracker(Tracker):
    """Long form, `step,figure,value`: nothing has to be known beforehand, and a resumed run appends."""

    name = "csv"

    def open(self, loop: Loop) -> None:
        """Keep the rows up to where the run stands; later ones will be written again."""
        file, kept = self.path / NAME, [HEADINGS]
        if file.exists():
            with file.open(newline="", encoding="utf-8") as old:
                rows = [row for row in csv.reader(old) if len(row) == 3 and row[0].isdigit()]
            kept += [row for row in rows if int(row[0]) <= loop.progress.step and row[1] != "final_accuracy"]
        text = io.StringIO()
        csv.writer(text).writerows(kept)
        write_atomic(file, text.getvalue())

    def show(self, values: dict[str, float], step: int) -> None:
        """Append a row per figure."""
        with (self.path / NAME).open("a", newline="", encoding="utf-8") as out:
            csv.writer(out).writerows([step, csv_cell(name), value] for name, value in values.items())
