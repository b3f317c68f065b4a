"""Scores: against scikit-learn, against hand-computed numbers, and through the wire."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, f1_score, log_loss
from torch.nn import functional as F

from potluck.core.payload import PayloadError
from potluck.loop.schedule import Evaluation
from potluck.methods.standalone import Standalone
from potluck.wire import pack_scores, unpack_scores
from potluck.wire.jobs import Answer, Job
from potluck.wire.score import CONFIDENCE_BINS, Score, score_outputs, summarise
from support.tiny import Recorder, make_loop, tiny


def random_outputs(seed: int, samples: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(samples, classes, generator=rng, dtype=torch.float64)
    return scores, torch.randint(classes, (samples,), generator=rng)


@given(seed=st.integers(0, 10_000), samples=st.integers(1, 60), classes=st.integers(2, 12))
def test_measures_are_those_of_scikit_learn(seed: int, samples: int, classes: int):
    scores, y = random_outputs(seed, samples, classes)
    score = score_outputs([(scores, y)], details=True)
    guess = scores.argmax(dim=1)
    assert (score.correct, score.samples) == (int((guess == y).sum()), samples)
    assert score.macro_f1 == pytest.approx(f1_score(y, guess, average="macro"))
    probabilities = torch.softmax(scores, 1).numpy()
    assert score.loss == pytest.approx(log_loss(y, probabilities, labels=list(range(classes))))
    matrix = np.zeros((classes, classes), int)
    for true, predicted, count in score.details.confusion:
        matrix[true, predicted] = count
    np.testing.assert_array_equal(matrix, confusion_matrix(y, guess, labels=list(range(classes))))


@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 39), max_size=3, unique=True))
def test_batches_are_one_test(seed: int, cuts: list[int]):
    scores, y = random_outputs(seed, 40, 5)
    ends = sorted(cuts)
    parts = list(zip(torch.tensor_split(scores, ends), torch.tensor_split(y, ends), strict=True))
    single, pieces = score_outputs([(scores, y)], details=True), score_outputs(parts, details=True)
    assert pieces.loss_sum == pytest.approx(single.loss_sum)
    assert replace(pieces, loss_sum=0.0) == replace(single, loss_sum=0.0)


def test_calibration_by_hand():
    """Confidences 0.9, 0.9, 0.6 and 0.6, of which one, both … are right: |1 − 1.8| and |2 − 1.2| over 4."""
    logits = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]], dtype=torch.float64).log()
    score = score_outputs([(logits, torch.tensor([0, 1, 0, 0]))], details=True)
    assert score.calibration_error == pytest.approx((abs(1 - 1.8) + abs(2 - 1.2)) / 4)
    filled = {number: entry for number, entry in enumerate(score.details.bins) if entry[0]}
    assert filled == {
        8: (2, 2, pytest.approx(1.2)),
        13: (2, 1, pytest.approx(1.8)),
    }  # (8/15, 9/15] and (13/15, 14/15]
    assert len(score.details.bins) == CONFIDENCE_BINS == 15


def test_the_upper_edge_belongs_to_a_bin_and_certainty_to_the_last():
    logits = torch.tensor([[1.0, 0.0, 0.0], [100.0, 0.0, 0.0]])
    thirds = torch.zeros(1, 3)  # a third is 5/15, the upper edge of the fifth bin
    score = score_outputs([(torch.cat([logits, thirds]).double(), torch.tensor([0, 0, 0]))], details=True)
    assert [number for number, (count, *_) in enumerate(score.details.bins) if count] == [4, 8, 14]


def test_absent_class_does_not_count():
    logits = torch.eye(10)[[0, 1, 1]]
    score = score_outputs([(logits, torch.tensor([0, 1, 0]))])
    assert score.macro_f1 == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert score.details is None


def test_outputs_that_are_no_numbers_are_survived():
    score = score_outputs([(torch.full((3, 2), math.nan), torch.tensor([0, 1, 1]))], details=True)
    assert math.isnan(score.loss)
    assert 0 <= score.calibration_error <= 1
    assert unpack_scores(json.loads(json.dumps(pack_scores({"own": score}))))["own"].details == score.details


def test_accuracy_and_loss_have_the_bits_they_always_had():
    scores, y = random_outputs(3, 50, 7)
    score = score_outputs([(scores.float(), y)])
    assert score.loss_sum == float(F.cross_entropy(scores.float(), y, reduction="sum"))
    assert score.correct == int((scores.float().argmax(1) == y).sum())


def test_clients_have_equal_weight_in_summaries():
    summary = summarise([Score(1, 2, 1.0, 0.25, 0.5), Score(8, 8, 4.0, 0.75, 0.1)])
    assert (summary.macro_f1, summary.calibration_error) == (0.5, 0.3)


def test_score_parts_are_sent_at_the_end_only():
    recorder = Recorder()
    make_loop(
        Standalone(), tiny(2), rounds=1, evaluation=Evaluation("local", ("received",)), callbacks=[recorder]
    ).run()
    assert all(score.score.details is None for score in recorder.steps[0].scores)
    assert all(score.score.details is not None for score in recorder.end.scores)
    assert all(score.score.details is None for score in recorder.end.validation)
    record = recorder.steps[0].record
    local = [score.score for score in recorder.steps[0].scores if score.protocol == "local"]
    assert record.macro_f1 == pytest.approx(sum(score.macro_f1 for score in local) / 2)
    assert record.calibration_error == pytest.approx(sum(score.calibration_error for score in local) / 2)


# -- letters ------------------------------------------------------------------------------------------------


def packed(**changes: Any) -> dict[str, Any]:
    """Two of three right: 0 for 0, 1 for 1, and a 1 taken for 0."""
    logits = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], dtype=torch.float64).log()
    score = score_outputs([(logits, torch.tensor([0, 1, 1]))], details=True)
    values = json.loads(json.dumps(pack_scores({"own": score})))
    for name, value in changes.items():
        place = values["own"]["details"] if name in ("confusion", "bins") else values["own"]
        place[name] = value
    return values


def test_scores_roundtrip_exactly():
    scores, y = random_outputs(5, 33, 4)
    before = {"own": score_outputs([(scores, y)], details=True), "validation": score_outputs([(scores, y)])}
    assert unpack_scores(json.loads(json.dumps(pack_scores(before)))) == before
    assert "details" not in pack_scores(before)["validation"]
    assert unpack_scores(packed())["own"].details.confusion == ((0, 0, 1), (1, 0, 1), (1, 1, 1))


NO_BIN = [0, 0, 0.0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"samples": 0}, "samples is not an integer"),
        ({"correct": 4}, "correct is not an integer"),
        ({"macro_f1": 1.5}, "macro_f1 is larger than 1"),
        ({"macro_f1": "good"}, "macro_f1 is not a number"),
        ({"calibration_error": -0.1}, "calibration_error is smaller than 0"),
        ({"calibration_error": math.nan}, "calibration_error is not a finite number below"),
        ({"details": 3}, "has no details"),
        ({"confusion": [[0, 0, 1]] * 4}, "confusion is not a list of 0 to 3 entries"),
        ({"confusion": [[0, 0, 1], [0, 0, 2]]}, "not in ascending order"),
        ({"confusion": [[0, 0]]}, "an entry of confusion is not a list of 3 to 3"),
        ({"confusion": [[-1, 0, 3]]}, "a class is not an integer"),
        ({"confusion": [[0, 0, 0]]}, "a count of confusion is not an integer"),
        ({"confusion": [[0, 0, 3]]}, "do not add up"),
        ({"confusion": [[0, 0, 1], [1, 0, 1]]}, "do not add up"),
        ({"bins": []}, "bins is not a list of 15"),
        ({"bins": [NO_BIN] * 15}, "do not add up"),
        ({"bins": [[3, 2, 3.5], *[NO_BIN] * 14]}, "confidence is larger than 3"),
        ({"bins": [[3, 4, 1.0], *[NO_BIN] * 14]}, "a bin's hits is not an integer"),
    ],
)
def test_scores_that_cannot_be_are_refused(changes: dict[str, Any], says: str):
    with pytest.raises(PayloadError, match=says):
        unpack_scores(packed(**changes))


@given(values=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3), lambda x: st.lists(x, max_size=4) | st.dictionaries(st.sampled_from([*asdict(Score(1, 1, 0.0)), "own", "confusion", "bins"]), x), max_leaves=20))  # fmt: skip
def test_whatever_stands_in_the_place_of_scores_nothing_but_a_refusal_comes_of_it(values: Any):
    with contextlib.suppress(PayloadError):
        unpack_scores(values)


def test_classes_that_the_task_does_not_have_make_an_answer_invalid():
    loop = make_loop(Standalone(), tiny(2), on_failure="continue")
    score = score_outputs([(torch.eye(4), torch.arange(4))], details=True)  # the task has three classes
    job = Job(1, "evaluate", 0, 0, round=1, rounds=1, tests=("own",), details=True)
    assert isinstance(believed(loop, job, {"own": replace(score, details=None)}), Answer)
    refused = believed(loop, job, {"own": score})
    assert (refused.kind, refused.reason) == ("invalid", "Its scores name more classes than the task's 3.")


def believed(loop: Any, job: Job, scores: dict[Any, Score]) -> Any:
    loop.dispatcher._inbox[job.id] = Answer(job.id, job.client, scores=scores)
    return loop.dispatcher._validated(job)


def test_unrequested_scores_make_an_answer_invalid():
    loop = make_loop(Standalone(), tiny(2), on_failure="continue")
    plain, detailed = (
        score_outputs([(torch.eye(3), torch.arange(3))], details=details) for details in (False, True)
    )
    train = Job(1, "train", 0, 0, round=1, rounds=1, tests=("own",))
    assert isinstance(believed(loop, train, {"own": plain}), Answer)
    for test in ("shared", "alone", "federated"):
        assert f"'{test}' that was not requested" in believed(loop, train, {"own": plain, test: plain}).reason
    assert "details of a score" in believed(loop, train, {"own": detailed}).reason
    join = Job(1, "join", 0, 0, round=1, rounds=1)
    assert isinstance(believed(loop, join, {"own": plain, "alone": plain}), Answer)
    valid = Job(1, "evaluate", 0, 0, round=1, rounds=1, tests=("validation",))
    many = score_outputs([(torch.eye(3), torch.arange(3))] * 100)
    assert "more validation samples" in believed(loop, valid, {"validation": many}).reason
