"""Print docs/models.md's tables: every network's size, beside what the papers print or imply.

python docs/tables/models.py
"""

from __future__ import annotations

import torch

from potluck.models import build_model, count_parameters, describe, example_shape, model_names

CIFAR, MNIST = (3, 32, 32), (1, 28, 28)
CNN_MEGABYTES = {"cnn-1": "10.00", "cnn-2": "6.92", "cnn-3": "5.04", "cnn-4": "3.81", "cnn-5": "2.55"}
FEDHE = [
    (729856, 875520),
    (1094016, 1311360),
    (1458176, 1747200),
    (1026304, 1174272),
    (2049536, 2340864),
    (352640, 353792),
    (272960, 274112),
    (566592, 568896),
    (226816, 229120),
    (306496, 308800),
]
FEDIN = {
    "resnet10": 4910922,
    "resnet14": 10812234,
    "resnet18": 11181642,
    "resnet22": 17082954,
    "resnet26": 17452362,
}
HETEROFL = {"1": 58148938, "0.5": 14578730, "0.25": 3665434, "0.125": 926738, "0.0625": 236878}
FEDL2G: dict[str, int | None] = {
    "fedavg-cnn-4": 924708,
    "resnet4+512": 134820,
    "resnet6+512": 364964,
    "resnet8+512": 1284004,
    "resnet10": 4957092,
    "mobilenet-v2+512": 2275172,
    "resnet18": 11227812,
    "resnet34": 21335972,
    "resnet50+512": 23559332,
    "resnet101+512": 42551460,
    "resnet152+512": 58195108,
    "googlenet+512": 5651204,
    "vit-b-16+512": None,
    "vit-b-32+512": None,
}
ORIGINALS = {
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
PAPERS = ("cnn-", "fedhe-", "fedavg", "resnet", "preresnet152", "mobilenet", "googlenet", "vit-b")


def count(name: str, shape: tuple[int, ...], classes: int) -> int:
    """Parameters, without making any."""
    with torch.device("meta"):
        return count_parameters(build_model(name, shape, classes))


def table(*rows: tuple[object, ...]) -> None:
    """A Markdown table; the first row is its head."""
    head, *body = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    for row in [head, ["---", *["---:"] * (len(head) - 1)], *body]:
        print(f"| {' | '.join(row)} |")
    print()


def papers() -> None:
    """The networks of the papers."""
    print("### CNN-1 … CNN-5 (FedGH, pFedAFM), 3×32×32\n")
    rows = [
        (
            f"`{name}`",
            ten := count(name, CIFAR, 10),
            count(name, CIFAR, 100),
            f"{ten * 4 / 2**20:.2f}",
            printed,
        )
        for name, printed in CNN_MEGABYTES.items()
    ]
    table(("model", "10 classes", "100 classes", "MiB (10 classes)", "the paper's MB"), *rows)
    print("### FedHe's ten, 10 classes\n")
    rows = [
        (f"`fedhe-{i}`", count(f"fedhe-{i}", MNIST, 10), mnist, count(f"fedhe-{i}", CIFAR, 10), cifar)
        for i, (mnist, cifar) in enumerate(FEDHE)
    ]
    table(("model", "1×28×28", "from the paper's layers", "3×32×32", "from the paper's layers"), *rows)
    print("### FedIN's ResNets and HeteroFL's baseline, 3×32×32, 10 classes\n")
    rows = [(f"`{name}`", count(name, CIFAR, 10), expected) for name, expected in FEDIN.items()]
    for rate, expected in HETEROFL.items():
        rows.append((f"`preresnet152@{rate}`", count(f"preresnet152@{rate}", CIFAR, 10), expected))
    table(("model", "parameters", "the authors' code"), *rows)
    print("### FedL2G's groups, 3×32×32, 100 classes, 512 features\n")
    rows = [(f"`{name}`", count(name, CIFAR, 100), expected or "–") for name, expected in FEDL2G.items()]
    table(("model", "parameters", "the authors' code"), *rows)
    print("### Against torchvision, 3×224×224, 1000 classes\n")
    rows = [(f"`{name}`", count(name, (3, 224, 224), 1000), expected) for name, expected in ORIGINALS.items()]
    table(("model", "parameters", "torchvision's"), *rows)


def other_models() -> None:
    """The networks that are ours, each on an input that suits it."""
    print("### Small, nested, table, sensor and text networks, 10 classes, 10,000 words\n")
    rows = []
    for name in model_names():
        if not name.startswith(PAPERS):
            shape = (1, 8, 8) if name.startswith(("small", "mini", "slim")) else example_shape(name)
            card = describe(name, shape, 10, vocabulary=10000)
            text = "×".join(map(str, shape))
            rows.append((f"`{name}`", text, card.parameters, f"{card.flops / 1e6:.3f}", card.feature_dim))
    table(("model", "input", "parameters", "MFLOPs per sample", "features"), *rows)


if __name__ == "__main__":
    papers()
    other_models()
