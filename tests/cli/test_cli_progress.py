"""Progress in the terminal: bars move within a round and line up; without a terminal plain lines are printed."""

from __future__ import annotations

import io
from dataclasses import fields

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from potluck.cli.progress import _Bars, count_lines, progress
from potluck.loop.callbacks import Arrival, Callback, Step
from potluck.loop.records import StepRecord
from potluck.methods.fedavg import FedAvg
from support.tiny import make_loop, tiny


class Notes(Callback):
    """Notes how far the bars are at every arrival and step."""

    def __init__(self, bars: Progress) -> None:
        self.bars, self.seen = bars, list[tuple[float, ...]]()

    def on_arrival(self, arrival: Arrival) -> None:
        if arrival.kind == "train":
            self.on_step(arrival)

    def on_step(self, step: object) -> None:
        self.seen.append(tuple(round(task.completed, 2) for task in self.bars.tasks))


def board(*labels: str) -> tuple[_Bars, Progress, io.StringIO]:
    out = io.StringIO()
    bars = Progress(TextColumn("x"), console=Console(file=out, width=100))
    return _Bars(bars, labels, width=8), bars, out


def test_bars_move_with_every_client_and_all_runs_with_them():
    shown, bars, _ = board("fedavg", "fedgh")
    with shown.show("fedavg") as callbacks:
        notes = Notes(bars)
        make_loop(FedAvg(), tiny(4), rounds=2, callbacks=[*callbacks, notes]).run()
    # The first figure is of all runs (two), the second of this one (two rounds of four clients).
    assert notes.seen[:5] == [(0.12, 0.25), (0.25, 0.5), (0.38, 0.75), (0.49, 0.99), (0.5, 1.0)]
    assert notes.seen[-1] == (1.0, 2.0)


def test_a_finished_run_becomes_a_line_and_the_next_ones_are_named():
    shown, bars, out = board("a", "b", "c", "d", "e")
    with shown.show("a") as callbacks:
        make_loop(FedAvg(), tiny(2), rounds=1, callbacks=callbacks).run()
    assert out.getvalue().startswith("a         accuracy ")
    assert len(bars.tasks) == 1
    assert (bars.tasks[0].fields["where"], bars.tasks[0].fields["news"]) == ("1/5 runs", "then c, d, e")


def test_labels_have_one_width():
    shown, _, _ = board("short", "a label that is far too long")
    assert [len(shown.fit_label(label)) for label in ("short", "a label that is far too long")] == [8, 8]


def test_lines_are_counted_with_the_time_left():
    lines: list[str] = []
    say = count_lines(2, lines.append)
    say("one")
    say("two")
    assert lines[0].startswith("[1/2] one  (about ")
    assert lines[0].endswith(" left)")
    assert lines[1] == "[2/2] two"


def step(number: int, accuracy: float) -> Step:
    """A step as the follower of a Flower run reports it: from `rounds.jsonl`, without `on_start` before it."""
    unmeasured = {entry.name: None for entry in fields(StepRecord)}
    measured = {"step": number, "round": number, "accuracy": accuracy, "train_loss": 0.5}
    counts = {"bytes_up": 512, "bytes_down": 512, "failures": []}
    record = StepRecord(**{**unmeasured, **measured, **counts})
    return Step(record, None, (), (), lambda client: {})


def test_plain_lines_need_only_steps(capsys: pytest.CaptureFixture[str]):
    with progress("fedgh", 2, quiet=False) as (lines,):
        lines.on_step(step(1, 0.25))
        lines.on_step(step(2, 0.5))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("fedgh  round 1/2  accuracy 25.0%  loss 0.500  1.0 KiB  about ")
    assert second == "fedgh  round 2/2  accuracy 50.0%↑  loss 0.500  2.0 KiB"


def test_plain_lines_of_a_run_of_unknown_length(capsys: pytest.CaptureFixture[str]):
    with progress("fedgh", 0, quiet=False) as (lines,):
        lines.on_step(step(3, 0.25))
    assert capsys.readouterr().err == "fedgh  round 3  accuracy 25.0%  loss 0.500  1.0 KiB\n"


def test_a_bar_needs_only_steps():
    shown, bars, _ = board("fedgh")
    with shown.show("fedgh", 3) as (bar,):
        bar.on_step(step(1, 0.25))
        (task,) = bars.tasks
        assert (task.fields["where"], task.completed, task.total) == ("1/3", 1, 3)


def test_a_quiet_run_prints_nothing(capsys: pytest.CaptureFixture[str]):
    with progress("fedgh", 2, quiet=True) as callbacks:
        assert callbacks == []
    assert capsys.readouterr().err == ""
