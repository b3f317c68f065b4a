"""Batch norm at rest and with measured statistics."""

import pytest
import torch
from torch import nn

from potluck.core.model import batch_norm_in_eval_mode, with_batch_norm_statistics
from potluck.core.samples import Samples, outputs
from potluck.core.training import Training
from potluck.federation.members import Member, federate
from potluck.methods.standalone import Standalone
from support.families import Narrow
from support.tiny import Recorder, make_loop, points, tiny


def static(features: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(features, track_running_stats=False)).double()


def test_statistics_are_the_plain_mean_over_batches():
    batches = [
        torch.tensor([[0.0, 1.0], [2.0, 1.0]]).double(),
        torch.tensor([[4.0, 3.0], [8.0, 5.0]]).double(),
    ]
    model = static()
    measured = with_batch_norm_statistics(model, batches)
    assert measured[0].running_mean.tolist() == [3.5, 2.5]  # means 1, 1 and 6, 4
    assert measured[0].running_var.tolist() == [5.0, 1.0]  # variances 2, 0 and 8, 2
    average = torch.tensor([[3.5, 2.5]]).double()
    assert torch.allclose(measured(average), torch.zeros(1, 2).double())  # one sample is enough to test
    assert model[0].running_mean is None
    assert "0.running_mean" not in model.state_dict()


def test_layers_that_track_keep_their_own_statistics():
    model = nn.Sequential(nn.BatchNorm1d(2)).double()
    model[0].running_mean.fill_(7.0)
    measured = with_batch_norm_statistics(model, [torch.zeros(3, 2).double()])
    assert measured[0].running_mean.tolist() == [7.0, 7.0]


def test_at_rest_a_static_norm_takes_a_single_sample():
    model = static().train()
    single = torch.tensor([[3.0, -1.0]]).double()
    with pytest.raises(ValueError, match="more than 1 value"):
        model(single)
    with batch_norm_in_eval_mode(model):
        assert torch.allclose(model(single), single, atol=1e-4)
    assert model[0].running_mean is None
    assert model[0].training


def test_rest_ends_even_when_the_work_fails():
    model = static().train()
    with pytest.raises(KeyError), batch_norm_in_eval_mode(model):
        raise KeyError
    assert model[0].running_mean is None
    assert model[0].training


def test_a_single_test_sample_is_no_batch_to_normalise_over():
    model = Narrow(3).double()
    pairs = [points(12, 1), points(1, 2)]
    fed = federate([Member(model, *pairs)], num_classes=3, training=Training(epochs=1, batch_size=4))
    recorder = Recorder()
    make_loop(Standalone(), fed, rounds=1, callbacks=[recorder]).run()
    assert [score.score.samples for score in recorder.end.scores] == [1]


def test_the_last_sample_of_a_large_test_set_is_not_left_alone():
    fed = tiny(1)
    sizes = [len(y) for _, y in outputs(lambda x: x, Samples(*points(513, 1)), fed.task)]
    assert sizes == [256, 257]
