"""The Flower app of a node: every kind of message goes to `node.answer`."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from potluck.core.payload import PayloadError
from potluck.flower import record
from potluck.flower.node import node
from potluck.loop.letter import Letter


def reply(message: Message, context: Context) -> Message:
    """Read, do, answer."""
    try:
        letter = record.from_record(message.content, node.limit_of(context.node_config))
        result = node.answer(letter, context.node_config)
    except PayloadError as error:
        result = Letter({"refusal": str(error)})
    return Message(record.to_record(result), reply_to=message)


app = ClientApp()
for register in (app.query, app.train, app.evaluate):
    register()(reply)
