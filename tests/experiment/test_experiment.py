"""Experiments as data: defaults, TOML round trip, one-sentence errors."""

import tomllib
from pathlib import Path

import pytest

import potluck
from potluck.core.errors import PotluckError
from potluck.experiment import Experiment, apply_setting, parse_experiment, read_experiment
from potluck.methods import METHODS, method_class
from potluck.methods.fedgh import FedGH


def test_defaults_need_nothing():
    experiment = Experiment()
    assert isinstance(experiment.build_method(), FedGH)
    assert experiment.partition.clients == 10


@pytest.mark.parametrize("name", list(METHODS))
def test_toml_round_trip_spells_out_every_option_of_every_method(name: str):
    experiment = parse_experiment({"method": {"name": name}}).with_method_defaults()
    again = parse_experiment(tomllib.loads(experiment.to_toml()))
    assert again == experiment
    assert type(again.build_method()) is method_class(name)
    assert again.build_method() == experiment.build_method()


def test_settings_reach_every_field_and_are_read_as_toml():
    values: dict[str, object] = {}
    for text in ("method.server_lr=0.5", "training.optimizer=adam", 'evaluate.also=["received"]', "seed=4"):
        apply_setting(values, text)
    experiment = parse_experiment(values)
    assert experiment.build_method().server_lr == 0.5
    assert experiment.training.optimizer == "adam"
    assert experiment.evaluate.also == ("received",)
    assert experiment.seed == 4


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"schedule": {"particpation": 1}},
            "Unknown setting 'schedule.particpation'. Did you mean 'schedule.participation'?",
        ),
        (
            {"schedule": {"participation": 0}},
            "schedule.participation = 0 is not valid: input should be greater than 0.",
        ),
        ({"schedule": {"participation": 1.5}}, "schedule.participation = 1.5 is not valid"),
        ({"training": {"lr": "fast"}}, "training.lr = 'fast' is not valid"),
        ({"method": {"name": "fedhg"}}, "Unknown method 'fedhg'. Did you mean 'fedgh'?"),
        (
            {"method": {"server_rl": 1}},
            "Unknown setting of method 'fedgh' 'server_rl'. Did you mean 'server_lr'?",
        ),
        (
            {"method": {"server_mode": "x"}},
            "method.server_mode = 'x' is not valid: input should be 'per_mean'",
        ),
        ({"method": {"name": "no.such:Thing"}}, "could not be imported"),
        ({"method": {"name": "json:JSONDecoder"}}, "not a subclass of potluck.Method"),
        ({"partitions": {}}, "Unknown setting 'partitions'. Did you mean 'partition'?"),
    ],
)
def test_mistakes_get_one_sentence(values: dict[str, object], says: str):
    with pytest.raises(PotluckError) as caught:
        parse_experiment(values).build_method()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["nonsense", "=3", "a.=3"])
def test_a_setting_without_key_and_value_is_explained(text: str):
    with pytest.raises(PotluckError, match="write --set section"):
        apply_setting({}, text)


@pytest.mark.parametrize(
    "setting",
    [
        "engine.memory",
        "schedule.over_select",
        "schedule.max_payload_mb",
        "training.lr",
        "faults.slow_factor",
        "engine.wait",
    ],
)
@pytest.mark.parametrize("number", ["inf", "nan"])
def test_numbers_are_finite(setting: str, number: str):
    values: dict[str, object] = {}
    apply_setting(values, f"{setting}={number}")
    with pytest.raises(PotluckError, match=f"{setting} = {number} is not valid: input should be a finite"):
        parse_experiment(values)


def test_faults_that_exclude_each_other_cannot_be_likelier_than_certain():
    with pytest.raises(PotluckError, match=r"faults: dropout \+ crash \+ corrupt is 1\.6; together"):
        parse_experiment({"faults": {"dropout": 0.8, "crash": 0.8}})
    parse_experiment({"faults": {"dropout": 0.7, "crash": 0.2, "corrupt": 0.1, "slow": 0.9}})


def test_a_section_is_used_where_anything_in_it_is_unusual():
    assert [name for name in Experiment.model_fields if Experiment().uses(name)] == []
    for section, values in (
        ("attack", {"kind": "sign-flip"}),
        ("faults", {"crash": 0.1}),
        ("privacy", {"scores": False}),
    ):
        experiment = parse_experiment({section: values})
        assert [name for name in Experiment.model_fields if experiment.uses(name)] == [section]
        assert not parse_experiment({section: {}}).uses(section)


def test_a_value_in_the_place_of_a_section_is_one_sentence(tmp_path: Path):
    with pytest.raises(PotluckError, match=r"data = 'digits' is a value .* \[data\] with name"):
        potluck.run({"data": "digits"}, data="digits")
    with pytest.raises(PotluckError, match="training = 3 is a value where a section is needed"):
        potluck.run("fedavg", training=3)
    with pytest.raises(PotluckError, match="data = 'digits' is a value where a section is needed"):
        parse_experiment({"data": "digits"})


def test_a_folder_is_no_experiment_file(tmp_path: Path):
    with pytest.raises(PotluckError, match="cannot be read"):
        read_experiment(tmp_path)


def test_an_option_that_no_file_can_hold_is_named():
    experiment = parse_experiment({"method": {"name": "fedgh", "server_lr": object()}})
    with pytest.raises(PotluckError, match=r"method\.server_lr is a object"):
        experiment.to_toml()
