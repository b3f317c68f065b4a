"""A public conformance check: does a method keep the contract that engines, checkpoints and wires rely on?

from potluck.testing import check_method
check_method(MyMethod(lr=0.1))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from potluck import codec
from potluck.core import tree
from potluck.core.callback import Callback, End, Step
from potluck.core.client import Client
from potluck.core.evaluation import Evaluation
from potluck.core.job import Engine, Job
from potluck.core.loop import Loop
from potluck.core.method import Method, Need, Update, payload_types
from potluck.core.model import ClientModel
from potluck.core.needs import check_needs
from potluck.core.payload import Payload
from potluck.core.random import generator, seeded
from potluck.core.schedule import Schedule
from potluck.core.task import ClientInfo
from potluck.core.training import Training
from potluck.core.worker import Worker
from potluck.engines.serial import SerialEngine
from potluck.federation import Federation
from potluck.members import Member, Pair, federate
from potluck.session import one_thread

CLASSES, SIDE, FEATURES = 3, 8, 8


class MethodError(AssertionError):
    """The contract that a method breaks, and how."""


def check_method(
    method: Method[Any, Any, Any],
    *,
    federation: Callable[[], Federation] | None = None,
    engines: Sequence[Callable[[Worker], Engine]] = (),
) -> None:
    """Raise `MethodError` at the first promise that the method breaks.

    The federation for the check is made to the method's needs (nested models where it asks for them) unless you
    pass a function that makes one. `engines` are further engines that must give the serial engine's results.
    """
    make = federation or (lambda: small_federation(method))
    check_needs(method, make().task)
    checks = (
        _check_runs_and_repeats,
        _check_payloads_travel,
        _check_payloads_are_copies,
        _check_predict_leaves_the_client_alone,
        _check_state_survives_saving,
        _check_global_random_state,
    )
    with one_thread():
        for check in checks:
            check(method, make)
        for engine in engines:
            _check_engine(method, make, engine)
        _check_corner_cases(method)


# -- federations to check with ----------------------------------------------------------------------------


class _Block(nn.Module):
    """A residual block whose tensors slice by width and nest by depth."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """x + f(x)."""
        return torch.relu(x + self.norm(self.conv(x)))


class CheckNet(ClientModel):
    """A small convolutional network with BatchNorm, stages, and any width and depth."""

    def __init__(self, width: int = FEATURES, depth: int = 1, full_width: int = FEATURES) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU())
        self.layer1 = nn.Sequential(*(_Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, CLASSES)
        self.feature_dim = width
        self.width_rate = width / full_width

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """Stem and residual blocks."""
        return self.stem, self.layer1

    def pool(self, x: Tensor) -> Tensor:
        """Mean over positions."""
        return x.mean((2, 3))


def small_federation(
    method: Method[Any, Any, Any],
    *,
    clients: int = 3,
    samples: int = 8,
    classes: Sequence[Sequence[int]] = ((0, 1, 2), (0, 1), (1, 2)),
    training: Training | None = None,
) -> Federation:
    """A few clients with different networks and classes, fit for the needs that the method declares."""
    needs = method.requires()
    members = []
    for index in range(clients):
        with seeded("check_method", index):
            model = _model_for(needs, index)
        held = classes[index % len(classes)]
        members.append(Member(model.double(), _data(samples, held, index), _data(6, held, 100 + index)))
    with seeded("check_method", "shared"):
        shared = CheckNet(depth=1).double()
    return federate(
        members,
        training=training or Training(epochs=1, batch_size=4, lr=0.05),
        num_classes=CLASSES,
        shared_model=shared,
        shared_test=_data(6, range(CLASSES), 200),
        public=_data(8, range(CLASSES), 300),
        seed=7,
    )


def _model_for(needs: frozenset[Need], index: int) -> CheckNet:
    if Need.SAME_ARCHITECTURE in needs:
        return CheckNet()
    if Need.NESTED_WIDTH in needs:
        return CheckNet(width=FEATURES if index % 2 == 0 else FEATURES // 2)
    return CheckNet(depth=1 + index % 2)


def _data(count: int, held: Sequence[int], seed: int) -> Pair:
    labels = torch.tensor([held[n % len(held)] for n in range(count)])
    noise = torch.randn(count, 1, SIDE, SIDE, generator=generator("check_method", seed), dtype=torch.float64)
    return noise + labels[:, None, None, None], labels


# -- running and watching -----------------------------------------------------------------------------------


class _Trace(Callback):
    """Everything that can be seen of a run, as comparable tensors; messages are also kept as first seen."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Payload, Payload]] = []
        self.accuracies: list[float | None] = []
        self.clients: list[tree.Flat] = []
        self.state: Any = None  # the last server state; taken apart once the run is over

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        self.messages.append((f"broadcast to client {client.index}", message, message.copy()))

    def on_update(self, update: Update[Any], round_number: int) -> None:
        self.messages.append(
            (f"answer of client {update.client.index}", update.payload, update.payload.copy())
        )

    def on_step(self, step: Step) -> None:
        self.accuracies.append(step.record.accuracy)

    def on_end(self, end: End) -> None:
        self.state = end.state


def _run(
    method: Method[Any, Any, Any],
    federation: Federation,
    *,
    engine: Callable[[Worker], Engine] = SerialEngine,
    rounds: int = 2,
    **schedule: Any,
) -> _Trace:
    method, trace = copy.deepcopy(method), _Trace()  # what an earlier run left on the object must not help
    working = engine(Worker(method, federation.client, codec.encoded_size))
    try:
        plan = Schedule(rounds, **schedule)
        loop = Loop(method, federation.task, working, plan, Evaluation(also=("received",)), [trace])
        loop.run()
        trace.state = _saved(method, trace.state)
        trace.clients = [loop.desk.fetch(info.index, loop.context()) for info in federation.task.clients]
    finally:
        working.close()
    return trace


def _saved(method: Method[Any, Any, Any], state: Any) -> tree.Flat:
    try:
        return tree.flatten(state)
    except TypeError as error:
        raise MethodError(f"{type(method).__name__}: {error}.") from None


def _same(a: tree.Flat, b: tree.Flat) -> bool:
    """Whether two states are equal bit for bit."""
    return (
        a.layout == b.layout
        and a.tensors.keys() == b.tensors.keys()
        and all(torch.equal(tensor, b.tensors[name]) for name, tensor in a.tensors.items())
    )


def _same_payload(one: Payload, other: Payload) -> bool:
    """Equal content; the order of a dict's names carries no meaning on a wire."""
    (tensors, scalars), (others, numbers) = one.flatten(), other.flatten()
    same_names = tensors.keys() == others.keys() and scalars == numbers
    return same_names and all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


def _require(holds: bool, method: Method[Any, Any, Any], sentence: str) -> None:
    if not holds:
        raise MethodError(f"{type(method).__name__}: {sentence}")


# -- the promises -------------------------------------------------------------------------------------------


def _check_runs_and_repeats(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    first, second = _run(method, make()), _run(method, make())
    same = _same(first.state, second.state) and first.accuracies == second.accuracies
    same = same and all(_same(a, b) for a, b in zip(first.clients, second.clients, strict=True))
    _require(same, method, "the same seed gave two different results; draw from me.rng and ctx.rng only.")


def _check_payloads_travel(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    down, up = payload_types(method)
    shape = make().task.input_shape
    for label, message, _ in _run(method, make(), rounds=1).messages:
        kind = down if label.startswith("broadcast") else up
        _require(
            type(message) is kind,
            method,
            f"{label} is a {type(message).__name__}, declared is {kind.__name__}.",
        )
        back = codec.decode(kind, codec.encode(message))
        _require(_same_payload(message, back), method, f"{label} does not survive the codec.")
        if label.startswith("answer"):
            raw = [name for name, t in message.flatten()[0].items() if tuple(t.shape[1:]) == shape]
            _require(
                not raw,
                method,
                f"{label} holds raw data: field {raw[0] if raw else ''!r} has the input's shape.",
            )


def _check_payloads_are_copies(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    for label, message, at_first in _run(method, make(), rounds=3, concurrency=2, buffer=1).messages:
        _require(
            _same_payload(message, at_first),
            method,
            f"{label} changed after it was sent; put copies in payloads.",
        )
    federation = make()
    me, loop = _first_job(method, federation)
    message = method.broadcast(loop.progress.state, me.info, loop.context())
    payload = method.client(me, message.copy())
    live = {tensor.data_ptr() for tensor in tree_tensors(me) if tensor.numel()}
    shared = [
        name for name, tensor in payload.flatten()[0].items() if tensor.numel() and tensor.data_ptr() in live
    ]
    _require(
        not shared, method, f"the answer's {shared[0] if shared else ''!r} shares memory with the client."
    )


def tree_tensors(me: Client) -> list[Tensor]:
    """Every live tensor of a client: its model's and its private ones."""
    found = [*me.model.state_dict(keep_vars=True).values()]

    def walk(value: Any) -> None:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            for entry in value.values():
                walk(entry)
        elif isinstance(value, list | tuple):
            for entry in value:
                walk(entry)

    walk(me.private)
    return found


def _first_job(method: Method[Any, Any, Any], federation: Federation) -> tuple[Client, Loop]:
    worker = Worker(method, federation.client, codec.encoded_size)
    loop = Loop(method, federation.task, SerialEngine(worker), Schedule(2), Evaluation())
    me = worker.client(0)
    me.begin("train", 0, 1, 2)
    return me, loop


def _check_predict_leaves_the_client_alone(
    method: Method[Any, Any, Any], make: Callable[[], Federation]
) -> None:
    federation = make()
    me, loop = _first_job(method, federation)
    worker = loop.desk.engine.worker  # type: ignore[attr-defined]
    message = loop._broadcast(me.info, loop.context())
    worker.run(Job(1, "train", 0, 0, 1, 2, message))
    before = me.state()
    worker.run(Job(2, "evaluate", 0, 1, 1, 2, message, ("own",)))
    worker.run(Job(3, "evaluate", 0, 1, 1, 2, None, ("own",)))
    _require(_same(before, me.state()), method, "predict changed the client; work on copies.")


def _check_state_survives_saving(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    """Stop after one round, save everything, go on from the saved bytes: nothing may differ."""
    whole = _run(method, make(), rounds=3)
    federation = make()
    loop, trace, method = _saved_loop(method, federation), _Trace(), copy.deepcopy(method)
    resumed = Loop(
        method, federation.task, loop.desk.engine, Schedule(3), Evaluation(), [trace], loop.progress
    )
    resumed.run()
    _require(
        _same(whole.state, tree.flatten(trace.state)),
        method,
        "a resumed run's server differs; keep all state in State.",
    )
    for info in federation.task.clients:
        same = _same(whole.clients[info.index], resumed.desk.fetch(info.index, resumed.context()))
        _require(same, method, "a resumed run's client differs; keep its state in me.private or me.module.")


def _saved_loop(method: Method[Any, Any, Any], federation: Federation) -> Loop:
    """One round, then server and clients as fresh objects restored from bytes."""
    first, method = copy.deepcopy(method), copy.deepcopy(method)
    engine = SerialEngine(Worker(first, federation.client, codec.encoded_size))
    loop = Loop(first, federation.task, engine, Schedule(3), Evaluation())
    loop.step()
    context = loop.context()
    server = codec.encode_state(tree.flatten(loop.progress.state))
    saved = [codec.encode_state(loop.desk.fetch(info.index, context)) for info in federation.task.clients]
    fresh = SerialEngine(Worker(method, federation.client, codec.encoded_size))
    again = Loop(method, federation.task, fresh, Schedule(3), Evaluation(), progress=loop.progress)
    again.progress.state = tree.unflatten(codec.decode_state(server), again.initial_state())
    for info, data in zip(federation.task.clients, saved, strict=True):
        again.desk.answers(
            [again.desk.submit("restore", info.index, context, state=codec.decode_state(data))]
        )
    return again


def _check_global_random_state(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    federation = make()
    before = torch.random.get_rng_state()
    _run(method, federation, rounds=1)
    untouched = torch.equal(before, torch.random.get_rng_state())
    _require(untouched, method, "global random state was touched; draw from me.rng and ctx.rng only.")


def _check_engine(
    method: Method[Any, Any, Any], make: Callable[[], Federation], engine: Callable[[Worker], Engine]
) -> None:
    serial, other = _run(method, make()), _run(method, make(), engine=engine)
    same = _same(serial.state, other.state) and serial.accuracies == other.accuracies
    same = same and all(_same(a, b) for a, b in zip(serial.clients, other.clients, strict=True))
    _require(same, method, "another engine gave another result than the serial one.")


def _check_corner_cases(method: Method[Any, Any, Any]) -> None:
    cases: dict[str, dict[str, Any]] = {
        "a client that lacks a class": {"classes": ((0, 1), (2,), (0,))},
        "a client with a single sample": {"samples": 1},
        "clients of one class": {"classes": ((0,), (1,), (1,))},
    }
    for label, settings in cases.items():
        _survives(method, label, lambda settings=settings: _run(method, small_federation(method, **settings)))  # type: ignore[misc]
    federation = small_federation(method, clients=4)
    _survives(method, "a client that never took part", lambda: _run(method, federation, participation=0.5))
    asynchronous = small_federation(method)
    _survives(method, "one answer at a time", lambda: _run(method, asynchronous, buffer=1))


def _survives(method: Method[Any, Any, Any], label: str, action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:
        raise MethodError(f"{type(method).__name__}: did not survive {label}: {error}") from error
