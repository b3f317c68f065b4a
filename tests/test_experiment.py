"""Experiments as data: defaults, TOML in and out, mistakes in one sentence."""

import tomllib

import pytest

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment, apply_setting, parse_experiment
from potluck.methods import METHODS, method_class
from potluck.methods.fedgh import FedGH


def test_defaults_need_nothing():
    experiment = Experiment()
    assert isinstance(experiment.build_method(), FedGH)
    assert experiment.partition.clients == 10


@pytest.mark.parametrize("name", list(METHODS))
def test_toml_round_trip_spells_out_every_option_of_every_method(name: str):
    experiment = parse_experiment({"method": {"name": name}}).resolved()
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
            "Unknown option of method 'fedgh' 'server_rl'. Did you mean 'server_lr'?",
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
