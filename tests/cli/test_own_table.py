"""The README's commands for an own table, from the file to predictions."""

from __future__ import annotations

import random
import re
import shlex
import tomllib
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_leads_from_a_table_to_predictions(potluck, tmp_path: Path) -> None:
    block = re.search(r"^Your own table.*?```\n(.*?)```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    rng = random.Random(0)
    rows = [(rng.randint(20, 90), rng.choice("ABC")) for _ in range(90)]
    lines = [f"{age},{ward},{'ill' if age > 55 else 'healthy'}" for age, ward in rows]
    (tmp_path / "patients.csv").write_text("\n".join(["age,ward,outcome", *lines]) + "\n")
    printed = []
    for line in block.group(1).splitlines():
        words = shlex.split(line, comments=True)[1:]
        more = ["--rounds", "2", "--engine", "serial"] if words[0] == "run" else []
        code, out, err = potluck(*words, *more)
        assert code == 0, err
        printed.append(out)
    assert len(printed) == 4
    assert all(f"row {number}" in printed[-1] for number in range(1, 91))
    assert re.search(r"\b(ill|healthy)\b\s+\d\.\d{3}", printed[-1])


def test_options_of_own_data_are_settings(potluck, tmp_path: Path) -> None:
    lines = [f"{age},{'ABC'[age % 3]},{'old' if age > 50 else 'young'}" for age in range(20, 80)]
    (tmp_path / "rows.csv").write_text("\n".join(["age,ward,group", *lines]) + "\n")
    quick = ["--rounds", "1", "--engine", "serial", "-q"]
    given = ["--data", "csv:rows.csv", "--label", "group", "--groups", "ward", "--missing", "impute"]
    assert potluck("run", "standalone", *given, *quick, "--out", "run")[0] == 0
    settings = tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())["data"]
    assert (settings["label"], settings["groups"], settings["missing"]) == ("group", "ward", "impute")
    assert potluck("compare", "standalone", "fedgh", *given, *quick, "--out", "two")[0] == 0
    for name in ("standalone-seed0", "fedgh-seed0"):
        assert 'label = "group"' in (tmp_path / "two" / name / "experiment.toml").read_text()


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("option", "value"),
    [("label", "sex"), ("groups", "ward"), ("text", "note"), ("missing", "impute"), ("image-size", "8")],
)
def test_an_option_that_the_data_do_not_take_is_one_sentence(potluck, command, option, value) -> None:
    code, _, err = potluck(command, "standalone", f"--{option}", value, "--out", "run")
    assert code == 2
    assert f"Data 'digits' take no {option.replace('-', '_')}" in err
    assert f"leave out data.{option.replace('-', '_')} (--{option}" in err
    assert not Path("run", "rounds.jsonl").exists()


def test_several_seeds_belong_to_compare(potluck) -> None:
    code, _, err = potluck("run", "fedgh", "--seeds", "0-2")
    assert code == 2
    assert "for several seeds: potluck compare fedgh --seeds 0-2" in err
