"""`potluck settings` in words and as a schema, and the methods that a federation can run."""

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment, parse_experiment
from potluck.experiment.checks import all_settings
from potluck.experiment.describe import describe_settings, schema
from potluck.methods import METHODS


def test_every_setting_is_printed_with_type_default_and_meaning(potluck):
    code, out, _ = potluck("settings")
    assert code == 0
    for name, _ in all_settings(Experiment):
        assert name == "objects" or f"  {name} = " in out
    assert "  training.lr = 0.1   (number, > 0, ≤ 1e+06)\n      learning rate of the first round" in out
    assert "  training.clip_norm = unset   (number, > 0)" in out
    assert "  training.betas = [0.9, 0.999]   (numbers)" in out
    assert "  engine.workers = 0   (whole number, ≥ 0, ≤ 4096)\n      worker processes" in out
    assert "on accelerators found by a short trial; results do not depend on it" in out
    assert all(setting.meaning and setting.kind for setting in describe_settings())


def test_a_section_a_setting_a_method(potluck):
    out = potluck("settings", "schedule")[1]
    assert out.startswith("[schedule]  When clients train.")
    assert "training." not in out
    assert potluck("settings", "schedule.rounds")[1].count(" = ") == 1
    assert "  method.server_lr = 0.01" in potluck("settings", "fedgh")[1]
    for words, says in (
        (["lr"], "Did you mean 'training.lr'?"),
        (["trainin"], "Did you mean 'training'?"),
        (["data", "--schema"], "leave 'data' out"),
    ):
        code, out, err = potluck("settings", *words)
        assert (code, out) == (2, "")
        assert says in err


def test_the_schema_is_printed_and_is_one(potluck):
    printed = json.loads(potluck("settings", "--schema")[1])
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed == json.loads(json.dumps(schema()))
    settings = printed["$defs"]["Training"]["properties"]["lr"]
    assert settings["description"] == "learning rate of the first round"
    assert settings["exclusiveMinimum"] == 0


@pytest.mark.parametrize("name", METHODS)
def test_a_file_that_a_run_writes_fits_the_schema(name: str):
    written = parse_experiment({"method": {"name": name}}).with_method_defaults().to_toml()
    jsonschema.validate(tomllib.loads(written), schema())


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('seed = 1\n[data]\naugment = "flip"\n[models]\nnames = ["cnn5"]', True),
        ('[method]\nname = "fedgh"\nserver_lr = 0.1', True),
        ('[method]\nname = "fedgh"\nserver_rl = 0.1', False),
        ('[method]\nname = "fedgh"\nserver_lr = -1', False),
        ('[method]\nname = "fedhg"', False),
        ("[training]\nlr = 0", False),
        ("[training]\nlearning_rate = 1", False),
        ('[engine]\nname = "sreial"', False),
    ],
)
def test_the_schema_judges_as_the_reader_does(text: str, fits: bool):
    def read() -> bool:
        try:
            parse_experiment(tomllib.loads(text)).build_method()
        except PotluckError:
            return False
        return True

    assert jsonschema.Draft202012Validator(schema()).is_valid(tomllib.loads(text)) is fits
    assert read() is fits


def test_user_defined_methods_may_have_any_setting():
    values = {"method": {"name": "mine:Method", "anything": 3}}
    assert jsonschema.Draft202012Validator(schema()).is_valid(values)


def test_which_methods_fit_and_why_the_others_do_not(potluck, tmp_path: Path):
    (tmp_path / "ours.toml").write_text(
        'models.names = "small-mlp,small-cnn+32"\nschedule.robust = "median"\npartition.clients = 4\n'
    )
    code, out, _ = potluck("methods", "--that-fit", "ours.toml")
    assert code == 0
    can, cannot = out.split("\n\nCannot:\n")
    assert can.startswith("digits, dirichlet:0.5, 4 clients with small-mlp, small-cnn+32\n\nCan run:\n")
    fit = {line.split()[0] for line in can.splitlines()[3:]}
    reasons = {line.split()[0]: line for line in cannot.splitlines()}
    assert fit | reasons.keys() == set(METHODS)
    assert not fit & reasons.keys()
    assert "fedavg" in fit
    assert (
        "FedProto needs equal feature size: client 1 'small-cnn+32' has 32, others 64" in reasons["fedproto"]
    )
    assert "HeteroFL needs nested width" in reasons["heterofl"]
    assert "schedule.robust = 'median' has no effect" in reasons["standalone"]
    fedmd = next(line for line in can.splitlines() if line.startswith("  fedmd"))
    assert fedmd.endswith("(a tenth of the rows held out as public data)")


def test_that_fit_and_a_name_do_not_go_together(potluck, tmp_path: Path):
    (tmp_path / "ours.toml").write_text("")
    assert "leave 'fedgh' out" in potluck("methods", "fedgh", "--that-fit", "ours.toml")[2]
    assert "There is no experiment file" in potluck("methods", "--that-fit", "none.toml")[2]
