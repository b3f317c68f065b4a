"""The node's side: what a message from the server does here."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from potluck.codec import encode_state, encoded_size
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.job import Answer, Failure, Job
from potluck.core.method import Method, payload_types
from potluck.core.payload import PayloadError
from potluck.core.privacy import Privacy
from potluck.core.schema import check_payload
from potluck.core.threads import one_thread
from potluck.core.tree import Flat
from potluck.core.worker import Worker
from potluck.experiment import parse_experiment
from potluck.federation import Federation
from potluck.nodes.federation import node_federation
from potluck.nodes.file import read_node
from potluck.nodes.introduction import Introduction
from potluck.nodes.packing import Order, pack_job, pack_result, read_image, unpack_job
from potluck.nodes.store import Store
from potluck.population import build_federation, experiment_data
from potluck.privacy import make_privacy
from potluck.settle import settle_models

MEGABYTE = 1 << 20
NODE_FILE, PARTITION = "node-file", "partition-id"


@dataclass(frozen=True)
class Node:
    """This machine's client in one run."""

    method: Method[Any, Any, Any]
    federation: Federation
    index: int
    store: Store
    privacy: Privacy | None = None

    def introduce(self) -> Flat:
        """What the server may know."""
        task = self.federation.task
        info = task.clients[self.index]
        return Introduction.of(info, task.architectures[info.architecture], task.input_shape).flat()

    def first_weights(self) -> Flat:
        """Weights drawn from the run's seed for this kind of model, never trained ones."""
        task = self.federation.task
        architecture = task.architectures[task.clients[self.index].architecture]
        return Flat(dict(architecture.initial), {"first weights": architecture.name})

    def work(self, flat: Flat) -> Flat:
        """Do a job, or give again what was answered to it before; a training job is committed to disk."""
        down, task = payload_types(self.method)[0], self.federation.task
        try:
            job = unpack_job(flat, down)
            if job.message is not None:
                check_payload(job.message, down, task, task.clients[self.index])
        except PayloadError as error:
            return pack_result(Failure(0, 0, str(error), "invalid"))
        question = encode_state(pack_job(replace(job, id=0)))
        with self.store.locked(), one_thread():
            if job.kind == "train" and (before := self.store.answer(job.number, question)) is not None:
                return read_image(before)
            return self._do(job, question)

    def _do(self, job: Job, question: bytes) -> Flat:
        worker = Worker(self.method, lambda _: self._client(job), encoded_size, privacy=self.privacy)
        result = worker.run(job)
        answer = pack_result(result)
        if isinstance(result, Failure) and result.trace:
            print(result.trace, flush=True)  # for this node's own log: it does not travel
        if isinstance(result, Answer) and job.kind == "train":
            state = worker.client(job.client).state()
            self.store.commit(job.number, question, encode_state(answer), state)
        return answer

    def _client(self, job: Job) -> Client:
        """The client as its last job left it, under the number that the server gave it."""
        me, state = self.federation.client(self.index), self.store.state(job.number)
        me.info = replace(me.info, index=job.client)
        if state is not None:
            device = me.task.device
            me.restore(Flat({name: t.to(device) for name, t in state.tensors.items()}, state.layout))
        return me


def answer(message: Flat, node_config: Mapping[str, Any]) -> Flat:
    """Whatever the server asks, as one reply; what is wrong here is told in a sentence."""
    try:
        node = open_node(message, node_config)
    except PotluckError as error:
        return Flat({}, {"refusal": str(error)})
    asked = message.layout.get("ask")
    if asked == "introduction":
        return node.introduce()
    if asked == "first weights":
        return node.first_weights()
    return node.work(message)


def limit_of(node_config: Mapping[str, Any]) -> int:
    """The largest message that this node reads, in bytes."""
    path = node_config.get(NODE_FILE)
    return int((read_node(Path(str(path))).max_megabytes if path else 1024) * MEGABYTE)


def open_node(message: Flat, node_config: Mapping[str, Any]) -> Node:
    """The node of node.toml, or, where there is none, the client of a dealt data set with this partition id."""
    order = Order.read(message)
    privacy = make_privacy(parse_experiment(json.loads(order.experiment)).privacy)
    if path := node_config.get(NODE_FILE):
        file = read_node(Path(str(path)))
        method, federation = _own(order.experiment, Path(str(path)))
        return Node(method, federation, 0, Store(file.state_folder() / order.run, file.keep), privacy)
    method, federation = _dealt(order.experiment)
    index = int(node_config[PARTITION])
    if index >= len(federation.participants):
        raise PotluckError(f"This node is partition {index}, the run has {len(federation.participants)}.")
    folder = Path(order.state) / federation.participants[index].name
    return Node(method, federation, index, Store(folder, keep=4), privacy)


Opened = tuple[Method[Any, Any, Any], Federation]


@functools.lru_cache(maxsize=4)
def _own(text: str, path: Path) -> Opened:
    experiment = parse_experiment(json.loads(text))
    return experiment.build_method(), node_federation(experiment, read_node(path))


@functools.lru_cache(maxsize=4)
def _dealt(text: str) -> Opened:
    experiment = parse_experiment(json.loads(text))
    method, data = experiment.build_method(), experiment_data(experiment)
    experiment = settle_models(experiment, method, data)
    return method, build_federation(experiment, method, data=data)
