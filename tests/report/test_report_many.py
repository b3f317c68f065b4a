"""The report with all methods: search, sorting, columns, and accessibility by axe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from visits import Visit

from potluck.methods import METHODS
from potluck.report.html import write_report
from support.synthetic_runs import make_run

pytestmark = pytest.mark.browser

ROWS = "#methods-table tbody tr:visible"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all methods with twenty clients; the first sends nothing, the second is the best by far."""
    folder, draw = tmp_path_factory.mktemp("many"), np.random.default_rng(0)
    runs = []
    for place, name in enumerate(METHODS):
        sent = 0 if place == 0 else int(10 ** draw.uniform(2, 5))
        level = 0.95 if place == 1 else float(draw.uniform(0.5, 0.85))
        runs.append(make_run(folder, method=name, clients=20, level=level, floats_up=sent, floats_down=sent))
    return write_report(runs, folder / "report.html")


def first_cells(visit: Visit, column: str) -> list[str]:
    cells: list[str] = visit.page.locator(
        f'#methods-table tbody td[data-column="{column}"]'
    ).all_inner_texts()
    return cells


def test_axe_finds_no_fault_in_three_methods(browser: Any, compared: list[Path], tmp_path: Path):
    with Visit(browser, write_report(compared, tmp_path / "r.html"), color_scheme="dark") as visit:
        for summary in visit.page.locator("summary:visible").all():
            summary.click()
        assert visit.faults() == []


def test_axe_finds_no_fault_in_many_methods(browser: Any, many: Path):
    with Visit(browser, many) as visit:
        visit.page.locator("#client-view").select_option("history")
        visit.page.locator("#architecture-view").select_option("difference")
        assert visit.faults() == []
        assert visit.complaints == []


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_table_has_the_columns_that_fit(browser: Any, many: Path, width: int):
    with Visit(browser, many, viewport={"width": width, "height": 900}) as visit:
        room, wide = visit.page.evaluate(
            "[document.querySelector('#methods-table').parentElement.clientWidth, document.querySelector('#methods-table').scrollWidth]"
        )
        assert wide <= room
        shown = visit.page.locator("#methods-table thead th:visible").count()
        assert shown >= {390: 2, 1280: 10, 1920: 10}[width]


def test_pressing_a_heading_sorts_the_table_and_the_charts(browser: Any, many: Path):
    with Visit(browser, many) as visit:
        heading = visit.page.locator('th[data-column="accuracy"] button')
        heading.click()
        values = [float(cell.split()[0]) for cell in first_cells(visit, "accuracy")]
        assert values == sorted(values, reverse=True)
        assert visit.page.locator('th[data-column="accuracy"]').get_attribute("aria-sort") == "descending"
        ticks = visit.page.evaluate("document.getElementById('chart-traffic').layout.yaxis.ticktext")
        assert ticks[0] == "fedavg"  # the best one
        heading.press("Enter")
        assert [float(cell.split()[0]) for cell in first_cells(visit, "accuracy")] == sorted(values)
        heading.press("Enter")
        assert visit.page.locator(f"{ROWS} th span").first.inner_text() == "standalone"
        assert visit.complaints == []


def test_columns_are_chosen(browser: Any, many: Path):
    with Visit(browser, many) as visit:
        assert visit.page.locator('th[data-column="last"]').is_hidden()  # it says what accuracy says
        visit.page.locator("#column-chooser summary").click()
        visit.page.get_by_label("last", exact=True).check()
        visit.page.get_by_label("best", exact=True).uncheck()
        assert visit.page.locator('th[data-column="last"]').is_visible()
        assert visit.page.locator('td[data-column="best"]').first.is_hidden()


def test_methods_can_be_searched_and_selected(browser: Any, many: Path):
    with Visit(browser, many) as visit:
        assert visit.page.locator(ROWS).count() == len(METHODS)
        visit.page.get_by_label("Methods", exact=True).fill("L2G")
        assert visit.page.locator(ROWS).count() == 2
        visit.page.get_by_role("button", name="Only found").click()
        visit.page.locator("#curve-view").select_option("together")
        assert visit.labels("curves") == ["fedl2g-l", "fedl2g-f"]
        assert visit.page.locator("#methods-shown").inner_text() == f"2 of {len(METHODS)} in the charts"
        visit.page.get_by_role("button", name="All", exact=True).click()
        assert len(visit.labels("curves")) == len(METHODS)


def test_heat_maps_have_a_row_for_every_method(browser: Any, many: Path):
    with Visit(browser, many) as visit:
        for name in ("clients", "architectures", "classes"):
            assert visit.page.locator(f"#chart-{name} tbody tr").count() == len(METHODS), name
        assert visit.page.locator("#chart-curves .small").count() == len(METHODS)
        cells = visit.page.locator("#chart-architectures tbody tr").first.locator("td").all_inner_texts()
        assert len(cells) == 5
        assert all(40 < float(cell) < 100 for cell in cells)
        assert visit.page.locator("#chart-confusion tbody tr").count() == 10


def test_sending_nothing_is_crowned_nowhere(browser: Any, many: Path):
    with Visit(browser, many) as visit:
        card = visit.page.locator(".card", has_text="Least traffic")
        assert "standalone" not in card.inner_text()
        row = visit.page.locator("#methods-table tbody tr", has_text="standalone")
        assert row.locator("td strong").count() == 0
        assert "standalone sends nothing" in visit.page.locator("#caption-pareto").inner_text()


def test_front_holds_undominated_methods(browser: Any, tmp_path: Path):
    made = {"cheap": (0.6, 100), "waste": (0.55, 5_000), "dear": (0.9, 50_000), "worse": (0.5, 90_000)}
    runs = [
        make_run(tmp_path, method=name, level=level, speed=2, floats_up=sent, floats_down=sent)
        for name, (level, sent) in made.items()
    ]
    with Visit(browser, write_report(runs, tmp_path / "r.html")) as visit:
        caption = visit.page.locator("#caption-pareto").inner_text()
        assert caption == "On the dotted front, beaten by nobody in both: cheap, dear."
