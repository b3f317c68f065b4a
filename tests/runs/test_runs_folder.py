"""Run folders: unique names, and nothing left of a run that did not start."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.core.errors import PotluckError
from potluck.loop.callbacks import Callback, Step
from potluck.runs.folder import new_folder
from support.tiny import tiny


def go(**more: Any) -> potluck.Run:
    return potluck.run("fedavg", federation=tiny(2), rounds=1, **{"engine": "serial", **more})


def test_new_run_folder_is_created_at_once(tmp_path: Path):
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(new_folder(tmp_path / "runs", "a"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 8
    assert all(path.is_dir() for path in folders)


def test_a_run_started_during_another_gets_the_next_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    inner: list[Path] = []

    class Another(Callback):
        def on_step(self, step: Step) -> None:
            inner.append(go().path)

    assert go(callbacks=[Another()]).path != inner[0]


def test_a_refused_run_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PotluckError, match="channels_last"):
        go(engine={"name": "serial", "channels_last": "nothing-like-it"})
    assert not (tmp_path / "runs").exists()


def test_a_place_where_no_folder_can_be_made_is_one_sentence(tmp_path: Path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(PotluckError, match="cannot be created in .*choose another place with --out"):
        new_folder(tmp_path / "runs", "a")


def test_the_spilled_clients_are_in_the_runs_own_folder(tmp_path: Path):
    # Whatever kills the run, the next start cleans this place; nobody cleans the system's.
    places: list[Path] = []

    class Look(Callback):
        def on_step(self, step: Step) -> None:
            places.extend((tmp_path / "run" / ".work").iterdir())

    go(
        engine={"name": "serial", "memory": 2e-9},
        checkpoint_every=0,
        out=tmp_path / "run",
        callbacks=[Look()],
    )
    assert places
    assert not (tmp_path / "run" / ".work").exists()


def _in_a_pool(place: str) -> str:
    try:
        go(engine="auto", out=place)
    except PotluckError as error:
        return str(error)
    return "it ran"


def test_the_pool_inside_a_pool_is_refused_before_a_folder_is_made(tmp_path: Path):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        message = pool.apply(_in_a_pool, [str(tmp_path / "run")])
    assert "use engine='serial'" in message
    assert not (tmp_path / "run").exists()
