"""Messages: jobs, answers, failures and states as bytes, and back, on every engine and in every checkpoint.

A message is a JSON header, and a payload and a state in safetensors format. `bytes_up` and `bytes_down` are the encoded
size of the payload. Nothing is pickled.

Messages come from other parties. Whatever they contain, the decoder raises nothing but `PayloadError`, allocates no
memory for what is not there, and checks every number of the header before using it.
"""

from potluck.wire.encoding import (
    check_scores,
    pack_job,
    pack_result,
    pack_scores,
    unpack_job,
    unpack_result,
    unpack_scores,
)
from potluck.wire.header import MAX_ROWS, bounded_list, choice, integer, number, string, table
from potluck.wire.message import Message, from_bytes, message_buffers, receive, section, send, to_bytes
from potluck.wire.tensors import (
    Buffer,
    as_bytes,
    decode,
    decode_state,
    encode,
    encode_state,
    encode_tensors,
    encoded_size,
    encoded_tensors_size,
    load_state,
    save_state,
)

__all__ = [
    "MAX_ROWS",
    "Buffer",
    "Message",
    "as_bytes",
    "bounded_list",
    "check_scores",
    "choice",
    "decode",
    "decode_state",
    "encode",
    "encode_state",
    "encode_tensors",
    "encoded_size",
    "encoded_tensors_size",
    "from_bytes",
    "integer",
    "load_state",
    "message_buffers",
    "number",
    "pack_job",
    "pack_result",
    "pack_scores",
    "receive",
    "save_state",
    "section",
    "send",
    "string",
    "table",
    "to_bytes",
    "unpack_job",
    "unpack_result",
    "unpack_scores",
]
