"""Forgetting a client: the state equals that of a run without it, and what others learned is counted."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.tree import equal, flatten
from potluck.methods.fedproto import FedProto
from potluck.runs.plan import Parts
from potluck.runs.restore import restore_run

TINY: dict[str, Any] = {
    "clients": 3, "epochs": 1, "data": {"name": "digits", "limit": 120}, "models": "small-mlp", "engine": "serial",
    "partition": "dirichlet:1",
}  # fmt: skip
KEEP: dict[str, Any] = {"engine": {"name": "serial", "keep_answers": True}}


def train(out: Path, method: Any, *, rounds: int = 1, **settings: Any) -> potluck.Run:
    return potluck.run(method, out=out, rounds=rounds, **(TINY | settings))


def excluding(out: Path, method: str, clients: list[int], *, rounds: int = 1, **settings: Any) -> potluck.Run:
    """A run in which some clients never take part."""
    schedule = {"rounds": rounds, "exclude": clients}
    return potluck.run(method, schedule=schedule, out=out, **(TINY | settings))


def state(run: Path | potluck.Run) -> Any:
    return restore_run(run if isinstance(run, Path) else run.path).loop.progress.state


def close(first: Any, second: Any) -> bool:
    """Whether all tensors are equal up to rounding."""
    actual, expected = tree.flatten(first).tensors, tree.flatten(second).tensors
    return actual.keys() == expected.keys() and all(
        torch.allclose(actual[name], expected[name], rtol=1e-4, atol=1e-5) for name in actual
    )


# -- equality with a run that never had the client -----------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedproto"},
        {"name": "lg-fedavg"},
        {"name": "fedgh"},
        {"name": "fd"},
        {"name": "fedavg", "aggregate": "same_arch"},
        {"name": "fedhe", "store": "latest_per_client"},
    ],
    ids=lambda method: method["name"],
)
def test_state_of_one_round_has_the_bits_of_a_run_without_the_client(tmp_path: Path, method: dict[str, Any]):
    original, never = (
        potluck.run({"method": method, "schedule": {"rounds": 1, "mode": "sync", **schedule}}, out=tmp_path / name, **(TINY | KEEP))
        for name, schedule in (("run", {}), ("never", {"exclude": [1]}))
    )  # fmt: skip
    copy = potluck.forget_client(original, 1, out=tmp_path / "copy")
    assert (copy.how, copy.complete, copy.received, copy.removed) == ("replayed", True, [], [1])
    assert equal(flatten(state(copy.path)), flatten(state(never)))
    assert not equal(flatten(state(copy.path)), flatten(state(original)))


@pytest.mark.parametrize("answers", [True, False])
def test_one_shot_statistics_are_removed_from_a_run_of_many_rounds(tmp_path: Path, answers: bool):
    original = train(tmp_path / "run", "fedcgs", rounds=3, **(KEEP if answers else {}))
    never = excluding(tmp_path / "never", "fedcgs", [1], rounds=3)
    copy = potluck.forget_client(original, 1, out=tmp_path / "copy")
    actual, expected = state(copy.path), state(never)
    if answers:
        assert copy.complete
        assert equal(flatten(actual), flatten(expected))
    else:
        assert copy.how == "subtracted"
        assert close(actual.groups, expected.groups)
        assert close(actual.heads, expected.heads)
        assert torch.equal(actual.groups["small-mlp"]["counts"], expected.groups["small-mlp"]["counts"])
    assert actual.received == expected.received
    assert copy.received == [0, 2]  # both hold a classifier that the client's sums are in


class FailsAtTheEnd(FedProto):
    """FedProto where client 1 fails in the last round."""

    def client(self, me: Any, message: Any) -> Any:
        if me.info.index == 1 and me.round == me.rounds:
            raise RuntimeError("gone")
        return super().client(me, message)


def test_last_contribution_is_removed_bit_by_bit(tmp_path: Path):
    original = train(tmp_path / "run", FedProto(), rounds=3, **KEEP)
    schedule = {"rounds": 3, "on_failure": "continue"}
    never = potluck.run(FailsAtTheEnd(), schedule=schedule, out=tmp_path / "never", **TINY)
    copy = potluck.forget_client(original, 1, last=True, out=tmp_path / "copy")
    assert (copy.removed, copy.kept, copy.complete) == ([3], [1, 2], True)
    never_state = restore_run(never.path, Parts(method=FailsAtTheEnd())).loop.progress.state
    assert equal(flatten(state(copy.path)), flatten(never_state))


@pytest.mark.parametrize("method", [{"name": "fedhe", "store": "latest_per_client"}, {"name": "fd", "target": "softmax_excl_own"}])  # fmt: skip
def test_rows_of_a_client_are_subtracted_from_a_table(tmp_path: Path, method: dict[str, Any]):
    """Without stored answers the method takes the client out of its own table; the replay says what it must give."""
    schedule = {"rounds": 2, "mode": "sync"}
    runs = [
        potluck.run({"method": method, "schedule": schedule}, out=tmp_path / name, **(TINY | settings))
        for name, settings in (("plain", {}), ("kept", KEEP))
    ]
    copies = [potluck.forget_client(run, 2, out=run.path.with_name(f"{run.name}-copy")) for run in runs]
    assert [copy.how for copy in copies] == ["subtracted", "replayed"]
    subtracted, replayed = (state(copy.path) for copy in copies)
    if method["name"] == "fedhe":
        for name in ("total", "count"):
            assert torch.equal(getattr(subtracted, name), getattr(replayed, name))
        assert equal(flatten(subtracted.latest), flatten(replayed.latest))
    else:
        assert close(subtracted.table.rows * subtracted.table.known[:, None], replayed.table.rows)
        assert torch.equal(subtracted.table.known, replayed.table.known)
        assert torch.equal(subtracted.senders, replayed.senders)
        assert close(subtracted.own, replayed.own)


# -- what only retraining removes -----------------------------------------------------------------------------------


def test_answers_that_others_computed_afterwards_are_counted_and_the_command_retrains(
    potluck: Any, tmp_path: Path
):
    train(tmp_path / "run", "fedproto", rounds=3, **KEEP)
    code, out, err = potluck("forget", str(tmp_path / "run"), "1")
    assert (code, err) == (0, "")
    assert "client-1's contributions of rounds 1, 2, 3 (replayed)" in out
    facts = json.loads((tmp_path / "run-without-1" / "forgotten.json").read_text())
    assert (facts["learned"], facts["received"], facts["complete"]) == (4, [0, 2], False)
    assert facts["retrain"] in out
    out = potluck("forget", str(tmp_path / "run"), "1", "--last", "--out", str(tmp_path / "last"))[1]
    assert "client-1's contributions of round 3 (replayed)" in out
    words = shlex.split(facts["retrain"])
    code, _, err = potluck(*words[1:], "-q")
    assert (code, err) == (0, "")
    rows = (tmp_path / "run-retrained-without-1" / "clients.jsonl").read_text().splitlines()
    assert {json.loads(row)["client"] for row in rows} == {0, 2}


def test_copy_has_neither_answers_nor_model_of_the_client_and_serves_newcomers(tmp_path: Path):
    original = train(tmp_path / "run", "fedproto", rounds=2, **KEEP)
    before = {path: path.read_bytes() for path in original.path.rglob("*") if path.is_file()}
    copy = potluck.forget_client(original, 1, out=tmp_path / "copy")
    assert before == {path: path.read_bytes() for path in original.path.rglob("*") if path.is_file()}
    assert not list(copy.path.glob("answers/00001-*"))
    assert len(list(copy.path.glob("answers/*"))) == 8
    assert not list(copy.path.glob("checkpoint/client-1-*"))
    with pytest.raises(PotluckError, match="Client 1 was removed from this copy"):
        potluck.export_client(copy.path, 1, tmp_path / "model")
    potluck.export_client(copy.path, 0, tmp_path / "model")
    digits = potluck.load_data("digits")
    rows = potluck.data.as_data((digits.x[-60:], digits.y[-60:]), class_names=digits.class_names)
    assert potluck.join_run(copy.path, rows, "small-mlp", epochs=1, out=tmp_path / "joined").round == 2


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_copy_is_not_trained_on(tmp_path: Path):
    original = train(tmp_path / "run", "fedproto", rounds=2, **KEEP)
    copy = potluck.forget_client(original, 1, out=tmp_path / "copy").path
    before = contents(copy)
    with pytest.raises(
        PotluckError, match=r"copy without client 1, who would take part again.*schedule.exclude=\[1\]"
    ):
        train(copy, "fedproto", rounds=3, resume=True, **KEEP)
    assert contents(copy) == before
    assert potluck.read_run(copy).summary["rounds"] == 2


def test_two_clients_leave_one_after_the_other(tmp_path: Path):
    original = train(tmp_path / "run", "fedproto", **KEEP)
    never = excluding(tmp_path / "never", "fedproto", [0, 2])
    first = potluck.forget_client(original, 0, out=tmp_path / "first")
    second = potluck.forget_client(first.path, 2, out=tmp_path / "second")
    assert second.absent == [0, 2]
    assert equal(flatten(state(second.path)), flatten(state(never)))


# -- errors ---------------------------------------------------------------------------------------------------------


def test_state_that_mixes_clients_needs_stored_answers(tmp_path: Path):
    original = train(tmp_path / "run", "fedproto")
    with pytest.raises(
        PotluckError, match=r"FedProto does not keep the client's part apart.*only retraining"
    ):
        potluck.forget_client(original, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_stored_answers_that_do_not_give_the_state_are_refused(tmp_path: Path):
    original = train(tmp_path / "run", "fedproto", **KEEP)
    for name in ("message", "answer"):
        (original.path / "answers" / f"00000-00000-{name}.safetensors").unlink()
    with pytest.raises(PotluckError, match="do not give the run's state again"):
        potluck.forget_client(original, 1)


def test_bad_clients_and_folders_are_one_sentence(tmp_path: Path):
    original = train(tmp_path / "run", "fedproto", **KEEP)
    with pytest.raises(PotluckError, match="There is no client 3; the run has clients 0 to 2"):
        potluck.forget_client(original, 3)
    with pytest.raises(PotluckError, match="exists already"):
        potluck.forget_client(original, 1, out=tmp_path / "run")
    with pytest.raises(PotluckError, match="is no run folder"):
        potluck.forget_client(tmp_path, 1)
    never = excluding(tmp_path / "never", "fedproto", [1], **KEEP)
    with pytest.raises(PotluckError, match="has contributed nothing"):
        potluck.forget_client(never, 1)


@pytest.mark.parametrize(("exclude", "sentence"), [([7], "client 7 and the clients are 0 to 2"), ([1, 1], "client 1 twice"), ([0, 1, 2], "leaves no client with data")])  # fmt: skip
def test_excluded_clients_are_checked(tmp_path: Path, exclude: list[int], sentence: str):
    with pytest.raises(PotluckError, match=sentence):
        excluding(tmp_path / "run", "fedgh", exclude)
