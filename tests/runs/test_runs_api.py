"""From experiment to run folder."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import potluck
from potluck.core.errors import PotluckError
from potluck.data import as_data
from potluck.runs import folder
from support.tiny import Net, points, tiny

QUICK = {"rounds": 2, "clients": 3, "partition": "iid", "models": "small-mlp", "data": "digits"}
LIMITED = {**QUICK, "training": {"epochs": 1}}

ROUND_KEYS = [
    "round",
    "accuracy",
    "accuracy_std",
    "loss",
    "floats_up",
    "floats_down",
    "bytes_up",
    "bytes_down",
    "seconds",
    "participants",
]
SUMMARY_KEYS = [
    "method",
    "dataset",
    "clients",
    "rounds",
    "seed",
    "engine",
    "best_accuracy",
    "best_round",
    "final_accuracy",
    "client_accuracy",
    "floats_up_per_client_round",
    "floats_down_per_client_round",
    "bytes_up",
    "bytes_down",
    "seconds",
    "samples_per_second",
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def test_run_folder_has_the_documented_files_and_fields():
    run = potluck.run("fedgh", **LIMITED)
    assert {path.name for path in run.path.iterdir()} >= {
        "experiment.toml",
        "rounds.jsonl",
        "clients.jsonl",
        "summary.json",
    }
    assert [row["round"] for row in run.rounds] == [1, 2]
    assert set(ROUND_KEYS) <= set(run.rounds[0])
    assert set(SUMMARY_KEYS) <= set(run.summary)
    assert json.loads((run.path / "summary.json").read_text()) == run.summary
    final = [row for row in run.clients if row["final"]]
    assert [row["accuracy"] for row in final] == run.summary["client_accuracy"]
    assert run.summary["final_accuracy"] == pytest.approx(sum(run.summary["client_accuracy"]) / 3)
    assert sum(map(sum, run.summary["class_counts"])) == pytest.approx(0.75 * 1797, abs=3)


def test_numbers_per_client_and_round_are_those_of_the_header_and_the_means():
    summary = potluck.run("fedgh", **LIMITED).summary
    assert summary["floats_down_per_client_round"] == 64 * 10 + 10
    assert summary["floats_up_per_client_round"] == 10 * 64 + 10
    assert summary["paper_accounting"]["down"] == 640


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    def curve(seed: int) -> list[float]:
        return [row["loss"] for row in potluck.run("fedgh", seed=seed, **LIMITED).rounds]

    assert curve(0) == curve(0)
    assert curve(0) != curve(1)


def test_its_own_experiment_file_repeats_a_run():
    run = potluck.run("fedgh", seed=5, **LIMITED)
    again = potluck.run(str(run.path / "experiment.toml"))
    assert [row["loss"] for row in again.rounds] == [row["loss"] for row in run.rounds]
    assert again.path != run.path


def test_another_experiment_in_the_folder_is_refused():
    potluck.run("fedgh", out="mine", **LIMITED)
    with pytest.raises(PotluckError, match=r"'mine' holds another experiment \(seed is 0 there and 1 here\)"):
        potluck.run("fedgh", out="mine", seed=1, **LIMITED)
    with pytest.raises(PotluckError, match="already holds this run; pass --resume"):
        potluck.run("fedgh", out="mine", **LIMITED)
    assert potluck.run("fedgh", out="mine", resume=True, **LIMITED).was_finished


def test_a_folder_with_other_files_is_refused(tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(PotluckError, match="holds other files"):
        potluck.run("fedgh", out="full", **LIMITED)


def test_a_torn_last_line_is_left_out(tmp_path: Path):
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert [row["round"] for row in folder.read_lines(path)] == [1, 2]


def test_your_own_tensors_and_modules():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.fc = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.relu(self.hidden(x)))

    from potluck.core.random import seeded

    x, y = points(60, 3)
    with seeded("plain"):
        models = [potluck.split(Plain(), head="fc"), potluck.split(Plain(), head="fc")]
    run = potluck.run("fedgh", data=(x.float(), y), models=models, clients=4, partition="iid", rounds=2)
    assert run.summary["clients"] == 4
    assert run.summary["final_accuracy"] > 0.5


def test_a_federation_keeps_weights_and_modules_as_given():
    fed = tiny(2)
    weights = [fed.client(index).model.head.weight.clone() for index in range(2)]
    run = potluck.run("standalone", federation=fed, rounds=1)
    assert run.summary["dataset"] == "own data"
    for index in range(2):
        assert torch.equal(fed.client(index).model.head.weight, weights[index])


def test_float64_is_honoured_throughout():
    dtypes = set()

    class Watch(potluck.Callback):
        def on_update(self, update, round_number) -> None:
            dtypes.add(update.payload.means.dtype)

    potluck.run("fedgh", models="small-mlp", rounds=1, clients=2, callbacks=[Watch()], training={"epochs": 1})
    assert dtypes == {torch.float32}
    dtypes.clear()
    section = {"names": ["small-mlp"], "precision": "float64"}
    potluck.run({"models": section}, rounds=1, clients=2, callbacks=[Watch()], training={"epochs": 1})
    assert dtypes == {torch.float64}


def test_shared_protocol_holds_out_a_common_test_set():
    run = potluck.run("fedgh", evaluate={"protocol": "shared", "also": ["local"]}, **LIMITED)
    rows = [row for row in run.clients if row["protocol"] == "shared" and not row["final"]]
    assert {row["samples"] for row in rows} == {round(0.2 * 1797)}
    assert run.rounds[0]["accuracy"] == run.rounds[0]["accuracy_shared"]
    assert run.rounds[0]["accuracy_local"] is not None


def test_clients_share_initial_weights_only_with_common_start():
    from potluck.experiment import parse_experiment
    from potluck.federation.population import build_federation

    def heads(same: bool) -> list[torch.Tensor]:
        values = {
            "models": {"names": ["small-mlp"], "same_init": same},
            "partition": {"clients": 2, "rule": "iid"},
        }
        experiment = parse_experiment(values)
        fed = build_federation(experiment, experiment.build_method())
        return [fed.client(index).model.head.weight for index in range(2)]

    common_start, own_start = heads(True)
    assert torch.equal(common_start, own_start)
    common_start, own_start = heads(False)
    assert not torch.equal(common_start, own_start)
    assert torch.equal(common_start, heads(False)[0])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"data": "digitz"}, "'digitz'. Did you mean 'digits'?"),
        ({"models": "small-mpl"}, "'small-mpl'. Did you mean 'small-mlp'?"),
        ({"clients": 5000}, "clients is 5000 but the data have only"),
        ({"partition": "pathological:11"}, "11"),
        ({"partition": "dirichlet:-1"}, "must be greater than 0"),
        ({"models": "small-mlp,cnn-1"}, "cnn-1"),
        ({"engine": "seriel"}, "engine.name = 'seriel'"),
        ({"data": "digits", "evaluate": {"every": 0}}, "evaluate.every = 0"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    settings: dict[str, object], says: str, tmp_path: Path
):
    with pytest.raises(PotluckError) as caught:
        potluck.run("fedgh", **{**QUICK, **settings})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_unequal_features_name_the_client_and_the_remedy():
    from potluck.federation.members import Member, federate

    members = [Member(Net(features=size).double(), points(6, 1)) for size in (3, 3, 4)]
    with pytest.raises(
        PotluckError,
        match=r"FedGH needs equal feature size: client 2 'Net-2' has 4, others 3. Set models.feature_dim=3",
    ):
        potluck.run("fedgh", federation=federate(members, num_classes=3))


def test_a_module_without_features_is_refused_with_the_remedy():
    from potluck.federation.members import Member, federate

    with pytest.raises(
        PotluckError,
        match=r"client client-0 cannot be split by itself .Linear has no linear layer.*potluck.split",
    ):
        federate([Member(nn.Linear(4, 3), points(6, 1))])


def test_feature_dim_projects_to_a_common_size():
    run = potluck.run(
        {"models": {"names": ["small-mlp", "small-cnn"], "feature_dim": 20}}, rounds=1, clients=2
    )
    assert run.summary["floats_down_per_client_round"] == 20 * 10 + 10


def test_asynchronous_mode_from_an_experiment():
    run = potluck.run("fedgh", schedule={"mode": "async", "concurrency": 2}, **LIMITED)
    assert [row["round"] for row in run.rounds] == [1, 1, 1, 2, 2, 2]
    assert max(max(row["staleness"]) for row in run.rounds) == 1


def test_the_engine_does_not_change_a_run():
    serial, pool = (
        potluck.run("fedgh", **LIMITED, out=name, engine=name, workers=2) for name in ("serial", "pool")
    )
    assert pool.summary["engine"] == "pool"
    assert pool.summary["final_accuracy"] == serial.summary["final_accuracy"]
    for pool_round, serial_round in zip(pool.rounds, serial.rounds, strict=True):
        assert {**pool_round, "seconds": 0} == {**serial_round, "seconds": 0}


def test_every_section_can_be_given_as_such(tmp_path: Path):
    run = potluck.run(
        "fedgh",
        data={"name": "digits", "limit": 100},
        partition={"clients": 3},
        models={"names": ["small-mlp"]},
        engine={"name": "serial"},
        rounds=1,
        out=tmp_path / "run",
    )
    assert run.summary["clients"] == 3
    assert run.summary["models"] == ["small-mlp"]
    assert run.summary["engine"] == "serial"


def test_validation_is_split_off_where_the_publisher_gives_a_test_part():
    x, y = points(120, 3)
    data = as_data((x.float(), y), test=points(30, 4))
    quick = {"clients": 3, "partition": "iid", "models": "mlp-1", "rounds": 1, "engine": "serial"}
    experiment = {
        "method": {"name": "standalone"},
        "data": {"split": "8:1:1"},
        "evaluate": {"protocol": "shared"},
    }
    run = potluck.run(experiment, data=data, **quick)
    rows = [row for row in run.clients if row["final"]]
    assert [row["samples"] for row in rows] == [30] * 3
    assert [row["validation_samples"] for row in rows] == [4] * 3  # a ninth of 40
    assert [row["train_samples"] for row in rows] == [36] * 3
