"""Secure sums that a run cannot have are refused before training, with the reason; resumed runs have the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.core.errors import PotluckError
from potluck.methods import METHODS, method_class
from support.tiny import StopAt

SMALL: dict[str, Any] = {
    "clients": 6,
    "rounds": 2,
    "engine": "serial",
    "models": "small-mlp",
    "data": {"limit": 120},
}


def run(method: Any, **more: Any) -> Any:
    settings = {**SMALL, **more}
    return potluck.run(
        method, **{**settings, "privacy": {"secure_sums": True, **settings.get("privacy", {})}}
    )


@pytest.mark.parametrize(
    ("method", "more", "sentence"),
    [
        (
            "fedhe",
            {},
            "FedHe needs them with these settings: it keeps the latest logits of each client; use one of",
        ),
        ("fedtgp", {}, "it trains prototypes on the class means of each client"),
        ("fedl2g-l", {}, "divides the gradients of a guiding vector by its senders"),
        (
            "fedgh",
            {},
            "FedGH needs them with these settings; set method.server_mode = 'averaged', or use one of",
        ),
        (
            {"method": {"name": "fedproto", "aggregate": "literal"}},
            {},
            "set method.aggregate = 'mean' or 'weighted'",
        ),
        ("lg-fedavg", {"schedule": {"mode": "async"}}, "privacy.secure_sums = true needs whole rounds"),
        ("lg-fedavg", {"schedule": {"robust": "median"}}, "schedule.robust = 'median' exclude each other"),
        ("lg-fedavg", {"schedule": {"max_share": 0.4}}, "schedule.max_share = 0.4 exclude each other"),
        (
            "lg-fedavg",
            {"participation": 0.3},
            "privacy.sum_clients = 3 is more than the 1 clients of a round",
        ),
        ("fedavg", {"models": "small5"}, "needs 3 clients of each architecture"),
    ],
)
def test_sums_that_are_impossible_are_refused_with_the_reason(method: Any, more: Any, sentence: str) -> None:
    with pytest.raises(PotluckError) as refused:
        run(method, **more)
    assert sentence in str(refused.value)


def test_settings_of_sums_without_sums_have_no_effect() -> None:
    with pytest.raises(PotluckError, match="privacy.sum_bytes = 5 has no effect"):
        potluck.run("lg-fedavg", **SMALL, privacy={"sum_bytes": 5})


def test_every_method_sums_or_says_why_not() -> None:
    for name in METHODS:
        supports = method_class(name).supports
        assert supports.sums is not None or supports.single_answers or name == "standalone", name
        assert supports.sums is None or not supports.single_answers, name


def test_stopped_run_resumes_with_the_same_numbers_on_another_engine(tmp_path: Path) -> None:
    uninterrupted = run("fedproto", rounds=3, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run("fedproto", rounds=3, out=tmp_path / "part", callbacks=[StopAt(2)])
    part = run("fedproto", rounds=3, out=tmp_path / "part", resume=True)
    pool = run("fedproto", rounds=3, out=tmp_path / "pool", engine="pool", workers=2)
    for resumed in (part, pool):
        assert [{**row, "seconds": 0} for row in resumed.rounds] == [
            {**row, "seconds": 0} for row in uninterrupted.rounds
        ]
