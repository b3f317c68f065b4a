"""The node's side: what a message from the server does here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json
from potluck.core.method import Method, payload_types
from potluck.core.payload import PayloadError
from potluck.core.random import one_thread
from potluck.core.schema import check_payload
from potluck.core.tree import Flat
from potluck.experiment import Experiment, parse_experiment
from potluck.federation.federation import Federation
from potluck.federation.population import build_federation, experiment_data
from potluck.flower.node.assignment import Assignment
from potluck.flower.node.audit import AuditLog
from potluck.flower.node.federation import node_federation
from potluck.flower.node.file import read_node
from potluck.flower.node.guard import Guard
from potluck.flower.node.journal import Journal
from potluck.flower.node.policy import jobs_to_keep
from potluck.flower.node.registration import Registration
from potluck.flower.node.usage import Usage, limited
from potluck.loop import attack, newcomers
from potluck.loop.attack import Attackers
from potluck.loop.jobs import Failure, Job
from potluck.loop.letter import Letter, from_bytes, pack_result, text, to_bytes, unpack_job
from potluck.loop.privacy import Privacy
from potluck.loop.worker import Worker
from potluck.runs.resolve import decide_models

MEGABYTE = 1 << 20
NODE_FILE, PARTITION = "node-file", "partition-id"


@dataclass(frozen=True)
class Node:
    """This machine's client in one run."""

    method: Method[Any, Any, Any]
    federation: Federation
    index: int
    journal: Journal
    privacy: Privacy | None = None
    attackers: Attackers | None = None
    guard: Guard | None = None
    """Where the data are the node's own: what may be done with them. Which classes they hold is told to nobody."""

    def register(self) -> Letter:
        """What the server may know."""
        task = self.federation.task
        info = task.clients[self.index]
        return Registration.of(info, task.architectures[info.architecture], task.input_shape).letter()

    def first_weights(self) -> Letter:
        """Weights drawn from the run's seed for this kind of model, never trained ones."""
        task = self.federation.task
        architecture = task.architectures[task.clients[self.index].architecture]
        return Letter({"first weights": architecture.name}, state=Flat(dict(architecture.initial), None))

    def work(self, letter: Letter) -> Letter:
        """Do a job, or give again what was answered to it before; a training job is committed to disk."""
        down, task = payload_types(self.method)[0], self.federation.task
        try:
            job = unpack_job(letter, down)
            job = replace(job, details=job.details and self.guard is None)
            if job.message is not None:
                check_payload(job.message, down, task, task.clients[self.index])
        except PayloadError as error:
            return pack_result(Failure(0, 0, str(error), "invalid"))
        with self.journal.locked(), one_thread():
            if job.kind == "train":
                try:
                    before = self.journal.answer(job.number)
                except PotluckError as error:
                    return pack_result(Failure(job.id, job.client, str(error), "lost"))
                if before is not None:
                    return self._noted(job, from_bytes(before), again=True)
            return self._do(job)

    def _do(self, job: Job) -> Letter:
        if self.guard is None:
            return self._done(job)
        self.guard.allow(job, len(self.federation.members[self.index].train))
        with self.guard.usage.job():
            return self._done(job)

    def _done(self, job: Job) -> Letter:
        worker = Worker(
            self.method, lambda _: self._client(job), privacy=self.privacy, attackers=self.attackers
        )
        result = worker.run(job)
        if isinstance(result, Failure):
            return pack_result(self._discreet(result))
        answer = self._noted(job, pack_result(result))
        if job.kind == "train":
            self.journal.commit(job.number, to_bytes(answer), worker.client(job.client).state())
        return answer

    def _discreet(self, failure: Failure) -> Failure:
        """What went wrong, without the trace, and over own data without the words of an exception: both may quote."""
        if not failure.trace:
            return failure
        print(failure.trace, flush=True)  # for this node's own log
        reason = failure.reason if self.guard is None else ": ".join(failure.reason.split(": ", 2)[:2])
        return replace(failure, trace="", reason=reason)

    def _noted(self, job: Job, answer: Letter, *, again: bool = False) -> Letter:
        if self.guard is not None:
            self.guard.note(job.kind, answer, job=job.number, again=again)
        return answer

    def _client(self, job: Job) -> Client:
        """The client as its last job left it, under the number that the server gave it."""
        me, state = self.federation.client(self.index), self.journal.state()
        me.info = replace(me.info, index=job.client)
        if state is not None:
            me.restore(state)
        return me if self.guard is None else limited(me, self.guard.policy.samples)


def answer(message: Letter, node_config: Mapping[str, Any]) -> Letter:
    """Whatever the server asks, as one reply; what is wrong here is told in a sentence, there and in the node's log."""
    try:
        node = open_node(message, node_config)
        asked = message.facts.get("ask")
        if asked not in ("registration", "first weights", "leave"):
            return node.work(message)
        if asked == "leave":
            reply = left_out(message)
        else:
            reply = node.register() if asked == "registration" else node.first_weights()
        if node.guard is not None:
            node.guard.note(str(asked), reply)
        return reply
    except PotluckError as error:
        print(error, flush=True)
        return Letter({"refusal": str(error)})


def left_out(message: Letter) -> Letter:
    """The server says why this node does not take part; whoever looks after the node finds it in the node's log."""
    print(f"The server leaves this node out: {text(message.facts.get('why'), 'why')}", flush=True)
    return Letter({"left": True})


def limit_of(node_config: Mapping[str, Any]) -> int:
    """The largest message that this node reads, in bytes."""
    path = node_config.get(NODE_FILE)
    return int((read_node(Path(str(path))).max_megabytes if path else 1024) * MEGABYTE)


def open_node(message: Letter, node_config: Mapping[str, Any]) -> Node:
    """The node of node.toml, or, where there is none, the client of a dealt data set with this partition id."""
    assignment = Assignment.read(message)
    experiment = parse_experiment(parse_json(assignment.experiment))
    if path := node_config.get(NODE_FILE):
        return _open_own(experiment, assignment, Path(str(path)))
    method, federation = _dealt(assignment.experiment)
    index = int(node_config[PARTITION])
    if index >= len(federation.members):
        raise PotluckError(f"This node is partition {index}, the run has {len(federation.members)}.")
    folder = Path(assignment.state) / assignment.run / federation.task.clients[index].name
    absent = newcomers.draw(experiment.evaluate, federation.task)
    attackers = attack.draw(experiment.attack, federation.task, absent)
    journal = Journal(folder, max(4, jobs_to_keep(experiment)))
    return Node(method, federation, index, journal, experiment.privacy, attackers)


def _open_own(experiment: Experiment, assignment: Assignment, path: Path) -> Node:
    """The node of a node file, if its policy allows the run."""
    file = read_node(path)
    policy = file.policy
    policy.check(experiment)
    method, federation = _own(assignment.experiment, path)
    folder = file.state_folder() / assignment.run
    journal = Journal(folder, max(file.keep, jobs_to_keep(experiment)))
    privacy = replace(experiment.privacy, scores=experiment.privacy.scores and policy.scores)
    usage, log = Usage(folder / "usage.json", policy), AuditLog(file.audit_log())
    guard = Guard(policy, log, usage, privacy, assignment.run, experiment.method.name)
    return Node(method, federation, 0, journal, privacy, guard=guard)


Opened = tuple[Method[Any, Any, Any], Federation]


@functools.lru_cache(maxsize=4)
def _own(text: str, path: Path) -> Opened:
    experiment = parse_experiment(parse_json(text))
    return experiment.build_method(), node_federation(experiment, read_node(path))


@functools.lru_cache(maxsize=4)
def _dealt(text: str) -> Opened:
    experiment = parse_experiment(parse_json(text))
    method, data = experiment.build_method(), experiment_data(experiment)
    experiment = decide_models(experiment, method, data)
    return method, build_federation(experiment, method, data=data)
