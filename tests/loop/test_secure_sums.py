"""Secure sums in the loop: the plain result within rounding, drop-outs, wrong messages, bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from potluck import methods
from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.tree import Flat
from potluck.engines.serial import SerialEngine
from potluck.federation.federation import Federation
from potluck.loop.loop import Loop, TooFewClients
from potluck.loop.schedule import Clock, Evaluation, Schedule
from potluck.privacy.fixed_form import summation
from potluck.privacy.secure_aggregation import SumFailed
from potluck.privacy.settings import Privacy
from potluck.privacy.sum_stages import KEPT, StageRequest, sum_group
from potluck.wire import encoded_size
from potluck.wire.jobs import Answer, Failure, Job
from potluck.worker.worker import Worker
from support.tiny import Recorder, tiny

SUMS = Privacy(secure_sums=True)
CLASSES = [(0, 1), (1, 2), (0, 2), (0, 1, 2)]
Change = Callable[[Job, Answer | Failure], Answer | Failure]


class ChangingEngine(SerialEngine):
    """The serial engine with something else in the place of a result."""

    def __init__(self, worker: Worker, change: Change) -> None:
        super().__init__(worker)
        self._sent: dict[int, Job] = {}
        self._change = change

    def submit(self, job: Job) -> None:
        self._sent[job.id] = job
        super().submit(job)

    def results(self) -> Iterator[Answer | Failure]:
        for result in super().results():
            yield self._change(self._sent[result.job], result)


def loop_of(
    method: Method[Any, Any, Any],
    privacy: Privacy | None = SUMS,
    fed: Federation | None = None,
    *,
    rounds: int = 1,
    change: Change = lambda job, result: result,
    **schedule: Any,
) -> Loop:
    fed = fed or tiny(4, hidden=(5,), classes_of=CLASSES, sizes=(12, 20, 7))
    engine = ChangingEngine(Worker(method, fed.client, privacy=privacy), change)
    recorder = Recorder()
    loop = Loop(
        method, fed.task, engine, Schedule(rounds, **schedule), Evaluation(), [recorder],
        shared_test=fed.shared_test, privacy=privacy,
    )  # fmt: skip
    loop.recorder = recorder  # type: ignore[attr-defined]
    return loop


def state_of(loop: Loop) -> dict[str, torch.Tensor]:
    return tree.flatten(loop.run().state).tensors


def largest_difference(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert state.keys() == expected.keys()
    return max(float((state[name].double() - expected[name].double()).abs().max()) for name in state)


AVERAGES: list[Callable[[], Method[Any, Any, Any]]] = [
    methods.FedAvg,
    lambda: methods.FedAvg(weight="uniform"),
    methods.FedProx,
    methods.LGFedAvg,
    lambda: methods.LGFedAvg(weight="uniform"),
    methods.PFedAFM,
    methods.FML,
    methods.FedProto,
    lambda: methods.FedProto(aggregate="weighted"),
    lambda: methods.FedMD(public_samples=5),
]


@pytest.mark.parametrize("make", AVERAGES)
@pytest.mark.parametrize("width", [3, 4, 8])
def test_average_is_the_plain_one_within_half_a_step_per_sender(make: Any, width: int) -> None:
    privacy = replace(SUMS, sum_bytes=width, sum_range=50.0)
    loop = loop_of(make(), privacy)
    plain, summed = state_of(loop_of(make(), None)), state_of(loop)
    assert loop.sums is not None
    weights = [loop.sums.forms.weight(info.samples) for info in loop.task.clients]
    how = summation(privacy, sum(weights), len(weights))
    # A class has at least two senders; where samples count, each has seven rows or more, and a class at least four.
    least = 2.0 if max(weights) == 1 else 4.0
    bound = how.error(len(weights), min(least, sum(weights)))
    assert 0 < largest_difference(plain, summed) <= bound


def test_error_of_a_sum_is_as_stated() -> None:
    """Three bytes, range 50, weights 12 + 20 + 8 + 12 = 52: a step is 50 · 52 / (2²³ - 5)."""
    how = summation(replace(SUMS, sum_bytes=3, sum_range=50.0), 52.0, 4)
    assert how.step == pytest.approx(50 * 52 / (2**23 - 5))
    assert how.error(4, 52.0) == pytest.approx(2 * 50 / (2**23 - 5))
    assert how.step * (2**23 - 1) > 50 * 52 + 2 * how.step  # no sum leaves the width


def test_class_outputs_of_fd_and_the_head_of_fedgh_are_close_to_the_plain_ones() -> None:
    assert largest_difference(*(fd_rows(privacy) for privacy in (None, SUMS))) < 1e-4
    plain, summed = (
        state_of(loop_of(methods.FedGH(server_mode="averaged"), privacy)) for privacy in (None, SUMS)
    )
    assert 0 < largest_difference(plain, summed) < 1e-5


def fd_rows(privacy: Privacy | None) -> dict[str, torch.Tensor]:
    state = loop_of(methods.FD(), privacy).run().state
    return {"rows": state.table.rows, "known": state.table.known}


def test_statistics_of_fedcgs_are_added_once_per_client() -> None:
    fed = tiny(4, hidden=(5,))
    plain, summed = (
        loop_of(methods.FedCGS(), privacy, fed, rounds=3).run().state for privacy in (None, SUMS)
    )
    assert summed.received == plain.received == {info.name: 1 for info in fed.task.clients}
    (name,) = plain.groups
    assert float(plain.groups[name]["counts"].sum()) == sum(info.samples for info in fed.task.clients)
    assert torch.equal(plain.groups[name]["counts"], summed.groups[name]["counts"])
    assert torch.allclose(plain.groups[name]["products"], summed.groups[name]["products"], atol=1e-3)


def test_tensors_shared_by_name_are_averaged_over_architectures() -> None:
    """Each architecture has a sum of its own; the method then averages these by samples."""
    fed = tiny(6, hidden=(5, 7), sizes=(12, 20, 7))
    make = lambda: methods.FedAvg(aggregate="same_arch")  # noqa: E731
    plain, summed = state_of(loop_of(make(), None, fed)), state_of(loop_of(make(), SUMS, fed))
    assert len(fed.task.architectures) == 2
    assert 0 < largest_difference(plain, summed) < 1e-4


def test_server_never_receives_a_single_answer() -> None:
    loop = loop_of(methods.LGFedAvg())
    answers: list[Answer] = []

    def watch(job: Job, result: Answer | Failure) -> Answer | Failure:
        assert isinstance(result, Answer)
        answers.append(result)
        return result

    loop = loop_of(methods.LGFedAvg(), change=watch)
    loop.run()
    assert all(result.payload is None for result in answers)
    masked = [
        result.sums.tensors["masked"] for result in answers if result.sums and "masked" in result.sums.tensors
    ]
    assert len(masked) == 4
    updates = [update for _, update in loop.recorder.updates]  # type: ignore[attr-defined]
    first = updates[0].payload.weights
    assert len(updates) == 4
    assert all(torch.equal(update.payload.weights[name], first[name]) for update in updates for name in first)


def test_masked_numbers_look_uniform() -> None:
    masked: list[torch.Tensor] = []

    def watch(job: Job, result: Answer | Failure) -> Answer | Failure:
        if isinstance(result, Answer) and result.sums and "masked" in result.sums.tensors:
            masked.append(result.sums.tensors["masked"])
        return result

    loop_of(methods.FedAvg(), change=watch, rounds=3).run()
    values = torch.cat(masked).double()
    assert len(values) > 2000
    assert (
        abs(float(values.mean()) - 127.5) < 5 * 73.9 / len(values) ** 0.5
    )  # 73.9: deviation of a uniform byte


def gone(stage: str, *clients: int) -> Change:
    def change(job: Job, result: Answer | Failure) -> Answer | Failure:
        request = job.kind if job.sums is None else StageRequest.read(job.sums).stage
        if request == stage and job.client in clients:
            return Failure(job.id, job.client, "the node is not connected", "lost")
        return result

    return change


def wants(*clients: int) -> dict[str, torch.Tensor]:
    """The plain average of these clients' heads."""
    missing = [index for index in range(4) if index not in clients]
    return state_of(loop_of(methods.LGFedAvg(), None, change=gone("train", *missing), min_clients=0))


@pytest.mark.parametrize("stage", ["train", "deal", "mask"])
def test_client_that_drops_out_is_not_in_the_sum(stage: str) -> None:
    loop = loop_of(methods.LGFedAvg(), change=gone(stage, 2))
    assert largest_difference(state_of(loop), wants(0, 1, 3)) < 1e-4
    record = loop.recorder.steps[0].record  # type: ignore[attr-defined]
    assert record.participants == [0, 1, 3]
    assert [failure["client"] for failure in record.failures] == [2]
    assert "the node is not connected" in record.failures[0]["reason"]


def test_client_that_drops_out_after_its_masked_answer_is_in_the_sum() -> None:
    loop = loop_of(methods.LGFedAvg(), change=gone("reveal", 2))
    assert largest_difference(state_of(loop), wants(0, 1, 2, 3)) < 1e-4


def test_fewer_clients_than_the_threshold_open_nothing() -> None:
    with pytest.raises(TooFewClients, match="2 of 4 clients sent a masked answer, and its threshold is 3"):
        loop_of(methods.LGFedAvg(), change=gone("mask", 1, 2)).run()
    loop = loop_of(methods.LGFedAvg(), change=gone("mask", 1, 2), min_clients=0)
    before = tree.flatten(loop.progress.state).tensors
    assert largest_difference(state_of(loop), before) == 0
    with pytest.raises(TooFewClients, match=r"2 clients answered, fewer than privacy.sum_clients = 3"):
        loop_of(methods.LGFedAvg(), change=gone("train", 1, 2)).run()


@pytest.mark.parametrize(("members", "expected"), [(3, 3), (4, 3), (5, 3), (10, 6), (100, 60)])
def test_threshold_is_more_than_half_and_at_least_the_fewest_of_a_sum(members: int, expected: int) -> None:
    assert sum_group(SUMS, 1, range(members)).threshold == expected


def test_answer_in_the_clear_and_another_form_are_refused() -> None:
    def clear(job: Job, result: Answer | Failure) -> Answer | Failure:
        if job.kind == "train" and job.client == 0 and isinstance(result, Answer):
            return replace(result, sums=None, payload=job.message)
        return result

    loop = loop_of(methods.LGFedAvg(), change=clear)
    loop.run()
    (failure,) = loop.recorder.steps[0].record.failures  # type: ignore[attr-defined]
    assert failure["reason"] == "the answer is not masked, and privacy.secure_sums is set"

    def other_form(job: Job, result: Answer | Failure) -> Answer | Failure:
        if job.kind == "train" and job.client == 0 and isinstance(result, Answer) and result.sums:
            layout = {"form": [["weights.weight", [9, 9]]]}
            return replace(result, sums=Flat(result.sums.tensors, layout))
        return result

    loop = loop_of(methods.LGFedAvg(), change=other_form)
    loop.run()
    (failure,) = loop.recorder.steps[0].record.failures  # type: ignore[attr-defined]
    assert "another form" in failure["reason"]


NO_LIST = "the form of an answer is not a list of 1 to 100000 entries."


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (None, "The message has no announcement."),
        ({}, NO_LIST),
        ({"form": []}, NO_LIST),
        (
            {"form": [["weights.weight", [10**9, 10**9]]]},
            "The form of an answer is larger than schedule.max_payload_mb.",
        ),
        ({"form": [["nothing", [3]]]}, "Head has no field 'nothing'."),
        ({"form": [["weights.a", [3]], ["weights.a", [3]]]}, "The form of an answer names a part twice."),
        ({"form": [["weights.a", [-1]]]}, "a size is not an integer from 0 to 1000000000."),
        ({"form": 3}, NO_LIST),
    ],
)
def test_malformed_announcement_fails_its_client_alone(layout: Any, reason: str) -> None:
    def change(job: Job, result: Answer | Failure) -> Answer | Failure:
        if job.kind == "train" and job.client == 0 and isinstance(result, Answer) and result.sums:
            return replace(result, sums=Flat(result.sums.tensors, layout))
        return result

    loop = loop_of(methods.LGFedAvg(), change=change)
    loop.run()
    record = loop.recorder.steps[0].record  # type: ignore[attr-defined]
    assert record.participants == [1, 2, 3]
    (failure,) = record.failures
    assert (failure["client"], failure["kind"]) == (0, "invalid")
    assert failure["reason"] == reason


def test_value_beyond_the_range_is_a_sentence_of_the_client() -> None:
    with pytest.raises(PotluckError, match=r"holds .* beyond privacy.sum_range = 0.001; raise it"):
        loop_of(methods.LGFedAvg(), replace(SUMS, sum_range=0.001)).run()


def test_bytes_of_all_stages_are_counted() -> None:
    loop = loop_of(methods.LGFedAvg())
    loop.run()
    record = loop.recorder.steps[0].record  # type: ignore[attr-defined]
    plain = loop_of(methods.LGFedAvg(), None)
    plain.run()
    before = plain.recorder.steps[0].record  # type: ignore[attr-defined]
    assert record.floats_up == before.floats_up
    numbers = before.floats_up * 4  # four bytes each
    boxes, shares, keys = 4 * 4 * (2 * 66 + 28), 4 * 4 * 66, 4 * 96
    headers = record.bytes_up - numbers - boxes - shares - keys
    assert 0 < headers < 4 * 4 * 400
    message = loop.recorder.sent[0][2]  # type: ignore[attr-defined]
    assert record.bytes_down > 4 * encoded_size(message) + 4 * 3 * 4 * 96 + boxes


def test_client_refuses_small_groups_and_sums_that_it_is_not_in() -> None:
    fed = tiny(4, hidden=(5,))
    worker = Worker(methods.LGFedAvg(), fed.client, privacy=SUMS)
    loop = loop_of(methods.LGFedAvg(), fed=fed)
    context = loop.server.context()
    keys = {}
    for index in range(4):
        message = loop.server.message(fed.task.clients[index], context)
        sent = worker.run(Job(index + 1, "train", index, 0, round=1, rounds=1, message=message))
        assert isinstance(sent, Answer)
        assert sent.sums is not None
        from potluck.privacy.sum_stages import PUBLIC_BYTES, rows_of_bytes, split_keys

        keys[index] = split_keys(rows_of_bytes(sent.sums, "keys", 1, PUBLIC_BYTES)[0])

    def stage(*members: int, client: int = 0) -> Answer | Failure:
        request = StageRequest("deal", members, {member: keys[member] for member in members})
        return worker.run(Job(9, "sum", client, 1, round=1, rounds=1, sums=request.flat()))

    assert isinstance(stage(0, 1, 2), Answer)
    small, foreign = stage(0, 1), stage(1, 2, 3)
    assert isinstance(small, Failure)
    assert "below privacy.sum_clients = 3" in small.reason
    assert isinstance(foreign, Failure)
    assert "no member" in foreign.reason
    worker.client(0).private.pop(KEPT)
    empty = stage(0, 1, 2)
    assert isinstance(empty, Failure)
    assert "no answer" in empty.reason
    assert issubclass(SumFailed, PotluckError)


def test_messages_of_a_sum_take_their_time_on_the_virtual_clock() -> None:
    """Every upload takes two seconds: the answers after one of work, and those of each further stage after that."""
    clocks = []
    for privacy in (None, SUMS):
        loop = loop_of(methods.FedAvg(), privacy)
        loop.dispatcher.clock = Clock(upload=lambda client, size: 2.0)
        clocks.append(loop.run().clock)
    plain, summed = clocks
    assert plain == 1.0 + 2.0
    assert summed > plain
    assert (summed - plain) % 2.0 == 0
