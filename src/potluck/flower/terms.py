"""What a node must say of itself to take part. One that contradicts the experiment, or most others, is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method, check_needs
from potluck.core.samples import Samples
from potluck.core.task import Task
from potluck.experiment import Experiment
from potluck.flower.node.federation import agreed_classes, public_data, server_task, uses_first_weights
from potluck.flower.node.registration import Registration


class Dealt:
    """Nodes with parts of a data set that the experiment names: everything about them is known here."""

    def __init__(self, task: Task) -> None:
        self.people = [
            Registration.of(info, task.architectures[info.architecture], task.input_shape)
            for info in task.clients
        ]
        self._by_name = {one.name: one for one in self.people}

    def check(self, one: Registration) -> None:
        """Refuse who is none of the experiment's clients, or is not what that client is."""
        expected = self._by_name.get(one.name)
        if expected is None:
            raise PotluckError(f"Node {one.name!r} is none of the experiment's clients.")
        for field in fields(Registration):
            if getattr(one, field.name) != getattr(expected, field.name):
                raise PotluckError(
                    f"Node {one.name!r} has another {field.name} than the experiment gives it; install the same "
                    "Potluck and the same data everywhere."
                )


@dataclass(frozen=True)
class Own:
    """Nodes with data and models of their own: they must fit the experiment, and each other."""

    experiment: Experiment
    method: Method[Any, Any, Any]

    def check(self, one: Registration) -> None:
        """Refuse what contradicts the experiment, or itself."""
        for problem in self._problems(one):
            raise PotluckError(f"Node {one.name!r} {problem}.")

    def _problems(self, one: Registration) -> Sequence[str]:
        classes, precision = agreed_classes(self.experiment), self.experiment.models.precision
        kinds = {one.tensors[name][0] for name in one.parameters} - {precision}
        found = []
        if kinds:
            found.append(f"has parameters of type {min(kinds)}, and models.precision = {precision!r}")
        if set(one.head) <= {"weight", "bias"}:  # of several layers nobody can say which gives the scores
            scores = {shape[0] for shape in one.head.values() if shape}
            if scores - {classes}:
                found.append(
                    f"has a model for {min(scores - {classes})} classes, and engine.classes = {classes}"
                )
            weight = one.head.get("weight", [])
            if len(weight) == 2 and weight[1] != one.feature_dim:
                found.append(f"has a head for {weight[1]} features, and says that it has {one.feature_dim}")
        return found

    def misfits(self, people: Sequence[Registration]) -> Mapping[str, str]:
        """Who keeps the others from starting: more than half of the nodes agree, and this one does not.

        Where no such half is, the sentence of what they disagree about is raised.
        """
        shapes = Counter(tuple(one.input_shape) for one in people)
        ((usual, count),) = shapes.most_common(1) or [((), 0)]
        if 2 * count <= len(people):
            return {}  # nobody can say who is right: the sentence comes with the federation
        odd = {
            one.name: f"Node {one.name!r} has rows of shape {tuple(one.input_shape)}, the others {usual}."
            for one in people
            if tuple(one.input_shape) != usual
        }
        public = public_data(self.experiment, self.method)
        return odd | self._of_other_kind([one for one in people if one.name not in odd], public)

    def _of_other_kind(self, people: Sequence[Registration], public: Samples | None) -> dict[str, str]:
        """Those whose models the method cannot bring together with most others'."""
        if self._problem(people, public) is None:
            return {}
        kinds: list[Registration] = []
        for one in people:
            if not any(one.model() == other.model() for other in kinds):
                kinds.append(one)
        best: list[Registration] = []
        for kind in kinds:
            fit = [other for other in kinds if self._problem([kind, other], public) is None]
            group = [one for one in people if any(one.model() == other.model() for other in fit)]
            if len(group) > len(best) and self._problem(group, public) is None:
                best = group
        if 2 * len(best) <= len(people):
            return {}
        left = [one for one in people if one not in best]
        return {one.name: self._sentence(best[0], one, public) for one in left}

    def _sentence(self, other: Registration, one: Registration, public: Samples | None) -> str:
        problem = self._problem([other, one], public) or "its model does not fit"
        return (
            f"Node {one.name!r} does not fit the others: {re.sub(r'client [0-9]+ ', 'its model ', problem)}"
        )

    def _problem(self, people: Sequence[Registration], public: Samples | None) -> str | None:
        """Why the method cannot begin with these nodes; whatever shapes somebody claims, that is a sentence."""
        try:
            task = server_task(self.experiment, people, public)
            check_needs(self.method, task)
            uses_first_weights(self.method, task, self.experiment.schedule.rounds)
        except PotluckError as error:
            return str(error)
        except Exception as error:  # a method works with claimed shapes before anything was sent
            return f"{type(self.method).__name__} cannot begin with it ({type(error).__name__})."
        return None
