"""Visit a page in a browser (Debian's chromium)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Visit:
    """One visit to the report, with everything the page complained about or asked the network for."""

    def __init__(self, browser: Any, file: Path | str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri() if isinstance(file, Path) else file)
        self.page.wait_for_selector("html[data-ready]")

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def labels(self, chart: str) -> list[str]:
        """Names of the traces a chart shows."""
        script = "id => document.getElementById(id).data.map(trace => trace.name).filter(name => name)"
        texts: list[str] = self.page.evaluate(script, f"chart-{chart}")
        return texts

    def hover(self, chart: str, trace: int, point: int) -> str:
        """Put the mouse on a point and read what appears."""
        self.page.locator(f"#chart-{chart}").scroll_into_view_if_needed()
        place = self.page.evaluate(
            """([id, trace, point]) => {
                const plot = document.getElementById(id), {xaxis, yaxis} = plot._fullLayout;
                const box = plot.getBoundingClientRect(), {x, y} = plot._fullData[trace];
                return [box.x + xaxis._offset + xaxis.d2p(x[point]), box.y + yaxis._offset + yaxis.d2p(y[point])];
            }""",
            [f"chart-{chart}", trace, point],
        )
        self.page.mouse.move(place[0] - 2, place[1])
        self.page.mouse.move(*place)
        label = self.page.locator(f"#chart-{chart} .hoverlayer .hovertext")
        label.first.wait_for(timeout=5000)
        return " ".join(label.all_text_contents())

    def faults(self) -> list[str]:
        """What axe finds amiss for those who see badly or use no mouse: rule, how bad, and where."""
        from axe_playwright_python.sync_playwright import Axe

        violations = Axe().run(self.page).response["violations"]
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:150]}"
            for each in violations
            for node in each["nodes"]
        ]
