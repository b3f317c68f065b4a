"""Exported models take raw images, texts and rows of tables; own networks get their weights back by their own names."""

from __future__ import annotations

import csv
import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import potluck as library
from potluck.core.errors import PotluckError
from potluck.data import as_data
from potluck.models import SplitModel, original_names, split
from potluck.runs.plan import Parts

COLOURS = {"cat": (220, 40, 40), "dog": (40, 220, 40)}


class Net(nn.Module):
    """A plain network, which knows nothing of Potluck."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.hidden = nn.Linear(16, width)
        self.out = nn.Linear(width, 2)
        self.register_buffer("offset", torch.full((1,), 0.5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.conv(x - self.offset))).flatten(1)
        return self.out(torch.relu(self.hidden(x)))


def write_images(folder: Path, count: int = 10) -> None:
    rng = np.random.default_rng(3)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(np.array(colour) + rng.normal(0, 20, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def train(out: Path, data: Any, **more: Any) -> library.Run:
    settings = {
        "rounds": 3,
        "clients": 2,
        "engine": "serial",
        "partition": "iid",
        "training": {"epochs": 5, "batch_size": 8},
        "lr": 0.1,
    }
    return library.run("standalone", data=data, out=out, **{**settings, **more})


def test_images_are_predicted_as_torch_does_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "pets")
    torch.manual_seed(0)
    run = train(tmp_path / "run", "folder:pets", models=[split(Net(12))], rounds=8)
    place = library.export_client(run, 0, "model")
    facts = json.loads((place / "model.json").read_text())
    file = tmp_path / "pets" / "dog" / "7.png"

    # Plain torch: the user's own module, the weights by its own names, the normalisation as described.
    net = Net(12).eval()
    net.load_state_dict(load_file(place / "model.safetensors"))
    pixels = torch.tensor(np.array(Image.open(file))).permute(2, 0, 1)[None]
    mean, std = (torch.tensor(facts["input"][name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        shares = torch.softmax(net((pixels * facts["input"]["scale"] - mean) / std).double(), 1)[0].tolist()
    assert facts["class_names"] == ["cat", "dog"]

    model = library.load_model(place, models={facts["model"]["own"]: lambda: Net(12)})
    (prediction,) = model.predict(str(file))
    assert prediction.class_name == "dog"
    assert prediction.probabilities == pytest.approx(dict(zip(["cat", "dog"], shares, strict=True)), abs=1e-6)
    assert prediction.probability == max(prediction.probabilities.values()) > 0.5
    for same in (file, Image.open(file), np.array(Image.open(file))):
        assert model.predict(same) == [prediction]
    folder = model.predict([file, tmp_path / "pets" / "cat"])
    assert folder[0].probabilities == pytest.approx(prediction.probabilities)
    assert [class_prediction.probability for class_prediction in folder[1:]] == pytest.approx(
        [model.predict(path)[0].probability for path in sorted((tmp_path / "pets" / "cat").iterdir())]
    )


FIXED_NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear({inputs}, 6), nn.ReLU(), nn.Linear(6, 2))
"""


@pytest.mark.parametrize("grey", [False, True])
def test_the_guides_plain_torch_predicts_a_photo_of_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], grey: bool
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    write_images(tmp_path / "pets")
    if grey:
        for file in (tmp_path / "pets").rglob("*.png"):
            Image.open(file).getchannel("R").save(file)
    Path("net.py").write_text(FIXED_NET.format(inputs=16 if grey else 48))
    net = importlib.import_module("net").Net
    data = {"name": "folder:pets", "image_size": 4}
    run = train(tmp_path / "run", data, models=[net()], rounds=8)
    model = library.load_model(library.export_client(run, 0, "my-model"), models={"Net": net})
    photo = np.zeros((9, 13) if grey else (9, 13, 3), np.uint8)
    photo[:, :7] = 60 if grey else COLOURS["dog"]  # unlike halves: the interpolation counts
    photo[:, 7:] = 30 if grey else COLOURS["cat"]
    Image.fromarray(photo).save("photo.png")

    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (block,) = [text for text in blocks if "from net import Net" in text]
    names: dict[str, Any] = {}
    exec(compile(block, "export.md", "exec"), names)
    (prediction,) = model.predict("photo.png")
    shares = torch.softmax(names["scores"].detach().double(), 1)[0].tolist()
    assert shares == pytest.approx(
        [prediction.probabilities["cat"], prediction.probabilities["dog"]], abs=1e-6
    )
    assert capsys.readouterr().out.strip() == prediction.class_name


def test_an_image_of_another_size_or_none_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "pets", 4)
    run = train(tmp_path / "run", "folder:pets", models="small-mlp", rounds=1)
    model = library.load_model(library.export_client(run, 0, "model"))
    Image.new("RGB", (9, 8)).save("wide.png")
    with pytest.raises(PotluckError, match="'wide.png' is 9×8 and the model takes 8×8; resize it"):
        model.predict("wide.png")
    with pytest.raises(PotluckError, match="'nowhere.png' does not exist"):
        model.predict("nowhere.png")


def test_pictures_of_sites_are_resized_as_the_runs_were_and_other_sizes_are_an_error(potluck, tmp_path: Path):
    for site in ("harbour", "hill"):
        write_images(Path("sites") / site, 6)
    photo = np.zeros((70, 90, 3), np.uint8)
    photo[:, :50], photo[:, 50:] = COLOURS["dog"], COLOURS["cat"]
    Image.fromarray(photo).save("photo.png")
    for size, folder in ((None, "same"), (6, "resized")):
        data = {"name": "sites:sites", "root": "data", **({"image_size": size} if size else {})}
        run = train(Path(folder), data, clients=None, partition=None, models="small-mlp", rounds=1)
        library.export_client(run, 0, Path(f"{folder}-model"))
    code, _, err = potluck("predict", "same-model", "photo.png")
    assert code == 2
    assert "'photo.png' is 90×70 and the model takes 8×8; resize it first" in err
    assert potluck("predict", "resized-model", "photo.png")[0] == 0
    model = library.load_model("resized-model")
    small = Image.open("photo.png").resize((6, 6), Image.Resampling.BILINEAR)
    rows = torch.tensor(np.array(small)).permute(2, 0, 1)[None]
    assert model.predict("photo.png") == model.predict(rows)


def write_table(path: Path, rows: int = 60) -> None:
    rng = np.random.default_rng(5)
    lines = ["age,ward,outcome"]
    for row in range(rows):
        ill = row % 2
        age = "" if row % 10 == 9 else f"{40 + 30 * ill + rng.normal(0, 3):.2f}"
        lines.append(f"{age},{'north' if row % 3 else 'south'},{'ill' if ill else 'well'}")
    path.write_text("\n".join(lines) + "\n")


def test_rows_of_a_table_are_scaled_and_filled_as_in_training(potluck, tmp_path: Path):
    write_table(tmp_path / "patients.csv")
    flags = "--data csv:patients.csv --label outcome --missing impute --clients 2 --rounds 4 --lr 0.1"
    code, out, _ = potluck("run", "fedgh", *flags.split(), "--engine", "serial", "--out", "run")
    assert code == 0
    replaced = "Missing values of csv:patients replaced by the mean or the most frequent word: 6 of age"
    assert replaced in out
    assert library.read_run("run").summary["imputed"] == {"age": 6}
    shown = potluck(
        "data", "show", "csv:patients.csv", "--label", "outcome", "--missing", "impute", "--clients", "2"
    )[1]
    assert replaced.replace("csv:patients", "csv:patients.csv") in shown
    assert potluck("export", "run", "--client", "1", "--out", "model")[0] == 0
    Path("new.csv").write_text("ward,age\nsouth,41\nnorth,69.5\nnorth,NA\n")
    code, out, _ = potluck("predict", "model", "new.csv", "--out", "answers.csv")
    assert (code, out.strip()) == (0, "Predictions: answers.csv (3 rows)")
    header, first, second, third = csv.reader(Path("answers.csv").read_text().splitlines())
    assert header == ["input", "class", "p(ill)", "p(well)"]
    assert (first[:2], second[:2]) == (["new.csv row 1", "well"], ["new.csv row 2", "ill"])
    assert float(first[2]) + float(first[3]) == pytest.approx(1, abs=2e-6)

    bad = {
        "ward,age\nsouth,41\nwest,50\n": "Column 'ward' has 'west' in row 2 of 'bad.csv' (the header not counted)",
        "ward,age\nsouth,old\n": "Column 'age' has 'old' in row 1 of 'bad.csv' (the header not counted)",
        "age\n41\n": "Table 'bad.csv' has no column 'ward'; the model takes age, ward",
    }
    for text, sentence in bad.items():
        Path("bad.csv").write_text(text)
        code, _, err = potluck("predict", "model", "new.csv", "bad.csv")
        assert (code, sentence in err) == (2, True), err

    model = library.load_model("model")
    ages = [
        float(row["age"])
        for row in csv.DictReader(Path("patients.csv").read_text().splitlines())
        if row["age"]
    ]
    (filled,) = model.predict({"age": repr(sum(ages) / len(ages)), "ward": "north"})
    assert filled.probabilities["ill"] == pytest.approx(float(third[2]), abs=1e-5)
    with pytest.raises(PotluckError, match="Row 1 has no 'ward'; the model takes age, ward"):
        model.predict({"age": "50"})
    with pytest.raises(PotluckError, match="Column 'ward' has 'west' in row 1, which no training row has"):
        model.predict({"age": "50", "ward": "west"})


def test_sentences_are_read_with_the_words_of_training(potluck, tmp_path: Path):
    for kind, words in (("ham", "see you at lunch"), ("spam", "win free money now")):
        Path("mail", kind).mkdir(parents=True)
        for number in range(10):
            Path("mail", kind, f"{number}.txt").write_text(f"{words} {number}")
    train(tmp_path / "run", "folder:mail", models="text-bag")
    assert potluck("export", "run", "--out", "model")[0] == 0
    code, out, _ = potluck("predict", "model", "Free money!", "see you", "mail/spam/3.txt")
    lines = [line.split() for line in out.splitlines()[1:]]
    assert code == 0
    assert [line[-4] for line in lines] == ["spam", "ham", "spam"]
    facts = json.loads(Path("model", "model.json").read_text())["raw"]
    assert facts["tokenizer"]["lower_case"] is True
    assert facts["words"][0] in "see you at lunch win free money now"


def test_rows_of_numbers_come_from_numpy_files(potluck, tmp_path: Path):
    rng = np.random.default_rng(1)
    y = np.arange(40) % 2
    np.savez("rows.npz", x=rng.normal(size=(40, 3)) + 4 * y[:, None], y=y)
    train(tmp_path / "run", "npz:rows.npz")
    assert potluck("export", "run", "--out", "model")[0] == 0
    np.save("new.npy", np.array([[4.0, 4, 4], [0, 0, 0]]))
    code, out, _ = potluck("predict", "model", "new.npy")
    assert code == 0
    assert [line.split()[3] for line in out.splitlines()[1:]] == ["1", "0"]
    code, _, err = potluck("predict", "model", "rows.csv")
    assert code == 2
    assert "cannot be read as rows of numbers" in err


def test_an_own_network_needs_its_factory(potluck, tmp_path: Path):
    write_images(Path("pets"), 4)
    Path("mynet.py").write_text("from runs.test_runs_predict import Net\n")
    run = train(tmp_path / "run", "folder:pets", models=[Net()], rounds=1)
    library.export_client(run, 0, "model")
    code, _, err = potluck("predict", "model", "pets/cat/1.png")
    assert code == 2
    assert "your own network" in err
    assert potluck("predict", "model", "pets/cat/1.png", "--network", "mynet:Net")[0] == 0
    assert (
        "could not be imported"
        in potluck("predict", "model", "pets/cat/1.png", "--network", "nowhere:Net")[2]
    )


OWN_NETWORKS = """
import torch
from torch import nn
from potluck.models import split

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.last = nn.Linear(4, 7)

    def forward(self, x):
        return self.last(torch.relu(self.conv(x)).mean((2, 3)))

def ready():
    return split(Net())
"""


@pytest.mark.parametrize(
    ("factory", "more"),
    [
        ("Net", {"training": {"train": "head"}}),
        ("ready", {"training": {"train": "head"}}),
        ("Net", {"training": {"train": "head"}, "models": {"feature_dim": 3}}),
        ("Net", {"training": {"train": "lora:2"}}),
        ("ready", {"training": {"train": "all"}, "models": {"feature_dim": 3}}),
    ],
)
def test_the_printed_command_predicts_with_a_network_of_a_file(
    potluck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, more: dict[str, Any]
):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nets_of_files", raising=False)
    Path("nets_of_files.py").write_text(OWN_NETWORKS)
    nets = importlib.import_module("nets_of_files")
    torch.manual_seed(0)
    network = getattr(nets, factory)()
    torch.save(network.state_dict(), "weights.pth")
    write_images(Path("pets"))
    models = {"names": [f"file:weights.pth@nets_of_files:{factory}"], **more.get("models", {})}
    training = {"epochs": 5, "batch_size": 8, **more["training"]}
    data = {"name": "folder:pets", "root": "data"}
    run = train(Path("run"), data, models=models, training=training)
    code, out, _ = potluck("export", str(run.path), "--client", "1", "--out", "model")
    assert code == 0
    load, command = out.splitlines()[-2:]
    assert load == f"Load it with: potluck.load_model('model', models={{{factory!r}: {factory}}})"
    assert command == f"Predict with: potluck predict model FILE --network nets_of_files:{factory}"
    file = Path("pets", "dog", "7.png")
    words = command.removeprefix("Predict with: potluck ").replace("FILE", str(file)).split()
    code, out, err = potluck(*words, "--out", "answers.csv")
    assert (code, err) == (0, "")
    (row,) = csv.DictReader(Path("answers.csv").read_text().splitlines())

    # Plain torch: the network's layers by their stored names, then projection and head.
    state = load_file("model/model.safetensors")
    before = "base.base." if "feature_dim" in models else "base."
    conv, facts = nn.Conv2d(3, 4, 3), json.loads(Path("model", "model.json").read_text())
    conv.load_state_dict({key: state[f"{before}conv.{key}"] for key in ("weight", "bias")})
    if more["training"]["train"] == "head":
        first = network.rest if factory == "ready" else network
        assert torch.equal(conv.weight, first.conv.weight)
    pixels = torch.tensor(np.array(Image.open(file))).permute(2, 0, 1)[None]
    mean, std = (torch.tensor(facts["input"][name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        features = torch.relu(conv((pixels * facts["input"]["scale"] - mean) / std)).mean((2, 3))
        if "feature_dim" in models:
            features = nn.functional.linear(features, state["projection.weight"], state["projection.bias"])
        scores = nn.functional.linear(features, state["head.weight"], state["head.bias"])
        shares = torch.softmax(scores.double(), 1)[0].tolist()
    assert [float(row["p(cat)"]), float(row["p(dog)"])] == pytest.approx(shares, abs=2e-6)


def test_a_second_variant_of_a_class_is_loaded_by_its_class_or_stored_name(tmp_path: Path):
    run = train(tmp_path / "run", ROWS, models=[Net(), Net(3)], rounds=1)
    place = library.export_client(run, 1, tmp_path / "model")
    assert json.loads((place / "model.json").read_text())["model"]["own"] == "Net-2"
    for models in ({"Net": lambda: Net(3)}, {"Net": Net, "Net-2": lambda: Net(3)}, {"any": lambda: Net(3)}):
        state = library.load_model(place, models=models).module.state_dict()
        assert set(map(tuple, (value.shape for value in state.values()))) >= {(3, 16), (2, 3)}
    with pytest.raises(PotluckError, match=r"'hidden\.weight' should be \(6, 16\) and is \(3, 16\)"):
        library.load_model(place, models={"Net": Net})


def test_names_of_the_split_network_are_those_of_the_original():
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 3), nn.Linear(3, 2))
    for parted in (split(net), split(net, "1", stages=["0.0"])):
        names = original_names(parted)
        assert sorted(names.values()) == sorted(net.state_dict())
        state = parted.state_dict()
        assert all(torch.equal(state[own], net.state_dict()[name]) for own, name in names.items())
    projected = split(net, feature_dim=5)
    assert isinstance(projected, SplitModel)
    assert set(original_names(projected).values()) - set(net.state_dict()) == {
        "projection.weight",
        "projection.bias",
    }


ROWS = (torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2)


def own_models() -> dict[str, Any]:
    return {"data": ROWS, "models": [Net(), Net()], "clients": 3, "partition": "iid"}


def own_members() -> dict[str, Any]:
    return {"federation": library.federate([library.Member(split(Net()), ROWS, ROWS) for _ in range(3)])}


@pytest.mark.parametrize("make", [own_models, own_members])
def test_a_run_of_own_modules_continues_and_exports_from_other_random_weights(tmp_path: Path, make):
    def start(seed: int, rounds: int, out: str, *, resume: bool = False) -> None:
        torch.manual_seed(seed)  # as in another process: modules are made anew, with other first weights
        settings = {"rounds": rounds, "resume": resume, "participation": 0.5, "engine": "serial"}
        library.run("fedavg", out=tmp_path / out, **make(), **settings)

    def export(seed: int, client: int, out: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        weights = make()
        run = library.read_run(tmp_path / out)
        parts = Parts(
            models=weights.get("models"), data=as_data(weights["data"]) if "data" in weights else None
        )
        run = replace(run, parts=replace(parts, federation=weights.get("federation")))
        place = library.export_client(run, client, tmp_path / "models" / f"{out}-{client}")
        return load_file(place / "model.safetensors")

    start(1, 3, "whole")
    start(1, 1, "parts")
    start(2, 3, "parts", resume=True)
    for client in range(3):
        uninterrupted, parts = export(3, client, "whole"), export(4, client, "parts")
        assert set(uninterrupted) == set(Net().state_dict())
        assert all(torch.equal(tensor, parts[name]) for name, tensor in uninterrupted.items())


def test_other_networks_than_those_of_the_run_are_named(tmp_path: Path):
    data = (torch.rand(24, 3, 8, 8), torch.arange(24) % 2)
    settings: dict[str, Any] = {"data": data, "clients": 2, "engine": "serial", "out": tmp_path / "run"}
    library.run("fedgh", models=[split(Net())], rounds=1, **settings)
    with pytest.raises(PotluckError, match=r"number 0 of models \(SplitModel\) is not the one .* differs"):
        library.run("fedgh", models=[split(Net(7))], rounds=2, resume=True, **settings)


def test_own_architectures_are_called_by_their_classes(tmp_path: Path):
    def resnet18() -> nn.Module:
        return Net()

    models = [Net(), split(Net(3)), resnet18, lambda: Net(), "small-mlp"]
    settings = {"clients": 5, "partition": "iid", "engine": "serial", "rounds": 1}
    run = library.run("standalone", data=ROWS, models=models, out=tmp_path / "run", **settings)
    names = [row["architecture"] for row in run.clients if row["final"]]
    assert names == ["Net", "Net-2", "own-resnet18", "Network", "small-mlp"]


def test_a_network_that_cannot_be_split_by_itself_is_named(tmp_path: Path):
    class Softmax(nn.Sequential):
        """Its last linear layer is followed by another operation."""

    settings: dict[str, Any] = {"data": ROWS, "clients": 2, "out": tmp_path / "run"}
    net = Softmax(nn.Flatten(), nn.Linear(192, 2), nn.Softmax(dim=1))
    with pytest.raises(PotluckError, match="head '1' is not the last operation of Softmax"):
        library.run("fedgh", models=[net], **settings)
    with pytest.raises(PotluckError, match="has no linear layer to take as head"):
        library.run("fedgh", models=[nn.Sequential(nn.Flatten())], **settings)
