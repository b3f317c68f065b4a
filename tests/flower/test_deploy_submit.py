"""Following a run: process deaths that end it and deaths that it survives."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from potluck.core.errors import PotluckError
from potluck.flower.deploy.keys import make_node_key
from potluck.flower.deploy.processes import Processes, free_ports
from potluck.flower.deploy.submit import (
    MAX_LOSSES,
    RunFollower,
    RunInterrupted,
    plain_words,
    query_run,
    register,
    run_until_finished,
)
from potluck.runs import folder
from potluck.runs.folder import lock_folder

LIVES, DIES = "import time; time.sleep(600)", "raise SystemExit('out of memory')"


def followed(place: Path, *, tolerates_lost_nodes: bool, rounds: int = 1, **programs: str) -> None:
    """Follow a run of some rounds whose programs live or die, and which is finished two seconds later."""
    run = place / "run"
    run.mkdir()
    (run / folder.ROUNDS).write_text("{}\n" * rounds)
    with Processes(place) as processes:
        for name, code in programs.items():
            processes.start(name, [sys.executable, "-c", code])
        for name in (name for name, code in programs.items() if code is DIES):
            processes.running[name].wait(60)
        finish = threading.Timer(2.0, (run / folder.SUMMARY).write_text, ["{}"])
        finish.start()
        try:
            RunFollower(processes, run, tolerates_lost_nodes=tolerates_lost_nodes).follow("1")
        finally:
            finish.cancel()


def test_a_patient_run_goes_on_without_a_node_that_died(tmp_path: Path) -> None:
    followed(tmp_path, tolerates_lost_nodes=True, server=LIVES, a=LIVES, b=DIES)


@pytest.mark.parametrize(
    ("tolerates_lost_nodes", "rounds", "server", "a"),
    [(False, 1, LIVES, LIVES), (True, 0, LIVES, LIVES), (True, 1, DIES, LIVES), (True, 1, LIVES, DIES)],
    ids=["told to stop", "before its first round", "the server", "the last node"],
)
def test_other_deaths_end_the_run_with_last_words(
    tmp_path: Path, tolerates_lost_nodes: bool, rounds: int, server: str, a: str
) -> None:
    with pytest.raises(PotluckError, match="A Flower process died: .* ended with code 1: out of memory"):
        followed(
            tmp_path, tolerates_lost_nodes=tolerates_lost_nodes, rounds=rounds, server=server, a=a, b=DIES
        )


def lost_run(place: Path, *states: dict[str, Any] | None, **more: Any) -> RunFollower:
    """The follower of a run on a server elsewhere, which says these states one after the other when asked."""
    (place / "run").mkdir()
    states_left = iter(states)
    return RunFollower(
        Processes(place), place / "run", ask=lambda *_: next(states_left), query_interval=0.0, **more
    )


FAILED = {"status": "finished:failed", "status-details": ""}


def test_a_server_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    follower = lost_run(tmp_path, None, None, {"status": "running"}, FAILED)
    with pytest.raises(RunInterrupted, match=r"ended early \(finished:failed\)"):
        follower.follow("1")


def test_unreachable_server_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PotluckError, match="has not answered for .* seconds; .* potluck resume"):
        lost_run(tmp_path, None, None, max_outage=0.1).follow("1")


def test_error_of_the_app_is_shown_from_any_log(tmp_path: Path) -> None:
    status = {**FAILED, "status-details": "ServerApp failed with exception: training.lr is not valid."}
    with pytest.raises(PotluckError, match=r"^training\.lr is not valid\.$"):
        lost_run(tmp_path, status).follow("1")
    (tmp_path / "b").mkdir()
    follower = lost_run(tmp_path / "b", FAILED)
    threading.Timer(0.7, follower.error_file.write_text, ["schedule.rounds is not valid."]).start()
    with pytest.raises(PotluckError, match=r"^schedule\.rounds is not valid\.$"):
        follower.follow("1")


def test_a_run_that_lost_its_server_can_go_on(tmp_path: Path) -> None:
    status = {
        **FAILED,
        "status-details": "ServerApp failed with exception: The connection to the server was lost: ReadTimeout.",
    }
    with pytest.raises(RunInterrupted):
        lost_run(tmp_path, status).follow("1")


@pytest.mark.parametrize(
    "answer", ['{"success": false, "error-message": "Connection refused"}', "no json", '{"runs": []}', "[]"]
)
def test_whatever_flowers_command_says_of_an_absent_server_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr("potluck.flower.deploy.submit.run_flwr", lambda *_: answer)
    assert query_run(Processes(tmp_path), "1") is None


def test_run_stopped_on_the_server_is_not_restarted(tmp_path: Path) -> None:
    with pytest.raises(
        PotluckError, match="Somebody stopped the run on the server; .* potluck resume"
    ) as error:
        lost_run(tmp_path, {"status": "finished:stopped", "status-details": ""}).follow("1")
    assert not isinstance(error.value, RunInterrupted)


def test_a_run_that_ended_on_another_machine_is_not_waited_for_without_end(tmp_path: Path) -> None:
    completed = {"status": "finished:completed"}
    follower = lost_run(tmp_path, {"status": "running"}, completed, completed)
    with pytest.raises(PotluckError, match="holds no summary here; look for it on the server's own machine"):
        follower.follow("1")


def test_what_an_earlier_submission_had_to_say_is_past(tmp_path: Path) -> None:
    follower = lost_run(tmp_path, {"status": "running"})
    follower.submitted = 1
    follower.error_file.write_text("--out 'run' is in use by another process")
    follower.submitted = 2
    threading.Timer(1.0, (follower.out / folder.SUMMARY).write_text, ["{}"]).start()
    follower.query_interval = 600.0
    follower.follow("2")


def test_a_lost_run_is_submitted_again_until_it_makes_no_progress(tmp_path: Path) -> None:
    follower = lost_run(tmp_path, *[FAILED] * 20)
    calls: list[bool] = []

    def submit(again: bool) -> str:
        calls.append(again)
        if len(calls) == 2:
            raise PotluckError("Flower refused: no connection")  # the server is not back yet
        rounds = min(len(calls), 3)  # two more rounds, then none
        (follower.out / folder.ROUNDS).write_text("{}\n" * rounds)
        return str(len(calls))

    with pytest.raises(PotluckError, match=f"{MAX_LOSSES} times without a new round; .* --resume"):
        run_until_finished(follower, submit, pause=0.0, max_stall=0.0)
    assert calls[0] is False
    assert all(calls[1:])
    assert len(calls) == 1 + 1 + 1 + MAX_LOSSES - 1  # first, refused, the one with news, and those without


def test_a_lost_process_that_still_holds_the_folder_is_waited_for(tmp_path: Path) -> None:
    follower = lost_run(tmp_path, FAILED, FAILED)
    locks: list[bool] = []

    def submit(again: bool) -> str:
        if again:
            locks.append(letting.is_alive())
            (follower.out / folder.SUMMARY).write_text("{}")
        return "1"

    def hold() -> None:
        with lock_folder(follower.out):
            time.sleep(2.5)

    letting = threading.Thread(target=hold)
    letting.start()
    time.sleep(0.2)
    run_until_finished(follower, submit, pause=0.1)
    assert locks == [False]


def test_run_with_unconfirmed_submission_continues(tmp_path: Path) -> None:
    """It has the folder, adds a round after the follower would have given up, and comes to its end."""
    follower = lost_run(tmp_path, FAILED, max_outage=1.0)

    def run_job() -> None:
        with lock_folder(follower.out):
            for rounds in (1, 2, 3):
                (follower.out / folder.ROUNDS).write_text("{}\n" * rounds)
                time.sleep(0.6)
            (follower.out / folder.SUMMARY).write_text("{}")

    def submit(again: bool) -> str:
        assert not again, "there would be two"
        working.start()
        time.sleep(0.2)
        return "1"

    working = threading.Thread(target=run_job)
    run_until_finished(follower, submit, pause=0.1)
    assert follower.seen == 3


FRAMED = """Using SuperLink: potluck (127.0.0.1:9)
\u256d\u2500 Error \u2500\u2500\u256e
\u2502 Connection to the SuperLink is unavailable. Please check your network \u2502
\u2502 connection. \u2502
\u2570\u2500\u2500\u2500\u256f
"""


def test_a_refusal_of_flower_is_a_sentence_without_its_frame() -> None:
    message = "Connection to the SuperLink is unavailable. Please check your network connection."
    assert plain_words(FRAMED) == message


def test_a_key_for_a_server_that_is_not_there_names_the_address(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    public = make_node_key(tmp_path / "node.key", "ward")
    (port,) = free_ports(1)
    with pytest.raises(
        PotluckError, match=rf"node.key.pub was not registered at 127.0.0.1:{port}: .* Pass --server"
    ) as error:
        register(public, "ward", f"127.0.0.1:{port}", Path())
    assert "\u2502" not in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_keys_go_to_the_address_of_the_last_start(potluck: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    addresses: list[str] = []
    monkeypatch.setattr(
        "potluck.flower.deploy.submit.register", lambda key, name, address, ca: addresses.append(address)
    )
    monkeypatch.setattr("potluck.flower.deploy.serve.supervise", lambda *_, **__: None)
    make_node_key(Path("node.key"), "ward")
    for start, address in (
        ((), "127.0.0.1:8000"),
        (("--host", "0.0.0.0"), "127.0.0.1:8001"),
        (("--host", "127.0.0.1", "--port", "9300"), "127.0.0.1:9300"),
    ):
        assert potluck("server", "keys", "node.key.pub")[0] == 0
        code, out, _ = potluck("server", "start", "--insecure", *start)
        assert code == 0
        assert address in out or "Serving on 127.0.0.1" in out
        assert potluck("server", "keys", "node.key.pub")[0] == 0
        assert addresses[-1] == address
    assert addresses[0] == "127.0.0.1:8000"
    assert potluck("server", "keys", "node.key.pub", "--server", "127.0.0.1:1")[0] == 0
    assert addresses[-1] == "127.0.0.1:1"
