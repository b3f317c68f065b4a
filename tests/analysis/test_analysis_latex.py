"""LaTeX tables: bold and underlined values are those that tests can distinguish."""

from __future__ import annotations

from pathlib import Path

from potluck.analysis.comparison import compare
from potluck.analysis.tables import to_latex
from potluck.runs.read import read_run
from support.synthetic_runs import make_run


def lines(folder: Path, columns: tuple[str, ...], **clients: list[float]) -> dict[str, str]:
    """The table's lines by method, of methods whose clients end at just these accuracies."""
    runs = []
    for name, values in clients.items():
        facts = {"client_accuracy": values, "final_accuracy": sum(values) / len(values)}
        runs.append(make_run(folder, method=name, clients=len(values), summary=facts))
    text = to_latex(compare(map(read_run, runs), columns=columns))
    return {line.split(" & ")[0]: line.split(" & ", 1)[1] for line in text.splitlines() if " & " in line}


def test_level_with_the_best_by_test_is_bold_and_the_next_one_underlined(tmp_path: Path) -> None:
    # Ten clients each: `near` differs from `best` up and down alike, `next` and `last` lie below it everywhere.
    steps = [0.01 * each for each in range(10)]
    cells = lines(
        tmp_path,
        ("accuracy",),
        best=[0.8 + step for step in steps],
        near=[0.8 + step + (0.02 if at % 2 else -0.021 - at / 1e4) for at, step in enumerate(steps)],
        next=[0.7 + step - at / 1e3 for at, step in enumerate(steps)],
        last=[0.6 + step - at / 1e3 for at, step in enumerate(steps)],
    )
    assert r"\textbf{" in cells["best"]
    assert r"\textbf{" in cells["near"]
    assert r"\underline{" in cells["next"]
    assert "{" not in cells["last"].replace("$\\pm$", "")


def test_without_a_test_the_two_highest_are_marked(tmp_path: Path) -> None:
    cells = lines(tmp_path, ("accuracy", "best"), a=[0.5, 0.5], b=[0.7, 0.7], c=[0.6, 0.6])
    assert cells["b"].startswith(r"\textbf{70.00")
    assert cells["c"].startswith(r"\underline{60.00")
    assert cells["a"].startswith("50.00")


def test_caption_and_label_make_a_whole_table(tmp_path: Path) -> None:
    comparison = compare([read_run(make_run(tmp_path))], columns=("accuracy",))
    assert to_latex(comparison).startswith(r"\begin{tabular}{lr}")
    table = to_latex(comparison, caption="50 % of it", label="tab:one")
    assert table.startswith(
        "\\begin{table}\n\\centering\n\\caption{50 \\% of it}\n\\label{tab:one}\n\\begin{tabular}"
    )
    assert table.endswith("\\end{tabular}\n\\end{table}\n")
