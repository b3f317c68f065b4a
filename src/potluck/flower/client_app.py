"""The Flower app of a node, for Flower's own SuperNodes and its simulation."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from potluck.flower.content import content_bytes, to_content
from potluck.flower.node.host import NodeHost

host = NodeHost()


def reply(message: Message, context: Context) -> Message:
    """Answer a message."""
    data = host.answer(content_bytes(message.content), context.node_config)
    return Message(to_content(data), reply_to=message)


app = ClientApp()
for register in (app.query, app.train, app.evaluate):
    register()(reply)
