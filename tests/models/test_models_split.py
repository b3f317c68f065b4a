"""Any module as features and head."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.models import build_model, check_split, split


class Hand(nn.Module):
    """A hand-written network whose forward branches inside a block, as users' do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block = Branching()
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x if mask is None else x * mask
        x = self.block(torch.relu(self.stem(x)))
        return self.fc(self.dropout(x.mean((2, 3))))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.sum() > 0 else x


class Softmaxed(Hand):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class Skipping(Hand):
    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.fc((self.block(y) + y).mean((2, 3)))


X = torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def test_features_then_head_is_the_original_and_the_original_is_untouched() -> None:
    original = Hand().eval()
    before = copy.deepcopy(original.state_dict())
    model = split(original, head="fc", example=X)
    assert torch.equal(model(X), original(X))
    assert model.features(X).shape == (5, 4)
    assert model.feature_dim == 4
    with torch.no_grad():
        model.head.weight.zero_()
    for name, tensor in original.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_default_head_is_the_last_linear_layer() -> None:
    original = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    assert split(original).feature_dim == 8
    with pytest.raises(PotluckError, match="no linear layer"):
        split(nn.Conv2d(1, 1, 1))


def test_projection_rebuilds_only_the_first_layer_of_the_head() -> None:
    original = nn.Sequential(
        nn.Flatten(), nn.Sequential(nn.Dropout(0.1), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    )
    model = split(original.double(), head="1", feature_dim=12).eval()
    assert model.features(X.double()).shape == (5, 12)
    assert model.projection.weight.shape == (12, 36)
    assert model.head[1].weight.shape == (8, 12)
    assert torch.equal(model.head[3].weight, original[1][3].weight)
    assert model(X.double()).shape == (5, 3)
    assert original[1][1].weight.shape == (8, 36)


def test_projection_by_pooling_has_no_weights() -> None:
    model = split(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), feature_dim=12, projection="pool")
    torch.testing.assert_close(model.features(X), X.flatten(1).reshape(5, 12, 3).mean(2))
    with pytest.raises(PotluckError, match=r"Unknown projection 'pol'\. Did you mean 'pool'"):
        split(Hand(), feature_dim=12, projection="pol")


def test_a_head_that_does_not_exist_lists_the_layers() -> None:
    with pytest.raises(
        PotluckError, match=r"head 'classifier' is not a layer of Hand.*stem, block, block.conv"
    ):
        split(Hand(), head="classifier")
    with pytest.raises(PotluckError, match="without a linear layer"):
        split(Hand(), head="stem")


def test_head_that_is_not_last_is_detected() -> None:
    check_split(Hand(), X)
    with pytest.raises(PotluckError, match="'fc' is not the last operation of Softmaxed"):
        check_split(Softmaxed(), X, head="fc")
    with pytest.raises(PotluckError, match="cannot run with its head '0' taken out"):
        check_split(nn.Sequential(nn.Linear(6, 3), nn.Flatten(), nn.Linear(18, 3)), X, head="0")


def test_an_example_that_does_not_fit_and_a_head_that_cannot_change_size_are_explained() -> None:
    with pytest.raises(PotluckError, match="Hand cannot run on the example"):
        split(Hand(), example=torch.rand(2, 3, 6, 6))
    normed = nn.Sequential(nn.Flatten(), nn.Sequential(nn.LayerNorm(36), nn.Linear(36, 3)))
    with pytest.raises(PotluckError, match=r"head '1' has layers of a fixed size.*name '1\.1' as head"):
        split(normed, head="1", feature_dim=12)
    assert split(normed, head="1.1", feature_dim=12)(X).shape == (5, 3)


def test_stages_end_at_the_named_layers() -> None:
    original = Hand().eval()
    model = split(original, head="fc", stages=("stem", "block"), example=X)
    first, second = model.stages
    assert torch.equal(first(X), original.stem(X))
    middle = second(first(X))
    assert torch.equal(middle, original.block(torch.relu(original.stem(X))))
    assert torch.equal(model.pool(middle), model.features(X))
    assert torch.equal(model(X), original(X))


def test_a_staged_model_trains_copies_and_travels_like_any_other() -> None:
    model = split(Hand(), head="fc", stages=("stem",), feature_dim=6)
    twin = copy.deepcopy(model)
    model(X).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert torch.equal(twin.eval()(X), model.eval()(X))
    assert torch.equal(pickle.loads(pickle.dumps(model))(X), model(X))
    assert model.double()(X.double()).dtype == torch.float64
    assert not torch.equal(model.train()(X.double()), model(X.double()))  # dropout is alive


def test_impossible_cuts_are_explained() -> None:
    with pytest.raises(PotluckError, match=r"'layer9', which is not a layer of Hand"):
        split(Hand(), stages=("layer9",))
    with pytest.raises(PotluckError, match="'add' also needs 'stem' from before the cut"):
        split(Skipping(), stages=("block",))
    with pytest.raises(PotluckError, match="forward depends on the values"):
        split(Hand(), stages=("block.conv",))


def test_functional_dropout_cannot_be_cut() -> None:
    class Functional(Hand):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(nn.functional.dropout(self.stem(x), training=self.training).mean((2, 3)))

    with pytest.raises(PotluckError, match=r"looks at self.training"):
        split(Functional(), stages=("stem",))


@pytest.mark.parametrize("name", ["cnn-5", "small-mlp", "small-res", "small-sep"])
def test_built_in_models_can_be_split_like_user_models(name: str) -> None:
    original = build_model(name, (1, 16, 16), 10)
    x = torch.rand(2, 1, 16, 16)
    assert split(original, head="head", example=x).feature_dim == original.feature_dim


def test_torchvision_models() -> None:
    torchvision = pytest.importorskip("torchvision")
    original = torchvision.models.resnet18(num_classes=10)
    model = split(original, "fc", 64, ("maxpool", "layer4"), example=torch.rand(2, 3, 32, 32)).eval()
    assert model.stages[0](torch.rand(2, 3, 32, 32)).shape == (2, 64, 8, 8)
    assert model.features(torch.rand(2, 3, 32, 32)).shape == (2, 64)


def test_timm_models() -> None:
    timm = pytest.importorskip("timm")
    original = timm.create_model("resnet10t", num_classes=10)
    assert split(original, example=torch.rand(2, 3, 64, 64)).feature_dim == original.num_features


def test_transformers_models_return_an_object_with_logits() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )
    model = split(
        transformers.ViTForImageClassification(config), "classifier", example=torch.rand(2, 3, 8, 8)
    )
    assert model.features(torch.rand(2, 3, 8, 8)).shape == (2, 16)
