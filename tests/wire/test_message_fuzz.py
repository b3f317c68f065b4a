"""Fuzzed messages decode to a valid answer or raise PayloadError, and nothing else."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from potluck.core.errors import plain
from potluck.core.method import Update
from potluck.core.payload import Payload, PayloadError
from potluck.core.schema import Shape
from potluck.core.task import ClientInfo
from potluck.loop.records import PendingJob, Scores, record_step
from potluck.runs.writer import _finite
from potluck.wire import Message, encoded_size, from_bytes, pack_result, to_bytes, unpack_result
from potluck.wire.jobs import Answer, Failure, Job
from potluck.wire.score import Score
from potluck.wire.tensors import frame_header


@dataclass(frozen=True)
class Row(Payload):
    values: Annotated[Tensor, Shape(3)]
    steps: int


JOB = Job(7, "train", 1, 0, round=1, rounds=2, message=Row(torch.zeros(3), 1), tests=("own",))


def honest() -> Message:
    score = Score(2, 3, 1.5, 0.5, 0.25)
    return pack_result(
        Answer(7, 1, Row(torch.ones(3), 2), {"own": score}, 0.5, 0.5, 12, 0.1, 40, 41, {"temperature": 3.0})
    )


def test_an_honest_answer_comes_back_with_sizes_that_we_counted() -> None:
    answer = unpack_result(honest(), Row, JOB)
    assert isinstance(answer, Answer)
    assert (answer.scores["own"].correct, answer.train_loss, answer.notes) == (2, 0.5, {"temperature": 3.0})
    assert (answer.bytes_up, answer.bytes_down) == (
        encoded_size(Row(torch.ones(3), 2)),
        encoded_size(JOB.message),
    )


# -- one fact of an honest letter replaced by anything --------------------------------------------------------

WILD = st.recursive(
    st.sampled_from([None, True, -1, 0, 2**53 + 1, 10**4000, math.nan, -math.inf, 1e308, "", "x" * 5000, "\ud800"])
    | st.integers()
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))


PLACES = sorted(places(honest().facts), key=str)


@given(place=st.sampled_from(PLACES), wild=WILD)
def test_an_envelope_with_any_fact_changed_is_refused_or_sane(place: tuple[Any, ...], wild: Any) -> None:
    letter = honest()
    facts: Any = copy.deepcopy(letter.facts)
    if place:
        holder = facts
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = wild
    else:
        facts = wild
    try:
        text = json.dumps({"facts": facts, "enclosed": {}}).encode()
        read = from_bytes(len(text).to_bytes(8, "little") + text)
        result = unpack_result(Message(read.facts, letter.payload), Row, JOB)
    except PayloadError:
        return
    assert (result.job, result.client) == (7, 1)
    if isinstance(result, Answer):
        for score in result.scores.values():
            assert 0 <= score.correct <= score.samples <= 10**9
            assert 0 <= score.accuracy <= 1
            assert score.samples > 0
        recordable(result)


def recordable(answer: Answer) -> None:
    """A step with this answer is written down as JSON that any reader takes."""
    flight = PendingJob(JOB, 0, 1.0, answer)
    update = Update(ClientInfo(1, "one", 5, "net"), answer.payload, 0, 1.0, JOB.message)
    record = record_step(
        step=1, round_number=1, protocol="local", arrived=[flight], updates=[update], failures=[],
        scores=Scores(), seconds=1.0, virtual_seconds=1.0, notes={},
    )  # fmt: skip
    text = json.dumps(_finite(asdict(record)), allow_nan=False)
    assert len(text) < 10_000


# -- bytes ----------------------------------------------------------------------------------------------------

BYTES = to_bytes(honest())


@given(data=st.data())
def test_bytes_that_were_changed_anywhere_are_refused_or_read(data: Any) -> None:
    changed = bytearray(BYTES)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        changed[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    with contextlib.suppress(PayloadError):
        unpack_result(from_bytes(bytes(changed)), Row, JOB)


@given(st.binary(max_size=64))
def test_bytes_that_are_anything_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        from_bytes(data)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"facts":['])
def test_nesting_without_end_is_refused(opening: str) -> None:
    text = (opening * 9000).encode()
    with pytest.raises(PayloadError, match="could not be read"):
        from_bytes(len(text).to_bytes(8, "little") + text)


def test_an_image_that_claims_more_than_there_is_allocates_nothing() -> None:
    head = {"x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    encode_tensors = frame_header({"__metadata__": {"potluck": '{"layout": {}}'}, **head})
    letter = (
        frame_header({"facts": {}, "enclosed": {"payload": len(encode_tensors) + 4 * 10**12}})
        + encode_tensors
    )
    with pytest.raises(PayloadError):
        from_bytes(letter)


# -- texts ----------------------------------------------------------------------------------------------------


def test_a_refusal_without_end_is_cut_and_steers_no_terminal() -> None:
    failure = Failure(1, 1, "no\x1b[2J\x07 room \ud800\u202e " + "x" * 30_000_000, "error", "t" * 10**6)
    assert len(failure.reason) < 2100
    assert len(failure.trace) < 20_100
    assert failure.reason.startswith("no\ufffd[2J\ufffd room \ufffd\ufffd ")
    failure.reason.encode()  # can be written


def test_long_tensor_names_are_cut_in_the_reason() -> None:
    letter = honest()
    assert letter.payload is not None
    letter.payload.tensors["y" * 10**6] = torch.zeros(1)
    failure = unpack_result(letter, Row, JOB)
    assert isinstance(failure, Failure)
    assert len(failure.reason) < 2100


def test_lines_and_tabs_stay() -> None:
    assert plain("one\n\ttwo — ü\r") == "one\n\ttwo — ü\ufffd"


def test_unrequested_message_parts_are_dropped() -> None:
    letter = honest()
    big = Message(letter.facts, letter.payload, letter.payload)
    answer = unpack_result(big, Row, JOB)
    assert isinstance(answer, Answer)
    assert answer.state is None
    tested = unpack_result(big, Row, Job(7, "evaluate", 1, 0, round=1, rounds=2, tests=("own",)))
    assert isinstance(tested, Answer)
    assert tested.payload is None
