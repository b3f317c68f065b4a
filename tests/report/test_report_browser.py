"""The report in a browser: drawing, hovering, toggling, keyboard, dark mode, narrow screens, no requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from visits import Visit

from potluck.report.html import write_report
from support.synthetic_runs import make_run

pytestmark = pytest.mark.browser

CHARTS = (
    "gains",
    "curves",
    "pareto",
    "target",
    "clients",
    "architectures",
    "calibration",
    "samples",
    "traffic",
)
CHARTS += ("failures", "staleness")
TEXTS = (
    "h1",
    ".subtitle",
    "#caption-curves",
    ".card dt",
    "td",
    ".toggle",
    "figcaption",
    ".jump a",
    "summary",
)
HOSTILE = "<script>alert('x')</script><a href='https://example.org'>%{y}</a>"


@pytest.fixture(scope="module")
def report(compared: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(compared, tmp_path_factory.mktemp("report") / "report.html")


def contrast(page: Any, selector: str) -> float:
    """The WCAG contrast ratio of an element's text and the panel behind it."""
    script = """selector => {
        const light = (text) => {
            const parts = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map(v => v / 255);
            const [r, g, b] = parts.map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const element = document.querySelector(selector);
        let behind = element;
        while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
        const [a, b] = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light);
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }"""
    ratio: float = page.evaluate(script, selector)
    return ratio


def test_every_chart_is_drawn_without_a_complaint_or_a_request(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        for name in CHARTS:
            assert visit.page.locator(f"#chart-{name} .main-svg").count() > 0, name
        assert visit.labels("curves") == ["fedavg", "fedgh", "fedhe"]
        assert visit.complaints == []
        assert [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert len([url for url in visit.requests if url.startswith("file:")]) == 1


def test_client_notes_are_drawn_for_methods_that_record_them(browser: Any, tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, method="standalone", rounds=3),
        make_run(tmp_path, method="pfedafm", clients=3, rounds=3, notes=("alpha",)),
    ]
    with Visit(browser, write_report(runs, tmp_path / "r.html")) as visit:
        visit.page.locator("#client-view").select_option("notes:alpha")
        assert visit.labels("clients") == ["site-0", "site-1", "site-2"]
        assert "alpha as noted by pfedafm" in visit.page.locator("#caption-clients").inner_text()
        visit.page.locator("#client-method").select_option("0")
        assert (
            visit.page.locator("#caption-clients").inner_text()
            == "standalone has no note alpha of its clients."
        )
        assert visit.complaints == []


def test_no_button_offers_to_upload_a_chart(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        visit.hover("curves", 1, 10)
        titles = visit.page.eval_on_selector_all(
            ".modebar-btn",
            "buttons => buttons.map(b => b.dataset.title || b.getAttribute('aria-label') || '')",
        )
        assert titles
        assert not [title for title in titles if "share" in title.lower() or "cloud" in title.lower()]


def test_hovering_shows_the_value_under_the_mouse(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        shown = visit.hover("curves", 1, 10)  # trace 0 is the band of the first method
        value = visit.page.evaluate("document.getElementById('chart-curves').data[1].y[10]")
        assert "fedavg" in shown
        assert "round 11" in shown
        assert f"{100 * value:.2f}%" in shown
        client = visit.hover("clients", 1, 4)
        assert "site-" in client
        assert "cnn-" in client
        assert "training samples" in visit.hover("samples", 0, 0)


def test_a_method_is_hidden_everywhere_and_comes_back(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        button = visit.page.get_by_role("button", name="fedgh", exact=True)
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert visit.labels("curves") == ["fedavg", "fedhe"]
        assert visit.labels("clients") == ["fedavg", "fedhe"]
        assert visit.labels("architectures") == ["fedavg", "fedhe"]
        button.click()
        assert visit.labels("curves") == ["fedavg", "fedgh", "fedhe"]
        assert visit.complaints == []


def test_all_methods_hidden_is_said_in_words(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        for button in visit.page.locator(".toggle").all():
            button.click()
        assert "choose a method" in visit.page.locator("#caption-curves").inner_text()
        assert visit.complaints == []


def test_the_selectors_change_the_picture(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        visit.page.locator("#curve-axis").select_option("bytes")
        title = "id => document.getElementById(id).layout.xaxis.title.text"
        assert "MiB" in visit.page.evaluate(title, "chart-curves")
        visit.page.locator("#curve-metric").select_option("loss")
        first = visit.page.evaluate("document.getElementById('chart-curves').data[1].y[0]")
        assert first > 1  # a cross-entropy, no longer an accuracy
        visit.page.locator("#client-view").select_option("difference")
        assert visit.labels("clients") == ["fedgh", "fedhe"]
        assert "of the clients" in visit.page.locator("#caption-clients").inner_text()
        visit.page.locator("#client-reference").select_option(label="fedgh")
        assert visit.labels("clients") == ["fedavg", "fedhe"]
        assert visit.complaints == []


def test_the_target_is_recomputed_as_the_table_does(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        rounds = visit.page.locator('#overview tbody tr:nth-child(2) td[data-column="target-0"]').inner_text()
        visit.page.locator("#target details summary").click()
        assert visit.page.locator("#target .numbers tbody tr").nth(1).locator("td").inner_text() == rounds
        visit.page.locator("#target-value").fill("99")
        assert "No shown method reached 99 %" in visit.page.locator("#caption-target").inner_text()


def test_the_page_can_be_used_with_the_keyboard_alone(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        focused = "document.activeElement.textContent.trim()"
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate(focused) == "Skip to the results"
        visit.page.keyboard.press("Enter")
        assert visit.page.evaluate("document.activeElement.id") == "main"
        visit.page.locator(".toggle").first.focus()
        visit.page.keyboard.press("Space")
        assert visit.labels("curves") == ["fedgh", "fedhe"]
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate(focused) == "fedgh"
        outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(browser: Any, report: Path, scheme: str) -> None:
    opposite = {"light": "dark", "dark": "light"}[scheme]
    with Visit(browser, report, color_scheme=scheme) as visit:
        background = "getComputedStyle(document.body).backgroundColor"
        before = visit.page.evaluate(background)
        for selector in (
            "h1",
            ".subtitle",
            "#caption-curves",
            ".card dt",
            "td",
            ".toggle",
            "figcaption",
            ".jump a",
        ):
            assert contrast(visit.page, selector) >= 4.5, selector
        visit.page.get_by_role("button", name=f"{opposite.title()} mode").click()
        after = visit.page.evaluate(background)
        assert before != after
        for selector in TEXTS:
            assert contrast(visit.page, selector) >= 4.5, selector
        colour = visit.page.evaluate("document.getElementById('chart-curves').data[1].line.color")
        assert colour == {"dark": "#4FA8E0", "light": "#0072B2"}[opposite]


@pytest.mark.parametrize("width", [360, 768])
def test_narrow_screens_need_no_horizontal_scrolling(browser: Any, report: Path, width: int) -> None:
    options = {"viewport": {"width": width, "height": 740}, "has_touch": True, "is_mobile": True}
    with Visit(browser, report, **options) as visit:
        for summary in visit.page.locator("summary:visible").all():
            summary.click()
        visit.page.locator("#client-view").select_option("difference")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = visit.page.eval_on_selector_all(
            "button:visible, select:visible", "all => all.map(e => e.offsetHeight)"
        )
        assert min(sizes) >= 40  # large enough for a finger
        wide = visit.page.evaluate(
            "Math.max(...[...document.querySelectorAll('.plot')].map(p => p.scrollWidth))"
        )
        assert wide <= width
        assert visit.complaints == []


def test_hostile_names_are_shown_as_text(browser: Any, tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, method=HOSTILE, level=0.4, asynchronous=True, failure_rate=0.2),
        make_run(tmp_path, method="b"),
    ]
    with Visit(browser, write_report(runs, tmp_path / "r.html")) as visit:
        assert visit.page.locator("h1").inner_text().startswith(HOSTILE)
        assert HOSTILE in visit.hover("curves", 0, 3)
        assert HOSTILE in visit.hover("clients", 0, 3)
        visit.page.locator("#client-view").select_option("difference")
        assert visit.page.locator("svg a").count() == 0
        assert visit.complaints == []


def test_one_unfinished_run_draws_what_it_has(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path, finished=False)
    with Visit(browser, write_report([run], tmp_path / "r.html")) as visit:
        assert visit.labels("curves") == ["fedgh"]
        assert not visit.page.locator(".methods").is_visible()
        assert "did not record" in visit.page.locator("#caption-samples").inner_text()
        assert visit.page.locator("#caption-failures").inner_text() == "No job failed."
        assert visit.complaints == []


def test_a_run_without_any_evaluation_is_survived(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "rounds.jsonl").write_text('{"step": 1, "round": 1, "accuracy": null}\n')
    with Visit(browser, write_report([tmp_path / "early"], tmp_path / "r.html")) as visit:
        assert "No round has been evaluated yet" in visit.page.locator("#caption-curves").inner_text()
        assert visit.complaints == []


def test_the_command_can_be_copied(browser: Any, report: Path) -> None:
    with Visit(browser, report, permissions=["clipboard-read", "clipboard-write"]) as visit:
        visit.page.get_by_role("button", name="Copy the commands of fedgh").click()
        # Not by a script that is asked again and again: the page's own policy forbids such scripts.
        visit.page.locator("#status", has_text="Command").wait_for(state="attached")
        assert visit.complaints == []
