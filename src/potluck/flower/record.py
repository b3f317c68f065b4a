"""Wire messages in Flower messages: what the server sends and reads."""

from __future__ import annotations

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from potluck.core.errors import plain
from potluck.core.payload import PayloadError
from potluck.flower.content import content_bytes, to_content
from potluck.flower.node.registration import read_message
from potluck.flower.transfers import PARSE_ERRORS
from potluck.wire import Message as WireMessage
from potluck.wire import to_bytes


def to_record(message: WireMessage) -> RecordDict:
    """Return the content of a Flower message."""
    return to_content(to_bytes(message))


def from_record(content: RecordDict, limit: int) -> WireMessage:
    """Read what `to_record` made; the content of another app, or more than `limit` bytes, is not read."""
    return read_message(content_bytes(content), limit)


def read(reply: Message, limit: int) -> WireMessage:
    """Return the message in a reply; any error of a record of another form is raised as a refusal."""
    try:
        return from_record(reply.content, limit)
    except PARSE_ERRORS as error:
        raise PayloadError(f"The message could not be read: {type(error).__name__}.") from None


NODE_GONE_CODES = frozenset(
    {
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.CLIENT_APP_CRASHED,
    }
)
"""What Flower answers for a node that is gone, or that lost the process at work: it is not the node's own word."""


def error_reason(error: Error) -> str:
    """Why there is no content, in words that are fit to be kept."""
    return plain(str(error.reason or f"Flower error {error.code}"))
