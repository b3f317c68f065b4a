"""Answer the server's messages: open the run that a message belongs to, and let its node do what is asked."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from potluck import attacks
from potluck.attacks import Attackers
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json
from potluck.core.method import Method
from potluck.core.payload import PayloadError
from potluck.experiment import Experiment, parse_experiment
from potluck.federation.federation import Federation
from potluck.federation.population import build_federation, experiment_data
from potluck.flower.node.audit import AuditLog
from potluck.flower.node.config import NodeFile, jobs_to_keep, read_node
from potluck.flower.node.federation import node_federation
from potluck.flower.node.guard import Guard, Usage, check_row_budget
from potluck.flower.node.journal import Journal
from potluck.flower.node.node import Node, ResidentClients
from potluck.flower.node.registration import MEGABYTE, Assignment, ClassNames, read_message
from potluck.loop import newcomers
from potluck.runs.resolve import choose_models
from potluck.wire import Message, string, to_bytes

log = logging.getLogger(__name__)

NODE_FILE, PARTITION = "node-file", "partition-id"


@dataclass
class NodeHost:
    """Answers messages for the nodes of one process; data, models and clients stay in memory between messages."""

    residents: ResidentClients = field(default_factory=ResidentClients)

    @property
    def failed(self) -> bool:
        """Whether a job failed, so that the process should be replaced."""
        return self.residents.failed

    def answer(self, data: bytes | None, node_config: Mapping[str, Any]) -> bytes:
        """Answer the bytes of a message; None stands for a message of another app."""
        try:
            reply = self.handle_message(read_message(data, message_limit(node_config)), node_config)
        except PayloadError as error:
            reply = Message({"refusal": str(error)})
        return to_bytes(reply)

    def handle_message(self, message: Message, node_config: Mapping[str, Any]) -> Message:
        """Do what the server asks; what is wrong becomes one sentence, in the reply and in the node's log."""
        try:
            request = message.facts.get("ask")
            if request == "class names":
                return tell_class_names(Assignment.read(message), node_config)
            node = self.open_node(message, node_config)
            if request not in ("registration", "first weights", "leave"):
                return node.run_job(message)
            if request == "leave":
                reply = log_rejection(message)
            else:
                reply = node.register() if request == "registration" else node.initial_weights()
            if node.guard is not None:
                node.guard.log_answer(str(request), reply)
            return reply
        except PotluckError as error:
            log.error("%s", error)
            return Message({"refusal": str(error)})

    def open_node(self, message: Message, node_config: Mapping[str, Any]) -> Node:
        """Return the node of a node file, or the client of the experiment's data set with this partition id."""
        assignment = Assignment.read(message)
        if path := node_config.get(NODE_FILE):
            return self._open_own(assignment, Path(str(path)))
        experiment, method, federation, attackers = _load_partitions(assignment.experiment)
        index = int(node_config[PARTITION])
        if index >= len(federation.members):
            raise PotluckError(f"This node is partition {index}, the run has {len(federation.members)}.")
        folder = Path(assignment.state) / assignment.run / federation.task.clients[index].name
        journal = Journal(folder, max(4, jobs_to_keep(experiment)))
        safeguard = experiment.safeguard or None
        return Node(
            method, federation, index, journal, self.residents, experiment.privacy, attackers, safeguard
        )

    def _open_own(self, assignment: Assignment, path: Path) -> Node:
        """Return the node of a node file, if its policy allows the run."""
        experiment, file = parse_experiment(parse_json(assignment.experiment)), read_node(path)
        policy = file.policy
        policy.check(experiment)
        method, federation = _load_own(assignment.experiment, file)
        check_row_budget(policy, experiment, method, len(federation.members[0].train))
        journal = Journal(file.state_folder() / assignment.run, max(file.keep, jobs_to_keep(experiment)))
        if assignment.run:  # registration comes before the run has an id
            journal.keep_experiment(assignment.experiment)
        guard = own_guard(experiment, file, assignment.run)
        return Node(
            method,
            federation,
            0,
            journal,
            self.residents,
            guard.privacy,
            safeguard=experiment.safeguard or None,
            guard=guard,
        )


def own_guard(experiment: Experiment, file: NodeFile, run: str) -> Guard:
    """Return what permits and records the work of a node file in a run."""
    policy = file.policy
    privacy = replace(experiment.privacy, scores=experiment.privacy.scores and policy.scores)
    usage = Usage(file.state_folder() / run / "usage.json", policy)
    return Guard(
        policy,
        AuditLog(file.audit_log()),
        usage,
        privacy,
        run=run,
        method=experiment.method.name,
        rounds=experiment.schedule.rounds,
    )


def tell_class_names(assignment: Assignment, node_config: Mapping[str, Any]) -> Message:
    """Tell the names of a node's classes, before the run has agreed on numbers, if its policy allows it."""
    if NODE_FILE not in node_config:
        raise PotluckError("This node has no data of its own, so its classes are those of the experiment.")
    experiment = parse_experiment(parse_json(assignment.experiment))
    file = read_node(Path(str(node_config[NODE_FILE])))
    file.policy.check(experiment)
    classes = list(file.load_data().class_names) if file.policy.class_names else None
    reply = ClassNames(file.name, classes).message()
    own_guard(experiment, file, assignment.run).log_answer("class names", reply)
    return reply


def message_limit(node_config: Mapping[str, Any]) -> int:
    """Return the largest message that this node reads, in bytes."""
    path = node_config.get(NODE_FILE)
    return int((read_node(Path(str(path))).max_megabytes if path else 1024) * MEGABYTE)


def log_rejection(message: Message) -> Message:
    """Write the server's reason for excluding this node to the node's log."""
    log.warning("The server excludes this node: %s", string(message.facts.get("why"), "why"))
    return Message({"left": True})


@functools.lru_cache(maxsize=4)
def _load_own(experiment_json: str, file: NodeFile) -> tuple[Method[Any, Any, Any], Federation]:
    experiment = parse_experiment(parse_json(experiment_json))
    return experiment.build_method(), node_federation(experiment, file)


Partitions = tuple[Experiment, Method[Any, Any, Any], Federation, Attackers | None]


@functools.lru_cache(maxsize=2)
def _load_partitions(experiment_json: str) -> Partitions:
    submitted = parse_experiment(parse_json(experiment_json))
    method, data = submitted.build_method(), experiment_data(submitted)
    experiment = choose_models(submitted, method, data)
    for name in (*experiment.models.names, experiment.models.shared or ""):
        if name.startswith("file:"):  # it names code, which a node does not take from a server
            raise PotluckError(
                f"Model {name!r} names code, which nodes do not take from a server; use the engine pool."
            )
    federation = build_federation(experiment, method, data=data)
    absent = newcomers.draw_newcomers(submitted.evaluate, federation.task)
    return submitted, method, federation, attacks.draw_attackers(submitted.attack, federation.task, absent)
