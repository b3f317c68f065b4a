"""Payloads: flatten and back, counting, copies."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from potluck import wire as codec
from potluck.core.payload import EmptyPayload, Payload, PayloadError, Tensors


@dataclass(frozen=True)
class Example(Payload):
    table: Tensor
    weights: Tensors
    rate: float
    extra: Tensor | None = None


def example(**more: object) -> Example:
    values = {"table": torch.arange(6.0).view(2, 3), "weights": {"a.b": torch.ones(4)}, "rate": 0.5, **more}
    return Example(**values)  # type: ignore[arg-type]


def test_flatten_names_and_counts_every_number():
    tensors, scalars = example().flatten()
    assert set(tensors) == {"table", "weights.a.b"}
    assert scalars == {"rate": 0.5}
    assert example().numel() == 6 + 4 + 1
    assert example(extra=torch.zeros(2)).numel() == 13
    assert EmptyPayload().numel() == 0


def test_bytes_and_back():
    message = example(extra=torch.tensor([1, 2]))
    back = codec.decode(Example, codec.encode(message))
    assert torch.equal(back.table, message.table)
    assert torch.equal(back.weights["a.b"], message.weights["a.b"])
    assert torch.equal(back.extra, torch.tensor([1, 2]))
    assert back.rate == 0.5
    assert codec.decode(Example, codec.encode(example())).extra is None


def test_the_empty_message_costs_no_bytes():
    assert codec.encode(EmptyPayload()) == b""
    assert codec.decode(EmptyPayload, b"") == EmptyPayload()


def test_size_equals_the_encoded_length():
    assert codec.encoded_size(example()) == len(codec.encode(example()))
    assert codec.encoded_size(example()) > 4 * (6 + 4)


def test_tensors_that_share_memory_are_encoded_apart():
    shared = torch.ones(3)
    message = example(table=shared, weights={"a": shared})
    assert torch.equal(codec.decode(Example, codec.encode(message)).weights["a"], shared)


def test_copy_shares_nothing():
    source = torch.zeros(3, requires_grad=True)
    copy = example(table=source * 1).copy()
    assert not copy.table.requires_grad
    message = example()
    duplicate = message.copy()
    message.table.add_(1)
    message.weights["a.b"].zero_()
    assert duplicate.table[0, 0] == 0
    assert duplicate.weights["a.b"].sum() == 4


@pytest.mark.parametrize(
    ("tensors", "scalars", "says"),
    [
        ({}, {"rate": 1.0}, "lacks its field 'table'"),
        ({"table": torch.zeros(1), "odd": torch.zeros(1)}, {"rate": 1.0}, "no field 'odd'"),
        ({"table": torch.zeros(1)}, {}, "lacks its field 'rate'"),
    ],
)
def test_a_wrong_form_is_refused(tensors: Tensors, scalars: dict[str, float], says: str):
    with pytest.raises(PayloadError, match=says):
        Example.unflatten(tensors, scalars)


@pytest.mark.parametrize("data", [b"x", b"\xff" * 40, codec.encode(example())[:-3]])
def test_bytes_that_are_no_payload_are_refused(data: bytes):
    with pytest.raises(PayloadError, match="could not be read"):
        codec.decode(Example, data)


def test_a_field_of_another_type_is_a_programming_error():
    @dataclass(frozen=True)
    class Odd(Payload):
        name: str

    with pytest.raises(TypeError, match=r"Odd\.name"):
        Odd.unflatten({}, {})
