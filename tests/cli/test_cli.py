"""The command line: output and exit codes."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from potluck.cli.options import parse_seeds

QUICK = [
    "--rounds",
    "2",
    "--clients",
    "3",
    "--partition",
    "iid",
    "--models",
    "small-mlp",
    "--set",
    "training.epochs=1",
]


def test_run_ends_with_a_table_a_folder_and_a_report(potluck, tmp_path: Path):
    code, out, err = potluck("run", "fedgh", *QUICK)
    assert code == 0
    assert "fedgh" in out
    assert "Run folder: runs/fedgh-digits-seed0" in out
    assert (tmp_path / "runs/fedgh-digits-seed0/report.html").stat().st_size > 100_000
    assert "round 2/2" in err
    assert "accuracy" in err


def test_quiet_shows_no_progress(potluck):
    assert potluck("run", "standalone", *QUICK, "--quiet")[2] == ""


def test_an_experiment_file_with_settings_seed_and_folder(potluck, tmp_path: Path):
    (tmp_path / "mine.toml").write_text('[method]\nname = "fedgh"\n[schedule]\nrounds = 1\n')
    code, _, _ = potluck(
        "run", "mine.toml", "--set", "method.server_lr=0.1", "--seed", "3", "--out", "runs/mine", *QUICK[2:]
    )
    assert code == 0
    text = (tmp_path / "runs/mine/experiment.toml").read_text()
    assert "server_lr = 0.1" in text
    assert "seed = 3" in text
    assert "rounds = 1" in text


def test_resume_of_a_finished_run_says_so(potluck):
    potluck("run", "standalone", *QUICK, "--out", "r")
    code, out, _ = potluck("run", "standalone", *QUICK, "--out", "r", "--resume")
    assert code == 0
    assert "finished already" in out


def test_compare_methods_then_their_runs(potluck, tmp_path: Path):
    code, out, _ = potluck(
        "compare", "standalone", "fedgh", *QUICK, "--out", "c", "--seeds", "0,1", "--target", "0.1"
    )
    assert code == 0
    assert "standalone" in out
    assert "fedgh" in out
    assert {path.name for path in (tmp_path / "c").iterdir()} >= {
        "comparison.csv",
        "comparison.md",
        "comparison.tex",
        "report.html",
        "fedgh-seed1",
        "standalone-seed0",
    }
    code, out, _ = potluck("compare", "c/fedgh-seed0", "c/standalone-seed0", "--out", "new/folder")
    assert code == 0
    assert "fedgh" in out
    assert (tmp_path / "new/folder/comparison.md").exists()


def test_a_small_memory_changes_where_clients_are_and_nothing_else(potluck, tmp_path: Path):
    accuracies = []
    for out, memory in (("all-in", "1"), ("spilled", "0.0001")):
        assert potluck("run", "fedgh", *QUICK, "--memory", memory, "--out", out)[0] == 0
        accuracies.append(json.loads((tmp_path / out / "summary.json").read_text())["client_accuracy"])
    assert accuracies[0] == accuracies[1]


def test_lists(potluck):
    assert "fedgh" in potluck("methods")[1]
    code, out, _ = potluck("methods", "fedgh")
    assert "server_mode          'per_mean'   per_mean or per_client or pooled or averaged" in out
    assert code == 0
    for word in ("server_lr", "0.01", "equal feature size", "ClassMeans", "Head "):
        assert word in out
    assert "cnn-1" in potluck("models")[1]
    assert "digits" in potluck("datasets")[1]


def test_one_model_in_full(potluck):
    code, out, _ = potluck("models", "cnn-5")
    assert code == 0
    assert "670,058" in out
    assert "samples per second" in out


def test_data_show_draws_classes_per_client(potluck, tmp_path: Path):
    code, out, _ = potluck(
        "data", "show", "digits", "--clients", "4", "--partition", "pathological:3", "--out", "b.svg"
    )
    assert code == 0
    assert (tmp_path / "b.svg").read_text().startswith("<?xml")
    assert "1,797 rows" in out
    assert out.endswith("Bubble plot: b.svg\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "fedhg"], "Unknown method 'fedhg'. Did you mean 'fedgh'?"),
        (["run", "fedgh", "--data", "digit"], "Did you mean 'digits'?"),
        (["run", "fedgh", "--models", "smal5"], "Did you mean 'small5'?"),
        (["run", "fedgh", "--clients", "2000"], "clients is 2000 but the data have only"),
        (["run", "fedgh", "--partition", "pathological:20"], "20"),
        (["run", "fedgh", "--participation", "0"], "schedule.participation = 0"),
        (["run", "fedgh", "--participation", "1.1"], "schedule.participation = 1.1"),
        (["run", "fedgh", "--models", "small-mlp,fedhe-0"], "needs"),
        (["run", "fedgh", "--memory", "-1"], "engine.memory = -1"),
        (["run", "missing.toml"], "There is no experiment file 'missing.toml'"),
        (["run", "fedgh", "--set", "nonsense"], "write --set section.key=value"),
        (["run", "fedgh", "--set", "method.server_rl=1"], "Did you mean 'server_lr'?"),
        (["compare", "fedgh", "--seeds", "a"], "--seeds 'a' is not a comma list"),
        (["methods", "fedhg"], "Did you mean 'fedgh'?"),
        (["models", "cnn-9"], "Did you mean"),
        (["data", "prepare", "mnits"], "Did you mean 'mnist'?"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(potluck, words: list[str], says: str):
    code, _, err = potluck(*words)
    assert code == 2
    assert says in err
    assert err.startswith("Error: ")
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_a_broken_experiment_file_is_named(potluck, tmp_path: Path):
    (tmp_path / "bad.toml").write_text("[method\n")
    code, _, err = potluck("run", "bad.toml")
    assert code == 2
    assert "'bad.toml' is not valid TOML" in err


def test_help_and_import_load_nothing_heavy():
    check = (
        "import sys, potluck, potluck.cli; "
        "heavy = {'torch', 'numpy', 'pydantic', 'sklearn', 'scipy', 'plotly', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_invalid_input_is_one_sentence(potluck, tmp_path: Path):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "flat.toml").write_text('data = "digits"\n')
    for words in (
        ["run", "folder.toml"],
        ["run", ":x"],
        ["run", "x:"],
        ["run", "flat.toml", "--data", "digits"],
        ["run", "fedavg", "--memory", "inf"],
        ["run", "fedavg", "--memory", "1e300"],
        ["run", "fedavg", "--set", "training.betas=[2.0, 3.0]"],
        ["run", "fedavg", "--set", "training.lr=1e300"],
        ["run", ".x:y"],
        ["run", "fedavg", "--models", "small-mlp+99999999999"],
        ["models", "small-mlp", "--shape", "3x99999999x99999999"],
        ["models", "small-mlp", "--classes", "99999999999999999999"],
        ["node", "check", "binary.toml"],
        ["node", "init", "binary.toml/x.toml"],
        ["node", "start", "", "--server", "127.0.0.1:1", "--insecure"],
    ):
        code, out, err = potluck(*words)
        assert (code, out) == (2, ""), words
        assert err.startswith("Error: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_invalid_paths_and_damaged_runs_are_one_sentence(potluck, tmp_path: Path):
    potluck("run", "fedgh", *QUICK, "--engine", "serial", "--out", "run")
    (tmp_path / "file").write_text("")
    for words in (
        ["report", "run", "--out", ""],
        ["export", "run", "--out", "file/x"],
        ["data", "show", "--out", "figure.exe"],
        ["data", "show", "--out", "file/x.png"],
        ["plot", "run", "--smooth", "2"],
    ):
        code, _, err = potluck(*words)
        assert code == 2, words
        assert err.startswith("Error: ")
        assert err.count("\n") == 1
    assert potluck("plot", "run", "--smooth", "99999999999999999999", "--out", "figure.svg")[0] == 0
    (tmp_path / "run" / "summary.json").write_bytes(b"\xff")
    code, _, err = potluck("resume", "run", "-q")
    assert code == 2
    assert "potluck resume run" in err


def test_columns_are_chosen_and_a_misspelt_one_costs_no_training(potluck, tmp_path: Path):
    code, out, _ = potluck("compare", "standalone", *QUICK, "--out", "c", "--columns", "accuracy,f1,ece,nll")
    assert code == 0
    assert "macro" in out
    assert "floats" not in out.split("Accuracies")[0]
    code, _, err = potluck("compare", "standalone", *QUICK, "--out", "d", "--columns", "accuracy,f3")
    assert (code, (tmp_path / "d").exists()) == (2, False)
    assert "Unknown column 'f3'" in err


def test_flags_of_training_reach_the_experiment(potluck, tmp_path: Path):
    words = ["--lr", "0.25", "--epochs", "2", "--rounds", "1", "--clients", "2", "--models", "small-mlp"]
    code, _, err = potluck("run", "standalone", *words, "--engine", "serial", "--out", "r", "-q")
    assert (code, err) == (0, "")
    training = tomllib.loads((tmp_path / "r" / "experiment.toml").read_text())["training"]
    assert (training["lr"], training["epochs"]) == (0.25, 2)


@pytest.mark.parametrize(
    ("text", "seeds"), [("0", [0]), ("0,1,2", [0, 1, 2]), ("0-2", [0, 1, 2]), ("5, 0-1", [5, 0, 1])]
)
def test_seeds_are_lists_and_ranges(text: str, seeds: list[int]):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "2-", "2-0", "1.5"])
def test_seeds_of_another_form_are_one_sentence(potluck, text: str):
    code, _, err = potluck("compare", "fedgh", "--seeds", text)
    assert code == 2
    assert (
        err
        == f"Error: --seeds {text!r} is not a comma list of whole numbers or ranges, such as 0,1,2 or 0-2.\n"
    )
