"""Views of labelled rows, and the same rows with other targets."""

import torch

from potluck.core.samples import Samples


def test_other_targets_follow_the_rows_of_a_view():
    """A view of rows 4, 1, 3 in that order: each keeps its own target, through further selection too."""
    x = torch.arange(10.0)[:, None]
    view = Samples(x, torch.zeros(10).long()).select(torch.tensor([4, 1, 3]))
    soft = view.with_targets(torch.tensor([[0.4], [0.1], [0.3]]))
    rows, targets = soft.take(torch.tensor([2, 0]))
    assert rows.flatten().tolist() == [3.0, 4.0]
    assert torch.equal(targets.flatten(), torch.tensor([0.3, 0.4]))
    assert torch.equal(soft.select(torch.tensor([1])).labels.flatten(), torch.tensor([0.1]))
    assert view.labels.tolist() == [0, 0, 0]


def test_other_targets_of_a_whole_set_keep_its_transform():
    full_set = Samples(torch.arange(3.0)[:, None], torch.zeros(3).long(), transform=lambda x: 10 * x)
    rows, targets = full_set.with_targets(torch.tensor([7, 8, 9])).take(slice(1, 3))
    assert rows.flatten().tolist() == [10.0, 20.0]
    assert targets.tolist() == [8, 9]
