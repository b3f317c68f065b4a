"""Payloads are checked against their declarations before the server sees them."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor

from potluck import wire as codec
from potluck.core.payload import Payload, PayloadError
from potluck.core.schema import Counts, Range, Shape, check_payload
from potluck.kit import ClassMeans, Head, Weights
from potluck.methods.fedavg import FedAvg
from potluck.wire.jobs import Failure
from support.tiny import Recorder, make_loop, tiny

TASK = tiny(2).task
CLIENT = TASK.clients[0]


def means(
    rows: int = 2, size: int = 3, labels: tuple[int, ...] = (0, 2), dtype: torch.dtype = torch.float64
) -> ClassMeans:
    return ClassMeans(torch.zeros(rows, size, dtype=dtype), torch.tensor(labels))


def test_a_good_answer_passes():
    check_payload(means(), ClassMeans, TASK, CLIENT)
    check_payload(
        ClassMeans(torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)),
        ClassMeans,
        TASK,
        CLIENT,
    )


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (means(size=4), "ClassMeans.means has shape"),
        (means(rows=3), "ClassMeans.labels has shape"),
        (means(labels=(0, 3)), "outside 0…2"),
        (means(labels=(-1, 0)), "outside 0…2"),
        (means(labels=(1, 1)), "names a class twice"),
        (means(dtype=torch.float32), "must be torch.float64"),
        (ClassMeans(torch.full((1, 3), float("nan"), dtype=torch.float64), torch.tensor([0])), "not finite"),
        (
            ClassMeans(torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.int32)),
            "must be torch.int64",
        ),
        (Head({}), "Expected a ClassMeans"),
    ],
)
def test_a_bad_answer_is_refused_with_its_reason(payload: object, says: str):
    with pytest.raises(PayloadError, match=says):
        check_payload(payload, ClassMeans, TASK, CLIENT)  # type: ignore[arg-type]


def test_weights_must_fit_the_clients_architecture():
    good = {"head.weight": torch.zeros(3, 3, dtype=torch.float64)}
    check_payload(Weights(good), Weights, TASK, CLIENT)
    for bad, says in (
        ({"head.weight": torch.zeros(3, 4, dtype=torch.float64)}, "has shape"),
        ({"tail.weight": torch.zeros(3, 3, dtype=torch.float64)}, "unknown tensor"),
        ({"head.weight": torch.zeros(3, 3)}, "must be torch.float64"),
    ):
        with pytest.raises(PayloadError, match=says):
            check_payload(Weights(bad), Weights, TASK, CLIENT)


def test_incomplete_head_is_rejected():
    with pytest.raises(PayloadError, match="lacks the tensor 'bias'"):
        check_payload(Head({"weight": torch.zeros(3, 3, dtype=torch.float64)}), Head, TASK, CLIENT)


def test_size_limit():
    with pytest.raises(PayloadError, match="ClassMeans is 0.0 MB, more than schedule.max_payload_mb"):
        check_payload(means(), ClassMeans, TASK, CLIENT, max_bytes=63)


@dataclass(frozen=True)
class Told(Payload):
    counts: Annotated[Tensor, Shape("classes"), Counts()]
    steps: Annotated[float, Range(0)] = 1.0


def told_payload(counts: list[int], steps: Any = 1.0, dtype: torch.dtype = torch.int64) -> Told:
    return Told(torch.tensor(counts, dtype=dtype), steps)


def test_counts_must_be_plausible_for_a_client_of_twelve_samples():
    check_payload(told_payload([12, 0, 0]), Told, TASK, CLIENT)
    for bad in ([13, 0, 0], [6, 6, 1], [-1, 0, 0], [2**62, 2**62, 2**62]):
        with pytest.raises(PayloadError, match="sum to at most the client's 12 samples"):
            check_payload(told_payload(bad), Told, TASK, CLIENT)
    with pytest.raises(PayloadError, match="must be torch.int64"):
        check_payload(told_payload([1, 1, 1], dtype=torch.int32), Told, TASK, CLIENT)


@pytest.mark.parametrize("steps", [float("nan"), float("inf"), -1.0, 10**400, 2e9, True, "1", None, [1.0]])
def test_a_number_must_be_one(steps: Any):
    with pytest.raises(PayloadError, match=r"Told\.steps"):
        check_payload(told_payload([1, 1, 1], steps), Told, TASK, CLIENT)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (torch.zeros(2, 3, dtype=torch.float64).to_sparse(), "plain dense tensor"),
        (torch.zeros(2, 3, dtype=torch.complex128), "real numbers"),
        (torch.zeros(2, 3, dtype=torch.float64, device="meta"), "lies on 'meta'"),
        (torch.zeros(2, 3, dtype=torch.float64, requires_grad=True), "carries a gradient"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "must be torch.float64"),
        (torch.zeros((), dtype=torch.float64), "has shape"),
        (torch.full((2, 3), 2e9, dtype=torch.float64), "beyond ±1e\\+09"),
        ([[0.0] * 3] * 2, "must be a tensor, not a list"),
        (None, "must be a tensor, not nothing"),
    ],
)
def test_unsupported_tensors_are_rejected(tensor: Any, says: str):
    with pytest.raises(PayloadError, match=says):
        check_payload(ClassMeans(tensor, torch.tensor([0, 2])), ClassMeans, TASK, CLIENT)


def test_expanded_tensors_are_measured_by_their_declared_size():
    huge = ClassMeans(torch.zeros((), dtype=torch.float64).expand(10**9, 10**6), torch.tensor([0]))
    with pytest.raises(PayloadError, match=r"more than schedule\.max_payload_mb = 1\."):
        check_payload(huge, ClassMeans, TASK, CLIENT, max_bytes=2**20)


def test_a_negative_variance_is_refused():
    fed = tiny(2, norm=True)
    size = fed.task.architectures[fed.task.clients[0].architecture].initial["body.1.running_var"].shape
    bad = Weights({"body.1.running_var": torch.full(size, -0.1, dtype=torch.float64)})
    with pytest.raises(PayloadError, match="is a variance"):
        check_payload(bad, Weights, fed.task, fed.task.clients[0])


@pytest.mark.parametrize(
    "text",
    ["[" * 9000, "null", "[]", '{"counts": 1}', '{"steps": "1"}', '{"steps": [1]}', '{"steps": true}', "{"],
)
def test_bytes_that_lie_about_their_numbers_are_refused(text: str):
    import safetensors.torch

    data = safetensors.torch.save({"counts": torch.tensor([1, 1, 1])}, {"potluck": text})
    with pytest.raises(PayloadError):
        codec.decode(Told, data)


def test_a_server_step_that_would_end_in_not_a_number_is_taken_back():
    class Fragile(FedAvg):
        def server(self, state: Any, updates: Any, ctx: Any) -> Any:
            state = super().server(state, updates, ctx)
            if ctx.round == 2:
                next(iter(next(iter(state.values())).values())).fill_(float("nan"))
            return state

    watcher = Recorder()
    loop = make_loop(Fragile(), tiny(2), rounds=3, callbacks=[watcher], min_clients=0)
    loop.run()

    kinds = [[failure.kind for failure in step.failures] for step in watcher.steps]
    assert kinds == [[], ["invalid", "invalid"], []]
    assert all(
        isinstance(failure, Failure) and "finite" in failure.reason for failure in watcher.steps[1].failures
    )
    first, second = (message for number, client, message in watcher.sent if number in (2, 3) and client == 0)
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)
