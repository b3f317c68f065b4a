"""An in-process Flower grid: the same `Message` and `RecordDict` objects, no processes, injected faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from potluck.flower.client_app import app

Fault = Callable[[Message], Message | None]
"""What comes back in the place of an answer; None: nothing yet."""


@dataclass
class LoopGrid(Grid):
    """Answers a message when it is pulled. `nodes` maps node ids to their node configuration."""

    nodes: dict[int, dict[str, Any]]
    config: dict[str, Any]
    faults: dict[int, list[Fault | None]] = field(default_factory=dict)
    delays: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # set by Flower's processes
        self._numbers = itertools.count(1)
        self._under_way: dict[str, Message] = {}
        self._pulls: dict[str, int] = {}
        self.pushed: list[Message] = []

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def get_nodes(self) -> Any:
        return [SimpleNamespace(node_id=node, name=self.names.get(node, "")) for node in self.get_node_ids()]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            number = f"m{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            self._under_way[number] = message
            self.pushed.append(message)
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for number in message_ids:
            message = self._under_way.get(number)
            if message is None:
                continue
            node = message.metadata.dst_node_id
            self._pulls[number] = self._pulls.get(number, 0) + 1
            if self._pulls[number] <= self.delays.get(node, 0) and message.metadata.message_type != "query":
                continue
            reply = self._reply(node, message)
            if reply is not None:
                del self._under_way[number]
                replies.append(reply)
        return replies

    def _reply(self, node: int, message: Message) -> Message | None:
        if node not in self.nodes:
            return Message(Error(5, "Node unavailable"), reply_to=message)
        queue = self.faults.get(node, [])
        if queue and message.metadata.message_type == "train":
            fault = queue[0]
            if fault is not None:
                reply = fault(message)
                if reply is not None:
                    queue.pop(0)
                return reply
            queue.pop(0)
        return app(message, Context(1, node, self.nodes[node], RecordDict(), self.config))


def dealt_nodes(count: int, first: int = 100) -> dict[int, dict[str, Any]]:
    """Nodes that hold parts of one data set."""
    return {first + index: {"partition-id": index, "num-partitions": count} for index in range(count)}
