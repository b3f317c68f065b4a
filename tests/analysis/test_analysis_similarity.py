"""CKA and t-SNE, with examples small enough for paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from potluck.analysis.representations import cka_matrix, linear_cka, mean_cka, tsne
from potluck.core.errors import PotluckError


def features(seed: int, samples: int = 20, size: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(samples, size))


def test_a_network_is_like_itself() -> None:
    x = features(0)
    assert linear_cka(x, x) == pytest.approx(1.0)
    assert linear_cka(x, 3.5 * x + 7.0) == pytest.approx(1.0)  # neither scale nor offset matters


def test_rotation_does_not_matter() -> None:
    rotation, _ = np.linalg.qr(features(1, 6, 6))
    assert linear_cka(features(0) @ rotation, features(2)) == pytest.approx(
        linear_cka(features(0), features(2))
    )


def test_single_features_by_hand() -> None:
    """With one feature CKA is the squared correlation: centred (1, 0, −1) and (1, −1, 0) give 1²/(2·2)."""
    x, y = np.array([[5.0], [4.0], [3.0]]), np.array([[1.0], [-1.0], [0.0]])
    assert linear_cka(x, y) == pytest.approx(0.25)
    assert linear_cka(x, np.array([[1.0], [-2.0], [1.0]])) == pytest.approx(0.0)


def test_two_samples_by_hand() -> None:
    """Two samples centre to ±half their difference, one direction whatever the width: always 1."""
    assert linear_cka([[1.0, 2.0], [3.0, -4.0]], [[0.0], [9.0]]) == pytest.approx(1.0)


def test_two_features_by_hand() -> None:
    """A = I₄ centred has ‖AAᵀ‖ = √3. B = (1,1,−1,−1)ᵀ: BᵀA = B, so ‖BᵀA‖² = 4, ‖BBᵀ‖ = 4: 4/(4√3)."""
    b = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    assert linear_cka(np.eye(4), b) == pytest.approx(1 / math.sqrt(3))


def test_feature_maps_and_tensors_are_welcome() -> None:
    x = torch.arange(48.0).reshape(4, 3, 2, 2).requires_grad_()
    assert linear_cka(x, x.detach().reshape(4, 12).numpy()) == pytest.approx(1.0)


def test_constant_features_have_no_similarity() -> None:
    assert math.isnan(linear_cka(np.ones((5, 2)), features(0, 5, 2)))


def test_matrix_is_symmetric_and_mean_leaves_out_the_diagonal() -> None:
    sets = [features(seed) for seed in range(3)]
    matrix = cka_matrix(sets)
    np.testing.assert_allclose(np.diag(matrix), 1.0)
    np.testing.assert_allclose(matrix, matrix.T)
    pairs = [linear_cka(sets[0], sets[1]), linear_cka(sets[0], sets[2]), linear_cka(sets[1], sets[2])]
    assert mean_cka(sets) == pytest.approx(np.mean(pairs))


def test_cka_rejects_incompatible_inputs() -> None:
    with pytest.raises(PotluckError, match="not of 20 and 10 samples"):
        linear_cka(features(0), features(0, samples=10))
    with pytest.raises(PotluckError, match=r"shape \(3,\)"):
        linear_cka([1, 2, 3], [1, 2, 3])
    with pytest.raises(PotluckError, match="at least 2 clients"):
        mean_cka([features(0)])


def test_tsne_separates_distant_clouds_deterministically() -> None:
    near, far = features(0, 12, 5), features(1, 12, 5) + 50
    first = tsne({"near": near, "far": far}, labels={"near": [0] * 12, "far": [1] * 12})
    again = tsne({"near": near, "far": far})
    np.testing.assert_array_equal(first.points, again.points)
    assert first.sets == ("near", "far")
    assert first.labels is not None
    assert first.labels.tolist() == [0] * 12 + [1] * 12
    a, b = first.points[first.set_of == 0], first.points[first.set_of == 1]
    spread = max(np.linalg.norm(a - a.mean(0), axis=1).max(), np.linalg.norm(b - b.mean(0), axis=1).max())
    assert np.linalg.norm(a.mean(0) - b.mean(0)) > spread


def test_tsne_refuses_mixed_sizes_few_points_and_missing_labels() -> None:
    with pytest.raises(PotluckError, match=r"'a': 6, 'b': 5"):
        tsne({"a": features(0), "b": features(1, size=5)})
    with pytest.raises(PotluckError, match="at least 4 points, not 3"):
        tsne({"a": features(0, samples=3)})
    with pytest.raises(PotluckError, match="labels of 'a' are 2 for 20 points"):
        tsne({"a": features(0)}, labels={"a": [1, 2]})
