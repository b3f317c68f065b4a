"""What a payload promises is checked before the server sees it."""

import pytest
import torch

from potluck.core.payload import PayloadError
from potluck.core.schema import check_payload
from potluck.core.sharing import Weights
from potluck.methods.fedgh import ClassMeans, Header
from tiny import tiny

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
        (Header({}), "Expected a ClassMeans"),
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


def test_a_whole_header_is_asked_for():
    with pytest.raises(PayloadError, match="lacks the tensor 'bias'"):
        check_payload(Header({"weight": torch.zeros(3, 3, dtype=torch.float64)}), Header, TASK, CLIENT)


def test_size_limit():
    with pytest.raises(PayloadError, match="ClassMeans is 0.0 MB, more than schedule.max_payload_mb"):
        check_payload(means(), ClassMeans, TASK, CLIENT, max_bytes=63)
