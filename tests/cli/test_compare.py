"""`potluck compare`: checks before training, announcements, options per method, resuming."""

import csv
import json
import shlex
from pathlib import Path

import pytest

QUICK = [
    *(
        "--rounds",
        "1",
        "--clients",
        "3",
        "--partition",
        "iid",
        "--set",
        "training.epochs=1",
        "--engine",
        "serial",
    ),
]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--target", "80"], "target 80 is not an accuracy between 0 and 1: write 0.8 for 80 %."),
        (["--reference", "fedhg"], "Unknown reference method 'fedhg'. Did you mean 'fedgh'?"),
        (["--track", "wandbb"], "Unknown tracker 'wandbb'"),
        (["--columns", "target"], "pass --target"),
        (["--seeds", "0,0"], "Two runs have the folder"),
        (["--set", "method.server_rl=0.1"], "Unknown setting of method 'standalone'"),
        (["heterofl", "--models", "small5"], "HeteroFL needs nested width"),
        (["--out", "taken"], "already holds this run; pass --resume"),
    ],
)
def test_everything_is_checked_before_anything_trains(potluck, tmp_path: Path, words: list[str], says: str):
    if "taken" in words:
        assert potluck("run", "fedgh", *QUICK, "--out", "taken/fedgh-seed0")[0] == 0
    before = sorted(tmp_path.rglob("*"))
    code, out, err = potluck("compare", "standalone", "fedgh", *words, *QUICK)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before and path.name != "runs"] == []


def test_plan_is_printed_before_the_work(potluck):
    code, _, err = potluck("compare", "standalone", "fedmd", "fedin", *QUICK, "--seeds", "0,1")
    plan = err.splitlines()
    assert code == 0
    assert plan[0].startswith("6 runs (3 methods, 2 seeds) of 1 round on digits into runs/compare: about ")
    assert plan[1].startswith(
        "data.public = 0.1 of the rows are held out from all methods, because fedmd needs"
    )
    assert plan[2] == "With other models than standalone, so their lines are not comparable: fedin (nested5)."
    assert "standalone-seed0  round 1/1" in plan[3]


def test_a_line_on_other_models_is_neither_crowned_nor_tested(potluck, tmp_path: Path):
    words = ["compare", "standalone", "fedin", "fedgh", *QUICK, "--out", "c", "-q"]
    code, out, err = potluck(*words)
    assert (code, err) == (0, "")
    assert (
        "† Not comparable with standalone, neither tested nor marked best, since their clients have other models: fedin."
        in out
    )
    rows = {row["method"]: row for row in csv.DictReader((tmp_path / "c/comparison.csv").open())}
    assert list(rows) == ["standalone", "fedgh", "fedin"]
    assert rows["fedin"]["p_value"] == ""
    assert rows["fedin"]["set_apart"] == "their clients have other models"
    assert rows["fedgh"]["set_apart"] == ""


def test_all_leaves_out_and_names_incompatible_methods(potluck, monkeypatch: pytest.MonkeyPatch):
    import potluck.methods as methods

    some = {name: methods.METHODS[name] for name in ("standalone", "heterofl")}
    monkeypatch.setattr(methods, "METHODS", some)
    code, out, err = potluck("compare", "all", "--models", "small5", *QUICK)
    assert code == 0
    assert "Left out: heterofl. HeteroFL needs nested width: client" in err
    assert "standalone" in out


def test_files_of_one_method_are_distinguished(potluck, tmp_path: Path):
    for name, rate in (("slow", 0.01), ("fast", 0.1)):
        (tmp_path / f"{name}.toml").write_text(f'[method]\nname = "fedgh"\nserver_lr = {rate}\n')
    code, out, _ = potluck(
        "compare", "slow.toml", "fast.toml", *QUICK, "--out", "c", "--reference", "fedgh (server_lr=0.1)"
    )
    assert code == 0
    assert "fedgh (server_lr=0.01)" in out
    assert (tmp_path / "c" / "slow-seed0").is_dir()
    assert (tmp_path / "c" / "fast-seed0").is_dir()


@pytest.mark.parametrize("place", [[], ["--out", "mine"]])
def test_interrupted_it_names_the_command_that_does_the_rest(
    potluck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: list[str]
):
    import potluck.api as api

    execute = api.execute
    words = ["compare", "standalone", "fedgh", *QUICK, *place]

    def stop_at_the_second(experiment, *args, **options):
        if experiment.method.name == "fedgh":
            raise KeyboardInterrupt
        return execute(experiment, *args, **options)

    monkeypatch.setattr(api, "execute", stop_at_the_second)
    code, _, err = potluck(*words)
    assert code == 130
    go_on = err.splitlines()[-1]
    out = place or ["--out", "runs/compare"]
    assert go_on == "Continue with: " + shlex.join(
        ["potluck", "compare", "standalone", "fedgh", *QUICK, *out, "--resume"]
    )
    monkeypatch.setattr(api, "execute", execute)
    code, printed, err = potluck(*shlex.split(go_on.removeprefix("Continue with: "))[1:])
    assert code == 0
    assert "1 of them finished already" in err
    assert "fedgh" in printed


def test_a_method_without_a_global_model_has_a_dash(potluck, tmp_path: Path):
    code, out, _ = potluck(
        "compare", "standalone", "heterofl", *QUICK, "--set", "evaluate.protocol=global", "--out", "c"
    )
    assert code == 0
    line = next(line for line in out.splitlines() if line.strip().startswith("standalone"))
    assert line.split()[1:5] == ["–"] * 4
    alone, nested = (
        json.loads((tmp_path / f"c/{name}-seed0/summary.json").read_text())
        for name in ("standalone", "heterofl")
    )
    assert (alone["final_accuracy"], alone["best_accuracy"], set(alone["client_accuracy"])) == (
        None,
        None,
        {None},
    )
    rounds = [
        json.loads(row) for row in (tmp_path / "c/heterofl-seed0/rounds.jsonl").read_text().splitlines()
    ]
    assert nested["final_accuracy"] == rounds[-1]["accuracy_global"] > 0


def test_a_setting_of_one_method_goes_to_those_that_have_it(potluck, tmp_path: Path):
    words = ["compare", "standalone", "fedgh", *QUICK, "--out", "c", "-q", "--set", "method.server_lr=0.5"]
    assert potluck(*words)[0] == 0
    assert "server_lr = 0.5" in (tmp_path / "c/fedgh-seed0/experiment.toml").read_text()
    assert "server_lr" not in (tmp_path / "c/standalone-seed0/experiment.toml").read_text()
