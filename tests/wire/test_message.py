"""Messages as bytes: readable by any safetensors reader, with a predictable size."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from potluck.core.payload import EmptyPayload, Payload, PayloadError, Tensors
from potluck.core.tree import Flat
from potluck.wire import (
    decode,
    decode_state,
    encode,
    encode_state,
    encode_tensors,
    encoded_size,
    from_bytes,
    load_state,
    pack_job,
    save_state,
    to_bytes,
    unpack_job,
)
from potluck.wire.jobs import Job

KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
KINDS += [torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]


@dataclass(frozen=True)
class Mixed(Payload):
    table: Tensor
    weights: Tensors
    count: int
    share: float | None


def mixed() -> Mixed:
    table = torch.arange(6.0).reshape(2, 3).t()
    weights = {'odd "näme"': torch.tensor(2.5, dtype=torch.bfloat16), "empty": torch.empty(0, 4)}
    return Mixed(table, weights, 3, 0.1)


def test_payload_roundtrip_has_the_predicted_size() -> None:
    data = encode(mixed())
    assert encoded_size(mixed()) == len(data)
    back = decode(Mixed, data)
    assert torch.equal(back.table, mixed().table)
    assert torch.equal(back.weights['odd "näme"'], torch.tensor(2.5, dtype=torch.bfloat16))
    assert back.weights["empty"].shape == (0, 4)
    assert (back.count, back.share) == (3, 0.1)
    assert encode(EmptyPayload()) == b""
    assert encoded_size(EmptyPayload()) == 0


def test_every_kind_of_number_is_read_by_the_safetensors_library() -> None:
    tensors = {str(kind): torch.tensor([[1, 0, 1]]).to(kind) for kind in KINDS}
    data = encode_state(Flat(tensors, None))
    read = safetensors.torch.load(data)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_states_survive_memory_and_disk(tmp_path: Path) -> None:
    shared = torch.randn(3)
    flat = Flat({"a": shared, "b": shared}, {"list": [1, "ü", None]})
    save_state(tmp_path / "state", flat)
    for back in (decode_state(encode_state(flat)), load_state(tmp_path / "state")):
        assert back.layout == flat.layout
        assert torch.equal(back.tensors["a"], shared)
        assert torch.equal(back.tensors["b"], shared)


def test_tensors_lie_aligned_and_come_back_in_the_order_given() -> None:
    tensors = {"small": torch.ones(3, dtype=torch.uint8), "wide": torch.ones(2, dtype=torch.float64)}
    head, *buffers = encode_tensors(Flat(tensors, {"x": 1}))
    assert [len(buffer) for buffer in buffers] == [16, 3]  # wide numbers first
    assert len(head) % 8 == 0
    back = decode_state(encode_state(Flat(tensors, {"x": 1})))
    assert list(back.tensors) == ["small", "wide"]
    assert back.layout == {"x": 1}


@pytest.mark.parametrize("data", [b"x", b"\x02\0\0\0\0\0\0\0{}", encode(mixed())[:-1]])
def test_bytes_that_are_no_payload_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError, match="could not be read"):
        decode(Mixed, data)


def test_a_number_type_without_a_name_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"'table' is torch.complex128, which cannot be sent"):
        encode(Mixed(torch.ones(1, dtype=torch.complex128), {}, 1, None))


def test_a_single_number_of_any_stride_travels() -> None:
    """One row out of an expanded tensor is contiguous with a stride of 0."""
    odd = torch.tensor(7).expand(1)
    assert odd.stride() == (0,)
    assert decode_state(encode_state(Flat({"x": odd}, None))).tensors["x"].tolist() == [7]


def test_job_roundtrip_keeps_every_field():
    """Jobs under way are saved as letters: what is lost on the way is another value after a resume."""
    job = Job(
        3,
        "train",
        1,
        2,
        round=4,
        rounds=5,
        message=EmptyPayload(),
        tests=("own", "shared"),
        state=None,
        details=True,
        epochs=7,
        step=6,
    )
    unlike = {field.name for field in fields(Job) if getattr(job, field.name) != field.default}
    assert unlike | {"state", "sums"} == {field.name for field in fields(Job)}  # no facts: they are enclosed
    assert unpack_job(from_bytes(to_bytes(pack_job(job))), EmptyPayload) == job
