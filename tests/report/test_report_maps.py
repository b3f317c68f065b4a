"""Figures of feature maps and saliency, and the commands that write them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import potluck
from potluck.analysis.groups import group_runs
from potluck.cli import app
from potluck.core.errors import PotluckError
from potluck.report.feature_figures import sent_per_class
from potluck.report.figures import KINDS, plot
from potluck.report.style import FigureOptions, print_style
from potluck.runs.read import read_run
from potluck.runs.restore import restore_run
from support.synthetic_runs import make_run


def drawn(kind: str, runs: list[Path], **options: object):
    with print_style():
        return KINDS[kind](group_runs(map(read_run, runs)), FigureOptions(**options))


def test_front_joins_undominated_points(tmp_path: Path) -> None:
    made = {"cheap": (0.6, 100), "waste": (0.5, 5_000), "dear": (0.9, 50_000), "standalone": (0.3, 0)}
    runs = [
        make_run(tmp_path, method=name, level=level, speed=3, floats_up=sent, floats_down=sent)
        for name, (level, sent) in made.items()
    ]
    axes = drawn("pareto", runs).axes[0]
    front = next(line for line in axes.lines if line.get_drawstyle() == "steps-post")
    final = {run.method: 100 * run.final_accuracy for run in map(read_run, runs)}
    assert list(front.get_ydata()) == pytest.approx([final["cheap"], final["dear"]])
    assert any("sends nothing" in text.get_text() for text in axes.figure.legends[0].get_texts())


@pytest.mark.parametrize(("field", "columns"), [(None, 5), ("clients", 10), ("classes", 10)])
def test_a_heat_map_has_a_row_per_method(tmp_path: Path, field: str | None, columns: int) -> None:
    runs = [make_run(tmp_path, method=name) for name in ("a", "b", "c")]
    axes = drawn("heatmap", runs, field=field).axes[0]
    assert axes.images[0].get_array().shape == (3, columns)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]


def test_a_confusion_matrix_is_in_shares_of_true_classes(tmp_path: Path) -> None:
    run = make_run(tmp_path, level=0.5, speed=9)
    shares = drawn("confusion", [run]).axes[0].images[0].get_array()
    assert shares[0].sum() == pytest.approx(100)
    assert shares[0, 0] + shares[0, 1] == pytest.approx(100)  # all errors were made up as 0 taken for 1
    with pytest.raises(PotluckError, match="one method, not 2"):
        drawn("confusion", [run, make_run(tmp_path, method="b")])


def test_rounds_are_whole_numbers_on_the_axis(tmp_path: Path) -> None:
    axes = drawn("accuracy", [make_run(tmp_path, rounds=3)]).axes[0]
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_legend_of_many_methods_is_above_the_axes(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, method=f"m{number}", rounds=3) for number in range(9)]
    figure = drawn("accuracy", runs)
    figure.draw_without_rendering()
    (box,) = figure.legends
    assert box.get_window_extent().y0 >= figure.axes[0].get_window_extent().y1
    assert box.get_window_extent().width <= figure.bbox.width


def test_cka_and_tsne_are_drawn_from_a_checkpoint(tmp_path: Path) -> None:
    run = potluck.run("standalone", rounds=1, clients=3, engine="serial", out=tmp_path / "run")
    for kind in ("cka", "tsne"):
        file = tmp_path / f"{kind}.svg"
        assert (
            CliRunner().invoke(app, ["plot", str(run.path), "--kind", kind, "--out", str(file)]).exit_code
            == 0
        )
        text = file.read_text()
        assert "client-2" in text  # the legend, or the names of the rows
        assert ("class " in text) == (kind == "tsne")
    words = ["report", str(run.path), "--out", str(tmp_path / "r.html")]
    assert CliRunner().invoke(app, words).exit_code == 0
    picture = 'src="data:image/svg+xml;base64,'
    assert picture not in (tmp_path / "r.html").read_text()
    assert CliRunner().invoke(app, [*words, "--networks"]).exit_code == 0
    page = (tmp_path / "r.html").read_text()
    assert page.count(picture) == 3
    assert page.count('alt="standalone: ') == 2
    assert 'href="#networks"' in page
    shutil.rmtree(run.path / "checkpoint")
    with pytest.raises(PotluckError, match="has no checkpoint"):
        plot([run], tmp_path / "x.pdf", kind="cka")


def test_vectors_per_class_are_laid_out_from_the_command_line(tmp_path: Path) -> None:
    def trained(method: str, **more: object) -> Path:
        settings = {"data": {"limit": 200}, "clients": 3, "rounds": 1, "engine": "serial", **more}
        return potluck.run(method, out=tmp_path / method, **settings).path

    def command(run: Path, field: str, out: str):
        words = ["plot", str(run), "--kind", "tsne", "--field", field, "--out", str(tmp_path / out)]
        return CliRunner().invoke(app, words)

    guided, plain = trained("fedl2g-f"), trained("fedproto")
    for run in (guided, plain):
        assert command(run, "vectors", "v.svg").exit_code == 0
        text = (tmp_path / "v.svg").read_text()
        assert "sent by the server" in text
        assert "mean features of clients" in text
    again = tmp_path / "v.svg"
    first = again.read_bytes()
    assert command(plain, "vectors", "v.svg").exit_code == 0
    assert again.read_bytes() == first  # the same run, the same picture
    assert command(plain, "prototypes", "p.svg").exit_code == 0
    assert "client-2 (small-wide)" in (tmp_path / "p.svg").read_text()
    for run, field, sentence in (
        (trained("fedgh"), "vectors", "The server of 'fedgh' sends no vector per class"),
        (plain, "vector", "Unknown field of a t-SNE 'vector'. Did you mean 'vectors'?"),
    ):
        refused = command(run, field, "x.svg")
        assert isinstance(refused.exception, PotluckError)
        assert sentence in str(refused.exception)


def test_vectors_sent_per_class_are_means_over_clients(tmp_path: Path) -> None:
    """FedProto's server has the mean of two clients' class means, which are those they have once more afterwards."""
    run = potluck.run(
        "fedproto", data={"limit": 200}, clients=2, rounds=1, engine="serial", out=tmp_path / "r"
    )
    ended = restore_run(run.path)
    rows, labels = sent_per_class(ended)
    own = [ended.client(index).class_means(ended.client(index).model.features) for index in (0, 1)]
    label = int(labels[0])
    class_vectors = [means[classes == label][0] for means, classes, _ in own if label in classes]
    assert torch.allclose(rows[0], sum(class_vectors) / len(class_vectors), atol=1e-6)


def test_stages_are_compared_over_methods(tmp_path: Path) -> None:
    def trained(method: str) -> Path:
        settings = {
            "models": ["mini-resnet-1", "mini-resnet-2"],
            "clients": 3,
            "rounds": 1,
            "engine": "serial",
        }
        return potluck.run(method, data={"limit": 200}, out=tmp_path / method, **settings).path

    axes = drawn("cka-stages", [trained("standalone"), trained("fedavg")]).axes[0]
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["standalone", "fedavg"]
    names = [tick.get_text() for tick in axes.get_xticklabels()]
    assert names[0] == "stage 1"
    assert names[-1] == "features"
    assert all(0 <= bar.get_height() <= 1 for bar in axes.patches)
    assert len(axes.patches) == 2 * len(names)


def test_the_table_command(tmp_path: Path) -> None:
    run, file = make_run(tmp_path), tmp_path / "t.tex"
    words = ["table", str(run), "--columns", "accuracy,f1", "--label", "tab:x", "--out", str(file)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert r"\\label{tab:x}" in repr(file.read_text())
    refused = CliRunner().invoke(app, ["table", str(run), "--caption", "x", "--out", str(tmp_path / "t.md")])
    assert "apply to LaTeX tables" in str(refused.exception)
