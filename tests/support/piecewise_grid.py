"""A grid in this process whose replies come in pieces, as from Flower's server; pieces can be held back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from support.loopgrid import LoopGrid

Hold = Callable[[Message, int], bool | None]
"""Whether piece `index` of a node's reply has arrived; None: the server has given the upload up."""


@dataclass
class PiecewiseGrid(LoopGrid):
    """`holds` maps node ids to what is held back of their replies; all pieces of other nodes are there at once."""

    holds: dict[int, Hold] = field(default_factory=dict)
    requests: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.node: Any = None
        self._pieces: dict[str, tuple[int, Message, int, bytes]] = {}

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    @property
    def _runtime_client(self) -> Any:
        return SimpleNamespace(
            PullMessages=self._heads, PullObject=self._piece, ConfirmMessageReceived=lambda _: None
        )

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise AssertionError("a reply was waited for")

    def _heads(self, request: PullAppMessagesRequest) -> Any:
        replies, trees = [], []
        for number in request.message_ids:
            for reply in super().pull_messages([number]):
                parts = get_all_nested_objects(reply)
                names = [f"{number}.{name}" if reply.has_error() else name for name in parts]
                node = self.pushed[int(number[1:]) - 1].metadata.dst_node_id
                for index, (name, part) in enumerate(zip(names, parts.values(), strict=True)):
                    self._pieces[name] = (node, reply, index, part.deflate())
                head = next(name for name, part in zip(names, parts.values(), strict=True) if part is reply)
                replies.append(
                    SimpleNamespace(metadata=SimpleNamespace(message_id=head, reply_to_message_id=number))
                )
                rest = [ObjectTree(object_id=name) for name in names if name != head]
                trees.append(ObjectTree(object_id=head, children=rest))
        return SimpleNamespace(messages_list=replies, message_object_trees=trees)

    def _piece(self, request: PullObjectRequest) -> Any:
        self.requests += 1
        node, reply, index, data = self._pieces[request.object_id]
        there = self.holds.get(node, lambda reply, index: True)(reply, index)
        return SimpleNamespace(
            object_found=there is not None,
            object_available=bool(there),
            object_content=data if there else b"",
        )
