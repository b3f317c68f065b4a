"""FedL2G's groups: counts with 100 classes, pooled features, and the published sizes of the originals."""

import pytest
import torch
from torch import nn

from potluck.models import build_model, count_parameters, groups

# without the head, and with a head of 512 features and 100 classes
PUBLISHED = {
    "fedavg-cnn-4": (873408, 924708),
    "resnet4+512": (83520, 134820),
    "resnet6+512": (313664, 364964),
    "resnet8+512": (1232704, 1284004),
    "resnet10": (4905792, 4957092),
    "mobilenet-v2+512": (2223872, 2275172),
    "resnet18": (11176512, 11227812),
    "resnet34": (21284672, 21335972),
    "resnet50+512": (23508032, 23559332),
    "resnet101+512": (42500160, 42551460),
    "resnet152+512": (58143808, 58195108),
    "googlenet+512": (5599904, 5651204),
}
# torchvision's own counts for 1000 classes at 224×224
IMAGENET = {
    "resnet18": 11689512,
    "resnet34": 21797672,
    "resnet50": 25557032,
    "resnet101": 44549160,
    "resnet152": 60192808,
    "mobilenet-v2": 3504872,
    "googlenet": 6624904,
    "vit-b-16": 86567656,
    "vit-b-32": 88224232,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_without_and_with_the_head(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, (3, 32, 32), 100)
    total = count_parameters(model)
    assert (total - count_parameters(model.head), total) == PUBLISHED[name]
    assert model.feature_dim == 512


@pytest.mark.parametrize("name", IMAGENET)
def test_counts_of_the_original_networks(name: str) -> None:
    with torch.device("meta"):
        assert count_parameters(build_model(name, (3, 224, 224), 1000)) == IMAGENET[name]


@pytest.mark.parametrize("name", ["vit-b-16+512", "vit-b-32+512"])
def test_a_pooled_transformer_gets_a_head_with_a_hidden_layer(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, (3, 32, 32), 100)
        assert [type(layer) for layer in model.head] == [nn.Linear, nn.Tanh, nn.Linear]
        assert count_parameters(model.head) == 512 * 768 + 768 + 768 * 100 + 100
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 100)


def test_the_groups_are_the_papers() -> None:
    sizes = {name: len(members) for name, members in groups.items() if name.startswith("ht")}
    assert sizes == {"htfe2": 2, "htfe3": 3, "htfe4": 4, "htfe8": 8, "htfe9": 9, "htm10": 10}
    assert set(groups["htfe9"]) | set(groups["htfe8"]) == set(PUBLISHED)
    assert groups["htm10"] == (*groups["htfe8"], "vit-b-16+512", "vit-b-32+512")


def test_images_of_64_by_64_give_fedavgs_network_its_10816_inputs() -> None:
    with torch.device("meta"):
        assert build_model("fedavg-cnn-4", (3, 64, 64), 200).fc1.in_features == 10816


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("resnet18", "resnet18"),
        ("resnet50", "resnet50"),
        ("mobilenet-v2", "mobilenet_v2"),
        ("googlenet", "googlenet"),
    ],
)
def test_outputs_equal_torchvisions_for_equal_weights(name: str, original: str) -> None:
    torchvision = pytest.importorskip("torchvision")
    options = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    reference = getattr(torchvision.models, original)(num_classes=10, **options).eval()
    network = build_model(name, (3, 64, 64), 10).eval()
    for parameter, tensor in zip(network.state_dict().values(), reference.state_dict().values(), strict=True):
        parameter.copy_(tensor)
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(network(x), reference(x))
