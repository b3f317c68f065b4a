"""The live page in a browser, on a run that trains, is killed and deleted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from visits import Visit

from potluck.report.live.server import LiveServer
from potluck.report.live.status import WatchedRuns
from support.synthetic_runs import make_run

pytestmark = pytest.mark.browser

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
WAIT = 60_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(WatchedRuns([tmp_path])) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run that goes on for as long as anybody could want."""
    command = [sys.executable, "-m", "potluck", "run", "fedgh", "--rounds", "100000", "--engine", "serial"]
    command += ["--clients", "6", "--out", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    yield process
    process.kill()
    process.wait()


def test_a_run_is_followed_from_its_start_until_it_is_killed_and_deleted(
    browser: Any, server: LiveServer, training: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with Visit(browser, server.address) as visit:
        row = visit.page.locator("#live-runs tbody tr")
        row.filter(has_text="running").wait_for(timeout=WAIT)
        visit.page.locator("#chart-curves .main-svg").first.wait_for(timeout=WAIT)
        points = "document.getElementById('chart-curves').data.at(-1).y.length"
        before = visit.page.evaluate(points)
        log = visit.page.locator("#live-log pre", has_text="accuracy")
        log.wait_for(timeout=WAIT)
        first = log.inner_text()
        for _ in range(60):
            visit.page.wait_for_timeout(500)
            if visit.page.evaluate(points) > before and log.inner_text() != first:
                break
        assert visit.page.evaluate(points) > before  # the curve grew without a reload
        row.filter(has_text="training").wait_for(timeout=WAIT)  # between rounds it says nothing of a phase
        assert visit.page.locator("#live-runs progress").get_attribute("value") is not None
        training.send_signal(signal.SIGKILL)
        training.wait()
        row.filter(has_text="stopped").wait_for(timeout=WAIT)
        assert visit.page.locator("#chart-curves .main-svg").count() > 0  # what it did is still shown
        shutil.rmtree(tmp_path / "run")
        row.filter(has_text="deleted").wait_for(timeout=WAIT)
        visit.page.locator("#part-findings", has_text="Nothing to show").wait_for(timeout=WAIT)
        assert visit.complaints == []
        assert all(url.startswith((server.address, "data:", "blob:")) for url in visit.requests)


def test_many_runs_side_by_side_without_fault(browser: Any, server: LiveServer, tmp_path: Path) -> None:
    for name in ("standalone", "fedgh", "fedavg"):
        make_run(tmp_path, method=name, finished=name != "fedavg")
    with Visit(browser, server.address, **PHONE) as visit:
        visit.page.wait_for_selector("html[data-live]")
        assert visit.page.locator("#live-runs tbody tr").count() == 3
        assert visit.faults() == []
        assert (
            visit.page.evaluate("document.documentElement.scrollWidth") <= visit.page.viewport_size["width"]
        )
        visit.page.locator("#live-runs input").first.uncheck()
        visit.page.locator(".toggle").nth(2).wait_for(state="detached")
        assert len(visit.labels("curves")) == 2
        assert visit.complaints == []


def test_a_watcher_that_ended_is_said(browser: Any, server: LiveServer, tmp_path: Path) -> None:
    make_run(tmp_path)
    with Visit(browser, server.address) as visit:
        visit.page.wait_for_selector("html[data-live]")
        server.shutdown()
        server.server_close()
        visit.page.locator("#live-status", has_text="potluck watch has ended").wait_for(timeout=WAIT)
