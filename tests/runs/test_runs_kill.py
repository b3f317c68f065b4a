"""A run killed at any moment ends as if it had not been."""

from collections.abc import Callable
from pathlib import Path

import pytest
from interrupted import CASES, assert_same_run, kill_at_each, kill_at_random, run

NeverStopped = Callable[[str], Path]


@pytest.mark.parametrize("case", ["fedgh", "fedavg", "fedgh-async"])
def test_killed_at_random_moments(case: str, never_stopped: NeverStopped, tmp_path: Path):
    for killed in kill_at_random(case, tmp_path, 4, seed=1):
        assert_same_run(never_stopped(case), killed)


@pytest.mark.parametrize("case", ["fedgh", "fedhe"])
def test_killed_at_each_stage_of_writing_checkpoints(case: str, tmp_path: Path):
    run(case, tmp_path / "whole", rounds=2)
    assert kill_at_each("disk", case, tmp_path / "killed", rounds=2) > 12
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize(
    ("target", "case"), [("server", "fedhe"), ("training", "fedavg"), ("training", "fedhe")]
)
def test_killed_in_the_server_step_or_in_training(target: str, case: str, tmp_path: Path):
    run(case, tmp_path / "whole", rounds=3)
    # How often depends on how many of the background's checkpoints were done when the process died.
    assert kill_at_each(target, case, tmp_path / "killed", stride=4, rounds=3) >= 2
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize("case", ["fedavg", "fedhe"])
def test_killed_on_the_pool(case: str, never_stopped: NeverStopped, tmp_path: Path):
    """The comparison is with the serial engine: neither kills nor worker processes may be seen in the result."""
    for killed in kill_at_random(case, tmp_path, 3, seed=3, engine="pool", workers=2):
        assert_same_run(never_stopped(case), killed)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "pool"])
@pytest.mark.parametrize("case", CASES)
def test_many_kills(case: str, engine: str, never_stopped: NeverStopped, tmp_path: Path):
    for killed in kill_at_random(case, tmp_path, 30, seed=2, engine=engine, workers=2):
        assert_same_run(never_stopped(case), killed)
    print(f"\n{case}, {engine}: 30 kills at random moments")
    for target, stride in (("disk", 1), ("server", 1), ("training", 3)):
        if target != "training" or engine == "serial":  # the pool trains in processes of its own
            kills = kill_at_each(target, case, tmp_path / target, stride=stride, engine=engine, workers=2)
            print(f"{case}, {engine}: {kills} kills, {target}")
            assert_same_run(never_stopped(case), tmp_path / target)
