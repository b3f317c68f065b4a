"""The live page's server: running, ended, killed and deleted runs, and allowed requests."""

from __future__ import annotations

import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from potluck.report.live.server import LiveServer
from potluck.report.live.status import WatchedRun, WatchedRuns
from potluck.runs.folder import WAITING, lock_folder
from potluck.runs.writer import HEARTBEAT_SECONDS, Heartbeat, read_heartbeat
from support.synthetic_runs import make_run


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LiveServer]:
    make_run(tmp_path, method="fedgh")
    with LiveServer(WatchedRuns([tmp_path])) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


def fetch(address: str, **headers: str) -> tuple[int, str, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def rows(watched: WatchedRuns) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in watched.state()["runs"]}


def test_page_and_data_are_served_only_with_the_token(served: LiveServer) -> None:
    status, page, headers = fetch(served.address)
    assert (status, headers["Cache-Control"], headers["X-Frame-Options"]) == (200, "no-store", "DENY")
    assert "connect-src 'self'" in page
    assert 'id="live-runs"' in page
    state = json.loads(fetch(served.address + "state")[1])
    assert [run["status"] for run in state["runs"]] == ["finished"]
    assert state["report"]["data"]["groups"][0]["label"] == "fedgh"
    version = state["report"]["version"]
    again = json.loads(fetch(f"{served.address}state?since={version}")[1])
    assert again["report"] == {"version": version}  # nothing new, nothing sent


@pytest.mark.parametrize(
    "path", ["", "wrong/", "wrong/state", "{token}/../etc/passwd", "{token}/summary.json"]
)
def test_unknown_paths_and_tokens_are_not_found(served: LiveServer, path: str) -> None:
    base = f"http://127.0.0.1:{served.server_port}/"
    status, text, _ = fetch(base + path.format(token=served.token))
    assert status == 404
    assert "fedgh" not in text


def test_only_this_machine_is_answered_and_only_under_its_own_name(served: LiveServer) -> None:
    assert served.server_address[0] == "127.0.0.1"
    assert fetch(served.address, Host="evil.example")[0] == 404  # a page that points its own name here
    request = urllib.request.Request(served.address, data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(request)


def test_a_run_is_running_while_its_process_lives_and_stopped_after(tmp_path: Path) -> None:
    run = make_run(tmp_path, finished=False)
    watched = WatchedRuns([tmp_path])
    assert rows(watched)["fedgh"]["status"] == "stopped"
    (run / ".lock").write_text(f"{os.getpid()}\n")
    (run / ".progress").write_text(
        json.dumps({"round": 21, "rounds": 40, "cohort": 10, "arrived": 5, "phase": "training"})
    )
    row = rows(watched)["fedgh"]
    assert (row["status"], row["round"], row["rounds"]) == ("running", 20, 40)
    seconds = [json.loads(line)["seconds"] for line in (run / "rounds.jsonl").read_text().splitlines()[15:20]]
    assert row["left"] == pytest.approx(sum(seconds) / 5 * 19.5)  # twenty rounds to go, half of one is done
    (run / ".lock").write_text(f"{2**22 + 7}\n")  # no such process
    assert rows(watched)["fedgh"]["status"] == "stopped"


def test_a_deleted_folder_leaves_the_charts_and_stays_on_the_list(tmp_path: Path) -> None:
    gone, remaining = (make_run(tmp_path, method=name) for name in ("gone", "kept"))
    watched = WatchedRuns([tmp_path])
    assert len(watched.state()["report"]["data"]["groups"]) == 2
    shutil.rmtree(gone)
    watched._render_after = 0.0
    state = watched.state()
    assert [group["label"] for group in state["report"]["data"]["groups"]] == ["kept"]
    states = {row["method"]: (row["status"], row["round"]) for row in state["runs"]}
    assert states == {"kept": ("finished", 20), "gone": ("deleted", 20)}
    shutil.rmtree(remaining)
    watched._render_after = 0.0
    assert watched.state()["report"]["data"]["groups"] == []


def test_unreadable_run_is_named_and_others_are_shown(tmp_path: Path) -> None:
    bad, _ = make_run(tmp_path, method="bad"), make_run(tmp_path, method="good")
    (bad / "rounds.jsonl").write_text("no json\n{}\n")
    state = WatchedRuns([tmp_path]).state()
    assert [group["label"] for group in state["report"]["data"]["groups"]] == ["good"]
    unreadable = next(row for row in state["runs"] if row["status"] == "unreadable")
    assert "line 1 is not JSON" in unreadable["error"]


def test_runs_are_grouped_by_experiment(tmp_path: Path) -> None:
    large = {"partition": {"rule": "iid", "clients": 20}}
    make_run(tmp_path / "one", method="fedgh")
    make_run(tmp_path / "two", method="fedgh", settings=large)
    make_run(tmp_path / "one", method="fedavg")
    make_run(tmp_path / "two", method="fedavg", settings=large, finished=False)
    listed = [(row["experiment"], row["method"]) for row in WatchedRuns([tmp_path]).state()["runs"]]
    assert listed == [  # the experiment with an unfinished run comes first
        ("digits, iid, 20 clients, 20 rounds", "fedavg"),
        ("digits, iid, 20 clients, 20 rounds", "fedgh"),
        ("digits, 20 rounds", "fedavg"),
        ("digits, 20 rounds", "fedgh"),
    ]


def test_events_have_the_times_when_their_steps_ended(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    os.utime(run / "rounds.jsonl", (1000.0, 1000.0))
    (row,) = WatchedRuns([tmp_path]).state()["runs"]
    seconds = [json.loads(line)["seconds"] for line in (run / "rounds.jsonl").read_text().splitlines()]
    times = [event["time"] for event in row["events"]]
    assert times[:2] == [1000.0, pytest.approx(1000.0 - seconds[-1])]
    assert times == sorted(times, reverse=True)
    assert row["events"][0]["text"].startswith("round 20: accuracy ")


def test_excluded_runs_are_left_out_of_the_charts(tmp_path: Path) -> None:
    first, _ = make_run(tmp_path, method="a"), make_run(tmp_path, method="b")
    watched = WatchedRuns([tmp_path])
    chosen = watched.state(without=frozenset([first.name]))["report"]["data"]["groups"]
    assert [group["label"] for group in chosen] == ["b"]
    assert len(watched.state()["report"]["data"]["groups"]) == 2


def test_before_any_run_there_is_a_page(tmp_path: Path) -> None:
    watched = WatchedRuns([tmp_path / "later"])
    assert "no run has finished a round" in watched.first_page()
    (tmp_path / "later").mkdir()
    make_run(tmp_path / "later")
    assert [row["status"] for row in watched.state()["runs"]] == ["finished"]


def test_a_run_says_for_which_nodes_it_waits(tmp_path: Path) -> None:
    run = make_run(tmp_path, finished=False)
    nodes = [{"name": "client-1", "seen": 5.0}, {"name": "client-10"}, {"name": "client-2"}]
    (run / ".progress").write_text(json.dumps({"round": 3, "nodes": nodes}))
    sentence = "Round 3 waits for 'client-1', 'client-2', missing since 2026-01-01T00:00:00+00:00."
    (run / WAITING).write_text(sentence)
    watched = WatchedRun(run, "run")
    watched.refresh()
    assert watched.row()["waiting"] == ""  # the run has stopped
    with lock_folder(run):
        row = watched.row()
    assert row["waiting"] == sentence
    assert [node["connected"] for node in row["nodes"]] == ["no", "unknown", "no"]


def test_nodes_are_listed_with_their_last_contact(tmp_path: Path) -> None:
    from potluck.loop.callbacks import Arrival
    from potluck.wire.jobs import Failure

    clock = [100.0]
    beat = Heartbeat(tmp_path, now=lambda: clock[0])
    beat._status = {"round": 1, "phase": "training", "arrived": 0, "samples": 0}
    beat._nodes = {
        0: {"name": "clinic", "answered": 0, "failed": 0},
        1: {"name": "bus", "answered": 0, "failed": 0},
    }
    beat.on_arrival(Arrival("train", 0, 1, samples=50))
    clock[0] += HEARTBEAT_SECONDS
    beat.on_arrival(Arrival("train", 1, 1, failure=Failure(2, 1, "gone", "lost")))
    heartbeat = read_heartbeat(tmp_path)
    assert (heartbeat["arrived"], heartbeat["samples"]) == (2, 50)
    clinic, bus = heartbeat["nodes"]
    assert (clinic["answered"], clinic["seen"], clinic["trouble"]) == (1, 100.0, "")
    assert (bus["failed"], bus["trouble"], "seen" in bus) == (1, "lost", False)
    beat.on_arrival(Arrival("train", 0, 1, samples=50))
    assert read_heartbeat(tmp_path)["samples"] == 50  # written a moment ago: not again yet
