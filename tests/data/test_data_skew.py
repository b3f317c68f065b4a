"""Feature skew: images changed by the rule, alike for all samples of a client; errors where it has no effect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import potluck
from potluck.core.errors import PotluckError
from potluck.core.samples import Samples
from potluck.data import Partition, parse_partition
from potluck.data.partitions import Iid
from potluck.data.partitions.skew import ClientTransform, Skew, blur_images, rotate_images
from potluck.experiment import parse_experiment
from potluck.federation.population import build_federation


def test_quarter_turns_equal_rot90_and_are_invertible():
    x = torch.arange(16.0, dtype=torch.float64).reshape(1, 1, 4, 4)
    assert torch.allclose(rotate_images(x, 90), torch.rot90(x, 1, (2, 3)))
    assert torch.allclose(rotate_images(rotate_images(x, 90), -90), x)
    wide = torch.zeros(1, 1, 3, 9, dtype=torch.float64)
    wide[0, 0, 1, 5] = 1  # one pixel right of the centre goes one pixel up, though sides differ
    assert rotate_images(wide, 90)[0, 0, 0, 4] == pytest.approx(1)


def test_a_blur_keeps_the_sum_and_follows_the_gaussian():
    x = torch.zeros(1, 2, 9, 9, dtype=torch.float64)
    x[0, 0, 4, 4] = 1
    blurred = blur_images(x, 1.0)
    assert blurred[0, 0].sum() == pytest.approx(1)
    assert blurred[0, 1].abs().max() == 0  # channels stay apart
    assert blurred[0, 0, 4, 5] / blurred[0, 0, 4, 4] == pytest.approx(np.exp(-0.5))


def test_contrast_is_about_the_images_own_mean():
    x = torch.tensor([[[[1.0, 3.0]]]])
    assert ClientTransform(contrast=0.5)(x).flatten().tolist() == [1.5, 2.5]


def test_clients_are_spread_over_the_whole_range_in_an_order_of_the_seed():
    rule = Skew(rotate=60, blur=2, contrast=0.5)
    client_transforms = rule.client_transforms(5, 0, (1, 8, 8))
    assert sorted(look.rotate for look in client_transforms) == [-60, -30, 0, 30, 60]
    assert sorted(look.blur for look in client_transforms) == [0, 0.5, 1, 1.5, 2]
    assert sorted(look.contrast for look in client_transforms) == [0.5, 0.75, 1, 1.25, 1.5]
    assert client_transforms == rule.client_transforms(5, 0, (1, 8, 8))
    assert client_transforms != rule.client_transforms(5, 1, (1, 8, 8))
    assert rule.client_transforms(1, 0, (1, 8, 8))[0].rotate == 0


def federation(rule: str, own: Partition | None = None) -> Any:
    values = {
        "data": {"limit": 200, "split": "6:2:2"},
        "partition": {"rule": rule, "clients": 4},
        "models": {"names": ["small-mlp"]},
    }
    experiment = parse_experiment({"method": {"name": "standalone"}, **values})
    return build_federation(experiment, experiment.build_method(), partition=own)


def test_images_of_a_client_share_one_transform_and_rows_are_unchanged():
    skewed, plain = federation("skew:rotate=60,base=dirichlet:0.5"), federation("dirichlet:0.5")
    for skewed_client, plain_client in zip(skewed.members, plain.members, strict=True):
        for skewed_part, plain_part in (
            (skewed_client.train, plain_client.train),
            (skewed_client.validation, plain_client.validation),
            (skewed_client.test, plain_client.test),
        ):
            assert torch.equal(skewed_part.labels, plain_part.labels)
            x, _ = plain_part.take(slice(0, len(plain_part)))
            turn = skewed_client.train.transform.rotate
            assert torch.allclose(
                skewed_part.take(slice(0, len(skewed_part)))[0], rotate_images(x, turn) if turn else x
            )
    assert len({member.train.transform.rotate for member in skewed.members}) == 4


@dataclass(frozen=True)
class Dimmer(Iid):
    """Client i sees everything i times fainter than it is."""

    def transform_samples(
        self, samples: list[Samples], seed: int, input_shape: tuple[int, ...]
    ) -> list[Samples]:
        return [
            replace(part_samples, transform=lambda x, part=part_samples, i=i: part.transform(x) / i)
            for i, part_samples in enumerate(samples, 1)
        ]


def test_any_rule_may_say_how_its_clients_see():
    dimmed, plain = federation("iid", Dimmer()), federation("iid")
    for encode_labels, (dimmed_client, plain_client) in enumerate(
        zip(dimmed.members, plain.members, strict=True), 1
    ):
        for dimmed_part, plain_part in (
            (dimmed_client.train, plain_client.train),
            (dimmed_client.test, plain_client.test),
        ):
            everything = slice(0, len(dimmed_part))
            assert torch.equal(
                dimmed_part.take(everything)[0], plain_part.take(everything)[0] / encode_labels
            )


def test_the_text_says_all_of_the_rule():
    for text in ("skew:rotate=45", "skew:rotate=30,blur=1,contrast=0.5,base=dirichlet:0.5,min_size=20"):
        assert parse_partition(str(parse_partition(text))) == parse_partition(text)
    assert str(potluck.skew(rotate=45)) == "skew:rotate=45"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("skew:", "changes nothing; write skew:rotate=45"),
        ("skew:rotate=x", "is not understood; write skew:rotate=45"),
        ("skew:turn=3", "Unknown option of partition 'skew:turn=3' 'turn'"),
        ("skew:contrast=1", "out of bounds"),
    ],
)
def test_mistakes_are_one_sentence(text: str, says: str):
    with pytest.raises(PotluckError, match=says):
        parse_partition(text)


def test_rotation_requires_images():
    with pytest.raises(PotluckError, match="changes images, and these data have inputs of shape"):
        Skew(rotate=45).client_transforms(3, 0, (6, 128))
