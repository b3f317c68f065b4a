"""The one letter: jobs, answers, failures and states as bytes, and back, on every engine and in every checkpoint.

A letter is an envelope (JSON) and what it encloses, each a plain safetensors image: a payload, a state. The size of the
payload's image is what `bytes_up` and `bytes_down` count; every engine sends that very image. Never pickle.

Letters come from other parties. The reader raises nothing but `PayloadError`, whatever stands in them, takes no memory
for what is not there, and believes no number of the envelope that it has not looked at.
"""

from potluck.loop.letter.envelope import MAX_ROWS, items, mapping, one_of, real, text, whole
from potluck.loop.letter.image import (
    Buffer,
    as_bytes,
    decode,
    decode_state,
    encode,
    encode_state,
    encoded_size,
    image,
    load_state,
    save_state,
)
from potluck.loop.letter.letter import Letter, from_bytes, pieces, receive, section, send, to_bytes
from potluck.loop.letter.packing import (
    pack_job,
    pack_result,
    unpack_job,
    unpack_result,
)
from potluck.loop.letter.scores import check_scores, pack_scores, unpack_scores

__all__ = [
    "MAX_ROWS",
    "Buffer",
    "Letter",
    "as_bytes",
    "check_scores",
    "decode",
    "decode_state",
    "encode",
    "encode_state",
    "encoded_size",
    "from_bytes",
    "image",
    "items",
    "load_state",
    "mapping",
    "one_of",
    "pack_job",
    "pack_result",
    "pack_scores",
    "pieces",
    "real",
    "receive",
    "save_state",
    "section",
    "send",
    "text",
    "to_bytes",
    "unpack_job",
    "unpack_result",
    "unpack_scores",
    "whole",
]
