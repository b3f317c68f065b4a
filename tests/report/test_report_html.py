"""The report as a file: self-contained, escaped, complete, also for one run that never ended."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potluck.analysis.comparison import compare
from potluck.core.errors import PotluckError
from potluck.report.data import (
    MAX_CELLS,
    MAX_CLIENTS,
    MAX_CONFUSIONS,
    MAX_LINES,
    MAX_NOTES,
    MAX_POINTS,
    report_data,
    to_json,
)
from potluck.report.html import common_target, write_report
from potluck.report.style import method_style
from potluck.runs.read import read_run
from support.synthetic_runs import make_run

HOSTILE = "<script>alert('x')</script>&\"%{y}{{style}}"


class Page(HTMLParser):
    """Just enough of a browser to see what the page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def embedded(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match
    data: dict[str, Any] = json.loads(match.group(1))
    return data


def test_report_is_one_file_that_loads_nothing(compared: list[Path], tmp_path: Path) -> None:
    file = write_report(compared, tmp_path / "new" / "report.html")
    text = file.read_text()
    assert [each.name for each in file.parent.iterdir()] == ["report.html"]
    for tag, attributes in Page(text).tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    policy = next(
        a["content"] for t, a in Page(text).tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "form-action 'none'" in policy
    assert "plotly.js (basic - minified) v" in text
    assert "Licensed under the MIT license" in text  # its notice travels with it
    assert file.stat().st_size < 1_500_000  # it is mailed, and kept by the hundred


def test_everything_a_reader_asks_for_is_there(compared: list[Path], tmp_path: Path) -> None:
    page = Page(write_report(compared, tmp_path / "r.html").read_text())
    ids = {attributes.get("id") for _, attributes in page.tags}
    charts = ("gains", "curves", "pareto", "target", "clients", "architectures", "classes", "confusion")
    charts += ("calibration", "samples", "traffic", "failures", "staleness")
    assert {f"chart-{name}" for name in charts} <= ids
    assert "fedavg vs fedgh vs fedhe on digits" in page.text
    assert "potluck run fedgh --rounds 20 --seed 1" in page.text
    best = max((read_run(run) for run in compared[2:4]), key=lambda run: run.final_accuracy)
    mean = sum(read_run(run).final_accuracy for run in compared[2:4]) / 2
    assert f"{100 * mean:.2f} ±" in page.text
    assert best.method == "fedgh"
    assert "dirichlet:0.3" in page.text
    assert "paired t over seeds (2 pairs)" in page.text


def test_controls_are_buttons_and_labelled_fields(compared: list[Path], tmp_path: Path) -> None:
    page = Page(write_report(compared, tmp_path / "r.html").read_text())
    toggles = [
        attributes for tag, attributes in page.tags if tag == "button" and attributes.get("class") == "toggle"
    ]
    assert [toggle["aria-pressed"] for toggle in toggles] == ["true"] * 3
    assert not [a for tag, a in page.tags if tag != "button" and "onclick" in a]
    references = [a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a]
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert set(references) <= ids
    skip = next(attributes for tag, attributes in page.tags if tag == "a")
    assert skip["href"] == "#main"


def test_text_from_run_folders_is_never_markup(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, method=HOSTILE, summary={"dataset": "<img src=x onerror=1>", "partition": "</style>"}
    )
    (run / "experiment.toml").write_text("# </pre><script>alert(2)</script>\nnote = '<b>'\n")
    text = write_report([run], tmp_path / "r.html").read_text()
    page = Page(text)
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 3  # data, plotly, the page's own
    assert not [tag for tag, _ in page.tags if tag in ("img", "b")]
    assert HOSTILE in page.text
    data = embedded(text)
    assert data["groups"][0]["label"] == HOSTILE
    assert "<" not in to_json(data)


def test_one_unfinished_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, finished=False)
    text = write_report([run], tmp_path / "r.html").read_text()
    page = Page(text)
    assert "unfinished" in page.text
    assert "experiment.toml" in page.text
    data = embedded(text)
    assert len(data["groups"][0]["curves"]["accuracy"]["mean"]) == 20
    assert data["partitions"] == []


def test_a_run_before_its_first_evaluation(tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "rounds.jsonl").write_text('{"step": 1, "round": 1, "accuracy": null}\n')
    text = write_report([tmp_path / "early"], tmp_path / "r.html").read_text()
    assert embedded(text)["axes"] == []
    (tmp_path / "early" / "rounds.jsonl").write_text("")
    assert write_report([tmp_path / "early"], tmp_path / "r.html").exists()


def test_band_over_seeds_and_every_axis(compared: list[Path]) -> None:
    data = report_data(compare(read_run(path) for path in compared))
    curve = data["groups"][1]["curves"]["accuracy"]
    assert curve["seeds"] == 2
    assert (
        len(curve["std"])
        == len(curve["bytes"])
        == len(curve["seconds"])
        == len(curve["virtual_seconds"])
        == 20
    )
    assert data["axes"] == ["rounds", "bytes", "seconds", "virtual_seconds"]
    assert set(data["metrics"]) == {"accuracy", "loss", "train_loss", "train_ce", "loss_increase"}


def test_method_notes_and_loss_increases_are_curves(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, method="pfedafm", rounds=4, notes=("alpha",)))
    data = report_data(compare([run]))
    assert data["metrics"]["notes.alpha"] == "note: alpha"
    curves = data["groups"][0]["curves"]
    assert list(curves["notes.alpha"]["mean"]) == [1, 1 / 2, 1 / 3, 1 / 4]
    loss = run.curve("train_ce").y  # falls from round to round, so that the best before is the one before
    assert list(curves["loss_increase"]["rounds"]) == [2, 3, 4]
    assert np.allclose(curves["loss_increase"]["mean"], loss[1:] - loss[:-1])


def test_client_notes_are_in_the_page_per_client(tmp_path: Path) -> None:
    many, short = MAX_LINES + 2, MAX_NOTES + 100
    run = read_run(make_run(tmp_path, method="pfedafm", clients=many, rounds=short, notes=("alpha",)))
    notes = report_data(compare([run]))["groups"][0]["notes"]["alpha"]
    assert [line["client"] for line in notes["lines"]] == list(range(MAX_LINES))
    assert notes["left_out"] == 2
    third = notes["lines"][2]
    assert len(third["rounds"]) == len(third["values"]) == MAX_NOTES
    assert (third["rounds"][0], third["rounds"][-1]) == (1, short)
    assert np.allclose(third["values"], 3 / third["rounds"])


def test_clients_pair_only_within_one_partition(compared: list[Path]) -> None:
    data = report_data(compare(read_run(path) for path in compared))
    rosters = [{each["roster"] for each in group["clients"]} for group in data["groups"]]
    assert rosters[0] == rosters[1] == {0, 1}  # names are said once for all methods, and apart for each seed
    assert [roster["partition"] for roster in data["rosters"]] == [0, 1]
    assert data["rosters"][0]["name"][3] == "site-3"
    assert len(data["groups"][0]["clients"][1]["accuracy"]) == 10


def test_a_run_that_has_not_ended_pairs_with_others_of_its_seed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, method=name, finished=name == "b") for name in ("a", "b", "c")]
    rosters = report_data(compare(map(read_run, runs)))["rosters"]
    assert {roster["partition"] for roster in rosters} == {0}


def test_page_of_many_clients_is_bounded(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, method=name, clients=400, rounds=30) for name in ("a", "b", "c")]
    groups = report_data(compare(map(read_run, runs)))["groups"]
    cells = [len(g["history"]["clients"]) * len(g["history"]["rounds"]) for g in groups]
    assert sum(cells) <= MAX_CELLS
    assert {(g["history"]["rounds"][0], g["history"]["rounds"][-1]) for g in groups} == {(1, 30)}
    assert {g["history"]["left_out"] for g in groups} == {200}
    singles = sum(len(entries) for g in groups for entries in g["classes"]["clients"].values())
    assert 0 < singles <= MAX_CONFUSIONS


def test_confusions_and_bins_are_summed_over_clients_and_seeds(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, seed=seed, clients=2, level=1.0, speed=9) for seed in (0, 1)]
    classes = report_data(compare(map(read_run, runs)))["groups"][0]["classes"]
    tested = 2 * (50 + 51)  # client 0 has 50 test samples and client 1 has 51, with both seeds
    assert sum(count for *_, count in classes["confusion"]) == tested
    assert classes["bins"][12][0] == tested
    assert classes["bins"][12][2] == pytest.approx(0.84 * tested)
    assert {true for true, _, _ in classes["confusion"]} == {0}
    assert set(classes["clients"]) == {"0", "1"}


def test_a_column_can_be_sorted_by_its_plain_number(compared: list[Path], tmp_path: Path) -> None:
    text = write_report(compared, tmp_path / "r.html").read_text()
    cells = [a for tag, a in Page(text).tags if tag == "td" and a.get("data-column") == "accuracy"]
    expected = [row.accuracy for row in compare(map(read_run, compared)).rows]
    assert [float(cell["data-value"] or "nan") for cell in cells] == pytest.approx(expected)
    hidden = {a["data-column"] for tag, a in Page(text).tags if tag == "th" and "hidden" in a}
    assert "spread" not in hidden  # with seeds the ± is over them, so clients' spread says something new
    assert "accuracy" not in hidden


def test_the_same_command_stands_once(tmp_path: Path) -> None:
    together = "potluck compare a b"
    runs = [make_run(tmp_path, method=name, summary={"command": together}) for name in ("a", "b")]
    page = Page(write_report(runs, tmp_path / "r.html").read_text())
    assert page.text.count(together) == 1


def test_where_it_was_made_is_said(tmp_path: Path) -> None:
    made = {"started": "2026-01-02T03:04:05+00:00", "machine": "Linux x86_64, 2 cores", "torch": "2.6"}
    runs = [make_run(tmp_path, method=name, summary={"made": made}) for name in ("a", "fedgh")]
    page = Page(write_report(runs, tmp_path / "r.html").read_text())
    assert page.text.count("Linux x86_64, 2 cores") == 1
    assert "torch 2.6" in page.text
    from potluck.methods import method_class

    assert method_class("fedgh").summary in page.text


def test_long_runs_and_large_populations_are_thinned(tmp_path: Path) -> None:
    run = make_run(tmp_path, clients=MAX_CLIENTS + 5, rounds=2)
    lines = [json.dumps({"step": n, "round": n, "accuracy": n / 1e5}) for n in range(1, MAX_POINTS * 3)]
    (run / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    data = report_data(compare([read_run(run)]))
    rounds = data["groups"][0]["curves"]["accuracy"]["rounds"]
    assert len(rounds) == MAX_POINTS
    assert (rounds[0], rounds[-1]) == (1, MAX_POINTS * 3 - 1)
    assert len(data["partitions"][0]["counts"]) == MAX_CLIENTS
    assert data["partitions"][0]["left_out"] == 5


def test_numbers_json_does_not_know_become_null() -> None:
    assert to_json({"a": float("nan"), "b": [float("inf"), 1 / 3], "c": "\u2028</"}) == (
        '{"a":null,"b":[null,0.333333333],"c":"\\u2028\\u003c/"}'
    )


def test_default_target_is_reached_by_all_methods(tmp_path: Path) -> None:
    high = make_run(tmp_path, method="a", summary={"best_accuracy": 0.92})
    low = make_run(tmp_path, method="b", summary={"best_accuracy": 0.7})
    assert common_target(compare([read_run(high), read_run(low)])) == 0.7
    weak = make_run(tmp_path, method="c", summary={"best_accuracy": 0.04})
    assert common_target(compare([read_run(weak)])) is None


def test_reference_and_target_are_obeyed(compared: list[Path], tmp_path: Path) -> None:
    text = write_report(compared, tmp_path / "r.html", reference="fedhe", target=0.55).read_text()
    data = embedded(text)
    assert (data["groups"][0]["label"], data["target"]) == ("fedhe", 0.55)
    assert "rounds to 55%" in Page(text).text.replace("  ", " ")


def test_an_unwritable_place_is_one_sentence(compared: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PotluckError, match="Cannot write the report to"):
        write_report(compared, tmp_path / "file" / "report.html")
    (tmp_path / "taken").mkdir()
    with pytest.raises(PotluckError, match="the runs are complete: free"):
        write_report(compared, tmp_path / "taken")
    assert not (tmp_path / "taken.part").exists()  # half a report would fill the disk further


def test_method_styles_are_all_different() -> None:
    looks = [method_style(position) for position in range(28)]
    assert len({(each.light, each.dash) for each in looks}) == 28
    assert len({(each.light, each.linestyle, each.marker) for each in looks}) == 28
    assert len({each.marker for each in looks[:7]}) == 7
