"""Image reconstruction: hand-computed scores and decoders, and runs with known images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import potluck
from potluck.analysis.leak import LeakFindings, find_leaks, read_pictures
from potluck.analysis.leak.inversion import (
    WITH_EXTRACTOR,
    Case,
    IntensityRange,
    fit_decoder,
    is_image_shape,
    psnr,
    score_pictures,
    ssim,
)
from potluck.analysis.leak.observations import Reconstruction, head_vectors
from potluck.core.random import generator
from potluck.data import Data
from potluck.kit import Head
from potluck.methods.fedproto import Prototypes
from potluck.runs.answers import KeptAnswer
from potluck.runs.plan import Parts
from support.kept_runs import kept_run


def grey(value: float) -> Tensor:
    return torch.full((1, 8, 8), value)


def drawn(count: int, name: str) -> Tensor:
    return torch.rand(count, 1, 4, 4, generator=generator(name), dtype=torch.float64)


def test_psnr_by_hand():
    assert psnr(grey(0.5), grey(0.4)) == pytest.approx(20.0, abs=1e-5)  # a mean square of 0.01
    assert psnr(grey(0.0), grey(1.0)) == pytest.approx(0.0)
    assert psnr(grey(0.3), grey(0.3)) == 60.0


def test_ssim_by_hand():
    picture = drawn(1, "ssim")[0]
    assert ssim(picture, picture) == pytest.approx(1.0)
    # Without any structure only the means count: (2ab + C₁) / (a² + b² + C₁).
    assert ssim(grey(0.2), grey(0.8)) == pytest.approx((0.32 + 1e-4) / (0.68 + 1e-4), abs=1e-5)
    # Turned over around one half: means are equal, the covariance is minus the variance (one half squared).
    board = (torch.arange(4)[:, None] + torch.arange(4)) % 2 * 1.0
    assert ssim(board[None], 1 - board[None]) == pytest.approx((-0.5 + 9e-4) / (0.5 + 9e-4))


def test_shades_put_every_channel_between_black_and_white():
    x = torch.stack([grey(-2.0), grey(2.0)]).expand(2, 3, 8, 8).clone()
    x[:, 1] *= 10
    x[:, 2] = 7.0
    intensity = IntensityRange.of(x)
    assert intensity.pictures(x)[1, :2].unique().tolist() == [1.0]
    assert intensity.pictures(x)[:, 2].unique().tolist() == [0.0]  # a channel that says nothing
    assert intensity.pictures(torch.zeros(1, 3, 8, 8))[0, 0, 0, 0] == 0.5
    assert intensity.pictures(x + 99).max() == 1.0
    assert is_image_shape((3, 32, 32), None)
    assert not any(is_image_shape(shape, words) for shape, words in (((6, 128), None), ((1, 8, 8), 50)))


def test_a_decoder_recovers_samples_and_means_of_a_linear_extractor():
    """Sixteen pixels, an invertible map: nothing is lost, so nothing is hidden."""
    known_samples, private_samples = drawn(200, "known"), drawn(5, "mine")
    labels = torch.arange(200) % 2
    shuffled = torch.randn(16, 16, generator=generator("map"), dtype=torch.float64)

    def extractor(x: Tensor) -> Tensor:
        return x.flatten(1) @ shuffled + 3

    decode = fit_decoder(extractor(known_samples), known_samples, labels, 2)
    single = decode(extractor(private_samples), torch.tensor([0, 1, 0, 1, 0]))
    assert float((single - private_samples).abs().max()) < 1 / 255  # no shade is wrong
    mean = decode(extractor(private_samples).mean(0, keepdim=True), torch.tensor([1]))
    assert float((mean - private_samples.mean(0)).abs().max()) < 1 / 255  # no shade is wrong


def test_decoder_of_constant_vectors_returns_class_means():
    known_samples, labels = drawn(60, "blind"), torch.arange(60) % 3
    decode = fit_decoder(torch.ones(60, 5), known_samples, labels, 4)
    image = decode(torch.ones(4, 5), torch.arange(4))
    assert torch.allclose(image[0], known_samples[labels == 0].mean(0))
    assert torch.allclose(image[3], known_samples.mean(0))  # a class of which nothing is known


def test_decoder_of_few_samples_is_not_trusted_on_its_training_samples():
    """As many features as samples fit any picture; of noise nothing but the mean picture is worth keeping."""
    known_samples, labels = drawn(30, "few"), torch.zeros(30, dtype=torch.int64)
    noise = torch.randn(60, 40, generator=generator("noise"))
    decode = fit_decoder(noise[:30], known_samples, labels, 1)
    images = decode(noise[30:], labels)
    assert float((images - known_samples.mean(0)).square().mean()) < 0.1 * float(
        (known_samples - known_samples.mean(0)).square().mean()
    )


def test_distances_beyond_those_of_samples_are_clipped():
    known_samples, labels = drawn(50, "far"), torch.zeros(50, dtype=torch.int64)
    decode = fit_decoder(known_samples.flatten(1), known_samples, labels, 1)
    near = known_samples.flatten(1).mean(0)
    direction = torch.ones(1, 16)
    assert torch.allclose(
        decode(near + 1e3 * direction, labels[:1]), decode(near + 1e6 * direction, labels[:1])
    )
    assert decode(torch.full((1, 16), float("nan")), labels[:1]).isfinite().all()


def test_weight_and_bias_changes_of_a_head_reveal_mean_features():
    """Three samples (2, 0) of class 0, one (0, 4) of class 1; at scores of 0 every class is given a third of each."""
    sums = torch.tensor([[6.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    counts = torch.tensor([3.0, 1.0, 0.0])
    step = {"weight": sums - sums.sum(0) / 3, "bias": counts - counts.sum() / 3}
    before = {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    after = {name: before[name] + 0.1 * step[name] for name in step}
    vectors = head_vectors(KeptAnswer(0, 0, Head(before), Head(after)), 3)
    assert vectors is not None
    assert vectors[1].tolist() == [0]  # one sample of four is less than a third: its bias fell
    assert torch.allclose(vectors[0], torch.tensor([[2.0, 0.0]]), atol=1e-5)
    means = Prototypes(torch.zeros(1, 2), torch.tensor([0]))
    assert head_vectors(KeptAnswer(0, 0, means, means), 3) is None


def test_picture_scores_are_compared_with_chance():
    case = Case(
        0, 5, torch.stack([grey(0.5)]), torch.stack([grey(0.9)]), grey(0.4), {WITH_EXTRACTOR: grey(0.49)}
    )
    two = Case(1, 5, torch.stack([grey(0.2), grey(0.4)]), torch.stack([grey(0.3), grey(0.9)]), grey(0.4),
               {WITH_EXTRACTOR: grey(0.3)})  # fmt: skip
    scores = {leak.question: leak for leak in score_pictures([case, two], WITH_EXTRACTOR, "by hand")}
    alone = scores["inverted with the extractor, classes of 1: PSNR in dB"]
    assert (alone.score, alone.chance, alone.cases) == (
        pytest.approx(40, abs=1e-3),
        pytest.approx(20, abs=1e-3),
        1,
    )
    several = scores["inverted with the extractor, classes of 2 to 5: PSNR in dB"]
    assert (several.score, several.chance) == (60.0, pytest.approx(20, abs=1e-3))  # the mean of both is 0.3
    nearest = scores["inverted with the extractor, nearest of two or more samples: PSNR in dB"]
    assert (nearest.score, nearest.chance) == (
        pytest.approx(20, abs=1e-3),
        60.0,
    )  # another's sample is nearer
    assert nearest.cases == 1
    assert scores["inverted with the extractor, classes of 1: SSIM"].score < 1


def test_pictures_are_kept_in_256_shades():
    shown = Reconstruction(3, 1, 2, {"its mean picture": grey(0.2), WITH_EXTRACTOR: grey(1.0)})
    back = read_pictures(shown.stored())
    assert back["its mean picture"].shape == (1, 8, 8)
    assert {name: each.max() for name, each in back.items()} == {"its mean picture": 51, WITH_EXTRACTOR: 255}


def look(tmp_path: Path, method: str, **more: Any) -> LeakFindings:
    return find_leaks(kept_run(tmp_path, method, **more))


def test_class_means_reveal_single_samples_to_an_observer_with_the_extractor(tmp_path: Path):
    leaks = look(tmp_path, "fedproto", partition="dirichlet:0.3", training={"epochs": 2})
    scores = {leak.question: leak for leak in leaks.scores}
    for name in ("PSNR in dB", "SSIM"):
        inside = scores[f"inverted with the extractor, classes of 1: {name}"]
        outside = scores[f"inverted without it, classes of 1: {name}"]
        assert inside.score > inside.chance
        assert inside.score > outside.score
        assert inside.chance == outside.chance  # the usual picture of the class, whoever looks
    assert "the server's own" in outside.way
    names = ["its mean picture", "its nearest sample", WITH_EXTRACTOR, "without it", "usual for the class"]
    assert list(leaks.shown[0].pictures) == names
    assert leaks.shown[0].samples == 1
    assert torch.equal(leaks.shown[0].pictures[names[0]], leaks.shown[0].pictures[names[1]])  # one sample
    again = find_leaks(tmp_path / "fedproto")
    assert again.stored() == leaks.stored()


def test_common_start_lets_the_server_invert_clients_with_its_own_model(tmp_path: Path):
    """With the same first weights and hardly any training, the server's own model is nearly the client's."""
    same = {"names": ["small-mlp"], "same_init": True}
    leaks = look(
        tmp_path, "fedproto", models=same, partition="dirichlet:0.3", training={"lr": 1e-4, "epochs": 1}
    )
    scores = {leak.question: leak for leak in leaks.scores}
    outside = scores["inverted without it, classes of 2 to 5: PSNR in dB"]
    assert outside.score > outside.chance + 1


def test_weights_bring_their_extractor_along(tmp_path: Path):
    leaks = look(tmp_path, "fedavg")
    inverted = [leak for leak in leaks.scores if leak.question.startswith("inverted")]
    assert inverted
    assert {leak.way for leak in inverted} == {"what its head learned, through the weights it sent"}
    assert not any("without" in leak.question for leak in inverted)
    assert all(math.isfinite(leak.score) for leak in inverted)


def test_payloads_without_inversion_are_named_in_a_line(tmp_path: Path):
    assert look(tmp_path, "fedmd").skipped == [
        "No pictures were made: nothing that was sent is a vector of one class."
    ]
    x = torch.rand(60, 6, generator=generator("table"))
    data = Data("table", x, (x[:, 0] > 0.5).long(), 2, (6,))
    run = potluck.run("fedproto", data=data, clients=2, rounds=1, engine="serial", models="mlp3", keep_answers=True,
                      out=tmp_path / "table")  # fmt: skip
    leaks = find_leaks(run.path, Parts(data=data))
    assert leaks.skipped == ["No pictures were made: the samples, of shape 6, are not images."]
    assert not leaks.shown
    assert leaks.scores
