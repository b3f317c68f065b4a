"""Class names on nodes with their own data: declared or united, numbered alike, or an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from test_flower_loop import on_flower

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment, parse_experiment, read_experiment
from potluck.flower.deploy.processes import free_ports
from potluck.flower.node.audit import AuditLog
from potluck.flower.node.check import check_node
from potluck.flower.node.config import TEMPLATE, read_node
from potluck.flower.node.federation import node_federation
from potluck.flower.record import from_record
from support.images import write_classes
from support.loopgrid import LoopGrid
from support.real_processes import Commands, commands_in

SITES = {"node-0": ("cat", "dog", "frog"), "node-1": ("dog", "ship"), "node-2": ("cat", "ship")}
UNION = ("cat", "dog", "frog", "ship")


def write_site(folder: Path, name: str, classes: Mapping[str, int], more: str = "", policy: str = "") -> Path:
    """A node with images in class folders."""
    write_classes(folder / "images", classes)
    text = TEMPLATE.format(name=name, model="mlp-1+6", source="folder:images")
    text = text.replace("[data]", f"[data]\n{more}").replace(
        "class_names = true", policy or "class_names = true"
    )
    (folder / "node.toml").write_text(f"{text}\n")
    return folder / "node.toml"


def sites(folder: Path) -> list[Path]:
    return [write_site(folder / name, name, dict.fromkeys(classes, 4)) for name, classes in SITES.items()]


def values(**more: Any) -> dict[str, Any]:
    return {
        "method": {"name": "fedgh"},
        "training": {"epochs": 1, "batch_size": 8},
        "schedule": {"rounds": 2},
        "engine": {"name": "flower", "nodes": 3, "wait": 0.3} | more.pop("engine", {}),
        **more,
    }


def nodes(paths: list[Path]) -> LoopGrid:
    return LoopGrid({200 + place: {"node-file": str(path)} for place, path in enumerate(paths)}, {})


def labels(experiment: Experiment, path: Path) -> set[int]:
    return set(node_federation(experiment, read_node(path)).members[0].train.labels.tolist())


def test_different_class_folders_are_united_and_numbered_alike(tmp_path: Path) -> None:
    paths = sites(tmp_path)
    run = on_flower(values(), tmp_path / "run", nodes(paths))
    assert run.class_names == UNION
    recorded = parse_experiment(read_experiment(tmp_path / "run" / "experiment.toml"))
    assert recorded.data.class_names == UNION
    assert [labels(recorded, path) for path in paths] == [{0, 1, 2}, {1, 3}, {0, 3}]
    kinds = [line["kind"] for line in AuditLog(read_node(paths[0]).audit_log()).lines()]
    assert kinds[:2] == ["class names", "registration"]


def test_declared_classes_are_not_asked_for(tmp_path: Path) -> None:
    paths = sites(tmp_path)
    order = ["ship", "frog", "dog", "cat"]
    run = on_flower(values(data={"class_names": order}), tmp_path / "run", nodes(paths))
    assert run.class_names == tuple(order)
    kinds = [line["kind"] for line in AuditLog(read_node(paths[0]).audit_log()).lines()]
    assert "class names" not in kinds


def test_a_class_that_was_not_declared_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        PotluckError, match=r"Node 'node-[12]' has the class ship, which data\.class_names \(cat,"
    ):
        on_flower(
            values(data={"class_names": ["cat", "dog", "frog"]}), tmp_path / "run", nodes(sites(tmp_path))
        )


def test_a_number_of_classes_alone_does_not_say_which_name_has_which_number(tmp_path: Path) -> None:
    with pytest.raises(
        PotluckError, match="leave engine.classes out, so that the server unites the nodes' names"
    ):
        on_flower(values(engine={"classes": 4}), tmp_path / "run", nodes(sites(tmp_path)))


def test_a_number_that_contradicts_the_declared_names_is_refused(tmp_path: Path) -> None:
    settings = values(engine={"classes": 3}, data={"class_names": list(UNION)})
    with pytest.raises(
        PotluckError, match=r"engine\.classes = 3 contradicts data\.class_names, which lists 4"
    ):
        on_flower(settings, tmp_path / "run", nodes(sites(tmp_path)))


def test_names_that_a_policy_keeps_do_not_leave_the_node(tmp_path: Path) -> None:
    paths = [
        write_site(tmp_path / name, name, dict.fromkeys(classes, 4), policy="class_names = false")
        for name, classes in SITES.items()
    ]
    with pytest.raises(PotluckError, match="policy.class_names = false on every node; say how many classes"):
        on_flower(values(), tmp_path / "run", nodes(paths))
    with pytest.raises(PotluckError) as caught:
        on_flower(values(data={"class_names": ["cat", "dog"]}), tmp_path / "two", nodes(paths))
    assert "1 of its own" in str(caught.value)
    assert "ship" not in str(caught.value)
    assert "frog" not in str(caught.value)


def test_nodes_with_and_without_names_are_told_apart(tmp_path: Path) -> None:
    paths = sites(tmp_path)
    (tmp_path / "node-2" / "rows.py").write_text(
        "import torch\ndef rows():\n    y = torch.arange(8) % 2\n    return torch.zeros(8, 1, 8, 8), y\n"
    )
    text = paths[2].read_text().replace("folder:images", "rows:rows")
    paths[2].write_text(text)
    with pytest.raises(
        PotluckError, match="The labels of node 'node-2' have no names, those of node 'node-0' have"
    ):
        on_flower(values(), tmp_path / "run", nodes(paths))
    paths[2].write_text(text.replace("[data]\n", '[data]\nclass_names = ["ship", "cat"]\n'))
    run = on_flower(values(), tmp_path / "again", nodes(paths))
    assert run.class_names == UNION
    recorded = parse_experiment(read_experiment(tmp_path / "again" / "experiment.toml"))
    assert labels(recorded, paths[2]) == {0, 3}


def test_a_run_goes_on_with_the_names_that_it_began_with(tmp_path: Path) -> None:
    paths = sites(tmp_path)
    uninterrupted = on_flower(values(schedule={"rounds": 3}), tmp_path / "whole", nodes(paths))
    for path in paths:
        for file in (path.parent / "potluck-state").rglob("*.json*"):
            file.unlink()
    on_flower(values(schedule={"rounds": 2}), tmp_path / "run", nodes(paths))
    grid = nodes(paths)
    resumed = on_flower(values(schedule={"rounds": 3}), tmp_path / "run", grid, resume=True)
    assert "class names" not in {
        from_record(message.content, 1 << 30).facts.get("ask") for message in grid.pushed
    }
    assert [row["loss"] for row in resumed.rounds] == [row["loss"] for row in uninterrupted.rounds]


def test_check_names_the_classes_and_who_learns_them(tmp_path: Path) -> None:
    path = write_site(tmp_path / "n", "ready", {"cat": 4, "dog": 4})
    output = "\n".join(check_node(path, parse_experiment({})))
    assert "classes: cat, dog; the server unites these names with those of the other nodes" in output
    declared = parse_experiment({"data": {"class_names": ["dog", "cat", "frog"]}})
    assert "numbered as the experiment says" in "\n".join(check_node(path, declared))
    with pytest.raises(PotluckError, match="Node 'ready' has the class dog, which data.class_names"):
        check_node(path, parse_experiment({"data": {"class_names": ["cat", "frog"]}}))


OWN_NETWORK = """
from torch import nn

def Net():
    return nn.Sequential(nn.Flatten(), nn.Linear({inputs}, 6), nn.ReLU(), nn.Linear(6, {outputs}))
"""


def with_own_network(path: Path, outputs: int) -> Path:
    """Give a node a network of its own, with so many outputs."""
    inputs = read_node(path).load_data().x[0].numel()
    module = f"net_of_{path.parent.name.replace('-', '_')}_{outputs}"
    (path.parent / f"{module}.py").write_text(OWN_NETWORK.format(inputs=inputs, outputs=outputs))
    path.write_text(path.read_text().replace('"mlp-1+6"', f'"{module}:Net"'))
    return path


def test_an_own_network_may_have_outputs_for_classes_of_other_nodes(tmp_path: Path) -> None:
    path = with_own_network(write_site(tmp_path / "n", "ready", {"cat": 4, "dog": 4}), 5)
    lines = check_node(path, parse_experiment({}))
    assert "5 outputs: the federation must have 5 classes, checked at the start of a run" in lines
    assert any(line.startswith("one training step: loss") for line in lines)
    assert "of another node" not in "\n".join(lines)  # the names that fill the list are nobody's
    declared = parse_experiment({"data": {"class_names": list(UNION)}})
    with pytest.raises(
        PotluckError, match="gives 5 class scores and the data have 4 classes; give its last layer 4"
    ):
        check_node(path, declared)


def test_labels_without_names_leave_room_for_other_classes(tmp_path: Path) -> None:
    path = write_site(tmp_path / "n", "numbers", {"cat": 4})
    (path.parent / "room.py").write_text(
        "import torch\ndef rows():\n    y = torch.arange(8) % 2\n    return torch.randn(8, 1, 8, 8), y\n"
    )
    path.write_text(path.read_text().replace("folder:images", "room:rows"))
    lines = check_node(with_own_network(path, 3), parse_experiment({}))
    assert "3 outputs: the federation must have 3 classes, checked at the start of a run" in lines


def test_an_own_network_with_fewer_outputs_than_classes_is_named(tmp_path: Path) -> None:
    path = with_own_network(write_site(tmp_path / "n", "short", {"cat": 4, "dog": 4, "frog": 4}), 2)
    with pytest.raises(
        PotluckError, match="gives 2 class scores and this node has 3 classes; give its last layer one"
    ):
        check_node(path, parse_experiment({}))


def test_outputs_of_an_own_network_are_compared_with_the_union_at_the_start(tmp_path: Path) -> None:
    paths = sites(tmp_path)
    with_own_network(paths[1], 4)
    assert on_flower(values(), tmp_path / "run", nodes(paths)).class_names == UNION
    paths[1].write_text(paths[1].read_text().replace("_4:Net", "_5:Net"))
    module = paths[1].parent / "net_of_node_1_5.py"
    module.write_text((paths[1].parent / "net_of_node_1_4.py").read_text().replace("6, 4", "6, 5"))
    with pytest.raises(
        PotluckError, match=r"gives 5 class scores .* or list all 5 classes in data\.class_names"
    ):
        on_flower(values(), tmp_path / "again", nodes(paths))


def test_options_of_data_in_a_node_file(tmp_path: Path) -> None:
    path = write_site(tmp_path / "n", "small", {"cat": 4, "dog": 4}, "image_size = 6\nnormalise = 'half'")
    federation = node_federation(parse_experiment({"data": {"class_names": ["cat", "dog"]}}), read_node(path))
    assert federation.task.input_shape == (1, 6, 6)
    assert float(federation.example().min()) < 0
    (tmp_path / "n" / "texts.csv").write_text(
        "says,kind\n" + "".join(f"good {i} word,{'ab'[i % 2]}\n" for i in range(20))
    )
    text = (
        path.read_text()
        .replace("folder:images", "csv:texts.csv")
        .replace("image_size = 6", "label = 'kind'\ntext = 'says'")
    )
    path.write_text(text.replace("normalise = 'half'", "").replace('"mlp-1+6"', '"text-mean"'))
    assert read_node(path).load_data().vocabulary is not None
    path.write_text(text)
    with pytest.raises(PotluckError, match="data.normalise = 'half' has no effect on texts"):
        read_node(path).load_data()
    path.write_text(text.replace("csv:texts.csv", "rows:rows"))
    with pytest.raises(PotluckError, match="data.label = 'kind' has no effect on the rows of 'rows:rows'"):
        read_node(path).load_data()


def test_the_template_has_every_option(tmp_path: Path) -> None:
    path = write_site(tmp_path / "n", "whole", {"cat": 2})
    assert json.loads(read_node(path).model_dump_json())["policy"]["class_names"] is True


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with commands_in(tmp_path) as running:
        yield running


@pytest.mark.flower
@pytest.mark.timeout(600)
def test_real_nodes_with_different_class_folders_agree_on_numbers(commands: Commands) -> None:
    place, (port,) = commands.place, free_ports(1)
    address = f"127.0.0.1:{port}"
    (place / "experiment.toml").write_text(
        '[method]\nname = "fedgh"\n[training]\nepochs = 1\n[schedule]\nrounds = 2\n'
        '[engine]\nname = "flower"\nnodes = 3\nwait = 300\n'
    )
    commands.start("server", "server", "start", "--insecure", "--port", str(port))
    commands.up("server", "runner started")
    for path in sites(place):
        commands.start(path.parent.name, "node", "start", str(path), "--server", address, "--insecure")
    commands.run("run", "run", "experiment.toml", "--server", address, "--out", "run", "-q")
    recorded = parse_experiment(read_experiment(place / "run" / "experiment.toml"))
    assert recorded.data.class_names == UNION
    assert json.loads((place / "run" / "summary.json").read_text())["class_names"] == list(UNION)
