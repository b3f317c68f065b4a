"""Jobs and answers cross a socket unchanged."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from potluck.core.payload import EmptyPayload, Payload, PayloadError
from potluck.core.tree import flatten, unflatten
from potluck.engines.pool.channel import BatchOrder, JobChannel, JobReport
from potluck.wire.jobs import Answer, Failure, Job
from potluck.wire.score import Score


@dataclass(frozen=True)
class Means(Payload):
    rows: Tensor
    count: int


WIRE = JobChannel(Means, Means)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


Pair = tuple[socket.socket, socket.socket]


def test_a_job_arrives_with_message_and_state(pair: Pair) -> None:
    state = flatten({"w": torch.eye(2), "steps": {1: 5}})
    job = Job(
        7,
        "train",
        3,
        2,
        round=4,
        rounds=9,
        message=Means(torch.ones(2, 3), 5),
        tests=("own", "shared"),
        state=state,
    )
    WIRE.send_order(pair[0], BatchOrder([job], [6], [1, 2]))
    order = WIRE.receive_order(pair[1])
    assert (order.versions, order.forget) == ([6], [1, 2])
    (got,) = order.batch
    assert (got.id, got.kind, got.client, got.number, got.round, got.rounds) == (7, "train", 3, 2, 4, 9)
    assert got.tests == ("own", "shared")
    assert isinstance(got.message, Means)
    assert torch.equal(got.message.rows, torch.ones(2, 3))
    assert got.message.count == 5
    assert got.state is not None
    back = unflatten(got.state)
    assert torch.equal(back["w"], torch.eye(2))
    assert back["steps"] == {1: 5}


def test_received_tensors_own_their_memory(pair: Pair) -> None:
    WIRE.send_order(
        pair[0],
        BatchOrder([Job(1, "train", 0, 0, round=1, rounds=1, message=Means(torch.ones(3, 1), 1))], [0]),
    )
    message = WIRE.receive_order(pair[1]).batch[0].message
    assert isinstance(message, Means)
    assert message.rows.untyped_storage().nbytes() == 12
    assert message.rows.data_ptr() % 16 == 0
    message.rows.add_(1)


def test_an_answer_arrives_whole(pair: Pair) -> None:
    scores: dict[str, Score] = {"own": Score(3, 4, 0.1)}
    answer = Answer(7, 3, Means(torch.zeros(1), 2), scores, 0.25, 0.125, 12, 1.5, 100, 200)  # type: ignore[arg-type]
    WIRE.send_reports(pair[0], [JobReport(answer, 7, 0.5)])
    (report,) = WIRE.receive_reports(pair[1])
    assert (report.version, report.loading) == (7, 0.5)
    got = report.result
    assert isinstance(got, Answer)
    assert isinstance(got.payload, Means)
    assert got.scores == scores
    assert (got.train_loss, got.train_ce, got.trained_samples, got.seconds) == (0.25, 0.125, 12, 1.5)
    assert (got.bytes_down, got.bytes_up, got.state) == (100, 200, None)


def test_a_failure_arrives_whole(pair: Pair) -> None:
    failure = Failure(7, 3, "train: bad", "error", "trace\n")
    WIRE.send_reports(pair[0], [JobReport(failure, 0, 0.0)])
    assert WIRE.receive_reports(pair[1])[0].result == failure


def test_an_answer_of_another_type_is_invalid_as_the_loop_would_say(pair: Pair) -> None:
    WIRE.send_reports(pair[0], [JobReport(Answer(7, 3, EmptyPayload()), 7, 0.0)])
    (report,) = WIRE.receive_reports(pair[1])
    assert report.result == Failure(7, 3, "Expected a Means, got a EmptyPayload.", "invalid")
    assert report.version == 7


def test_a_message_of_another_type_is_refused_before_it_is_sent(pair: Pair) -> None:
    with pytest.raises(PayloadError, match="broadcast gave a EmptyPayload; the method declares Means"):
        WIRE.send_order(
            pair[0], BatchOrder([Job(1, "train", 0, 0, round=1, rounds=1, message=EmptyPayload())], [0])
        )


def test_a_closed_line_is_the_end(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(ConnectionError):
        WIRE.receive_order(pair[1])
