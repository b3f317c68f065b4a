"""The Flower app of a node: every kind of message goes to `node.answer`."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from potluck.core.payload import PayloadError
from potluck.core.tree import Flat
from potluck.engines.flower import wire
from potluck.nodes import node


def reply(message: Message, context: Context) -> Message:
    """Read, do, answer."""
    try:
        flat = wire.from_record(message.content, node.limit_of(context.node_config))
        result = node.answer(flat, context.node_config)
    except PayloadError as error:
        result = Flat({}, {"refusal": str(error)})
    return Message(wire.to_record(result), reply_to=message)


app = ClientApp()
for register in (app.query, app.train, app.evaluate):
    register()(reply)
