"""Requirements of the method contract, one function each, on a tiny federation."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from potluck import wire
from potluck.core import tree
from potluck.core.client import Client
from potluck.core.method import Method, Update, payload_types
from potluck.core.model import ClientModel
from potluck.core.needs import Need
from potluck.core.payload import Payload
from potluck.core.random import generator, seeded
from potluck.core.task import ClientInfo
from potluck.core.training import Training
from potluck.data.memory import TensorPair
from potluck.engines.serial import SerialEngine
from potluck.federation.federation import Federation, Member
from potluck.federation.members import federate
from potluck.loop.callbacks import Callback, End, Step
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation, Schedule
from potluck.wire.jobs import Engine, Job
from potluck.worker.worker import Worker


class MethodError(AssertionError):
    """Says which requirement of the contract a method breaks."""


class Trace(Callback):
    """Records a run as comparable tensors; messages are also copied when they are sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Payload, Payload]] = []
        self.accuracies: list[float | None] = []
        self.clients: list[tree.Flat] = []
        self.state: Any = None  # the last server state; taken apart once the run is over

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        """Keep a message and a copy of it as it was sent."""
        self.messages.append((f"broadcast to client {client.index}", message, message.copy()))

    def on_update(self, update: Update[Any], round_number: int) -> None:
        """Keep an update's payload and a copy of it as it arrived."""
        self.messages.append(
            (f"update of client {update.client.index}", update.payload, update.payload.copy())
        )

    def on_step(self, step: Step) -> None:
        """Record the accuracy of a server step."""
        self.accuracies.append(step.record.accuracy)

    def on_end(self, end: End) -> None:
        """Keep the last server state."""
        self.state = end.state


def run_method(
    method: Method[Any, Any, Any],
    federation: Federation,
    *,
    engine: Callable[[Worker], Engine] = SerialEngine,
    rounds: int = 2,
    **schedule: Any,
) -> Trace:
    """Run a copy of a method for some rounds, and return its messages, scores and final states."""
    method, trace = (
        copy.deepcopy(method),
        Trace(),
    )  # state that an earlier run left on the object must not help
    working = engine(Worker(method, federation.client))
    try:
        plan = Schedule(rounds, **schedule)
        loop = Loop(method, federation.task, working, plan, Evaluation(also=("received",)), [trace])
        loop.run()
        trace.state = saved_state(method, trace.state)
        trace.clients = loop.dispatcher.fetch_all(
            [info.index for info in federation.task.clients], loop.server.context()
        )
    finally:
        working.close()
    return trace


def saved_state(method: Method[Any, Any, Any], state: Any) -> tree.Flat:
    """Return a server state as it is saved; a state that cannot be saved is a `MethodError`."""
    try:
        return tree.flatten(state)
    except TypeError as error:
        raise MethodError(f"{type(method).__name__}: {error}.") from None


def same_payload(payload: Payload, other: Payload) -> bool:
    """Equal content; the order of a dict's names carries no meaning on a wire."""
    (tensors, scalars), (other_tensors, numbers) = payload.flatten(), other.flatten()
    same_names = tensors.keys() == other_tensors.keys() and scalars == numbers
    return same_names and all(torch.equal(tensor, other_tensors[name]) for name, tensor in tensors.items())


def require(holds: bool, method: Method[Any, Any, Any], sentence: str) -> None:
    """Raise `MethodError` with a sentence unless a condition holds."""
    if not holds:
        raise MethodError(f"{type(method).__name__}: {sentence}")


CLASSES, SIDE, FEATURES = 3, 8, 8


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
    dtype: torch.dtype = torch.float64,
) -> Federation:
    """Return a few clients with different networks and classes, fit for the needs that the method declares."""
    needs = method.requires()
    members = []
    for index in range(clients):
        with seeded("check_method", index):
            model = _model_for(needs, index)
        labels = classes[index % len(classes)]
        members.append(Member(model.to(dtype), _data(samples, labels, index), _data(6, labels, 100 + index)))
    with seeded("check_method", "shared"):
        shared = CheckNet(depth=1).to(dtype)
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


def _data(count: int, held: Sequence[int], seed: int) -> TensorPair:
    labels = torch.tensor([held[n % len(held)] for n in range(count)])
    noise = torch.randn(count, 1, SIDE, SIDE, generator=generator("check_method", seed), dtype=torch.float64)
    return noise + labels[:, None, None, None], labels


def check_precisions(method: Method[Any, Any, Any]) -> None:
    """Check that one round runs in float32 and in float64."""
    errors = {dtype: _error_of_one_round(method, dtype) for dtype in (torch.float32, torch.float64)}
    failed = {
        str(dtype).removeprefix("torch."): error for dtype, error in errors.items() if error is not None
    }
    if len(failed) == len(errors):
        raise MethodError(f"{type(method).__name__}: a round fails: {failed['float32']}")
    for dtype, error in failed.items():
        raise MethodError(
            f"{type(method).__name__}: a round fails in {dtype}: {error} Make tensors with dtype=ctx.task.dtype "
            "(me.task.dtype on a client)."
        )


def _error_of_one_round(method: Method[Any, Any, Any], dtype: torch.dtype) -> Exception | None:
    try:
        run_method(method, small_federation(method, dtype=dtype), rounds=1)
    except Exception as error:
        return error
    return None


def check_runs_and_repeats(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    """Check that the same seed gives the same results twice."""
    first, second = run_method(method, make()), run_method(method, make())
    same = tree.equal(first.state, second.state) and first.accuracies == second.accuracies
    same = same and all(tree.equal(a, b) for a, b in zip(first.clients, second.clients, strict=True))
    require(same, method, "the same seed gave two different results; draw from me.rng and ctx.rng only.")


def check_payloads_travel(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    """Check that payloads have the declared types, survive encoding, and hold no raw inputs."""
    down, up = payload_types(method)
    shape = make().task.input_shape
    for label, message, _ in run_method(method, make(), rounds=1).messages:
        kind = down if label.startswith("broadcast") else up
        require(
            type(message) is kind,
            method,
            f"{label} is a {type(message).__name__}, declared is {kind.__name__}.",
        )
        back = wire.decode(kind, wire.encode(message))
        require(same_payload(message, back), method, f"{label} changes when it is encoded and decoded.")
        if label.startswith("update"):
            raw = [name for name, t in message.flatten()[0].items() if tuple(t.shape[1:]) == shape]
            require(
                not raw,
                method,
                f"{label} holds raw data: field {raw[0] if raw else ''!r} has the input's shape.",
            )


def check_payloads_are_copies(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    """Check that payloads do not change after they were sent."""
    for label, message, at_first in run_method(method, make(), rounds=3, concurrency=2, buffer=1).messages:
        require(
            same_payload(message, at_first),
            method,
            f"{label} changed after it was sent; put copies in payloads.",
        )
    federation = make()
    me, loop = _first_job(method, federation)
    message = method.broadcast(loop.progress.state, me.info, loop.server.context())
    payload = method.client(me, message.copy())
    live = {tensor.data_ptr() for tensor in tree_tensors(me) if tensor.numel()}
    shared = [
        name for name, tensor in payload.flatten()[0].items() if tensor.numel() and tensor.data_ptr() in live
    ]
    require(
        not shared, method, f"the update's {shared[0] if shared else ''!r} shares memory with the client."
    )


def tree_tensors(me: Client) -> list[Tensor]:
    """Return every live tensor of a client: its model's and its private ones."""
    tensors = [*me.model.state_dict(keep_vars=True).values()]

    def walk(value: Any) -> None:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, dict):
            for entry in value.values():
                walk(entry)
        elif isinstance(value, list | tuple):
            for entry in value:
                walk(entry)

    walk(me.private)
    return tensors


def _first_job(method: Method[Any, Any, Any], federation: Federation) -> tuple[Client, Loop]:
    worker = Worker(method, federation.client)
    loop = Loop(method, federation.task, SerialEngine(worker), Schedule(2), Evaluation())
    me = worker.client(0)
    me.begin("train", 0, 1, 2)
    return me, loop


def check_predict_leaves_the_client_alone(
    method: Method[Any, Any, Any], make: Callable[[], Federation]
) -> None:
    """Check that `predict` leaves the state of the client unchanged."""
    federation = make()
    me, loop = _first_job(method, federation)
    worker = loop.dispatcher.engine.worker  # type: ignore[attr-defined]
    message = loop.server.message(me.info, loop.server.context())
    worker.run(Job(1, "train", 0, 0, round=1, rounds=2, message=message))
    before = me.state()
    worker.run(Job(2, "evaluate", 0, 1, round=1, rounds=2, message=message, tests=("own",)))
    worker.run(Job(3, "evaluate", 0, 1, round=1, rounds=2, message=None, tests=("own",)))
    require(tree.equal(before, me.state()), method, "predict changed the client; work on copies.")


def check_state_survives_saving(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    """Stop after one round, save everything, go on from the saved bytes: nothing may differ."""
    uninterrupted = run_method(method, make(), rounds=3)
    federation = make()
    loop, trace, method = _saved_loop(method, federation), Trace(), copy.deepcopy(method)
    resumed = Loop(
        method, federation.task, loop.dispatcher.engine, Schedule(3), Evaluation(), [trace], loop.progress
    )
    resumed.run()
    require(
        tree.equal(uninterrupted.state, tree.flatten(trace.state)),
        method,
        "a resumed run's server differs; keep all server state in State.",
    )
    for info in federation.task.clients:
        same = tree.equal(
            uninterrupted.clients[info.index],
            resumed.dispatcher.fetch_all([info.index], resumed.server.context())[0],
        )
        require(same, method, "a resumed run's client differs; keep its state in me.private or me.module.")


def _saved_loop(method: Method[Any, Any, Any], federation: Federation) -> Loop:
    """Return one round, then server and clients as fresh objects restored from bytes."""
    first, method = copy.deepcopy(method), copy.deepcopy(method)
    engine = SerialEngine(Worker(first, federation.client))
    loop = Loop(first, federation.task, engine, Schedule(3), Evaluation())
    loop.step()
    context = loop.server.context()
    clients = [info.index for info in federation.task.clients]
    server = wire.encode_state(tree.flatten(loop.progress.state))
    saved = [wire.encode_state(state) for state in loop.dispatcher.fetch_all(clients, context)]
    fresh = SerialEngine(Worker(method, federation.client))
    restored = Loop(method, federation.task, fresh, Schedule(3), Evaluation(), progress=loop.progress)
    restored.progress.state = tree.unflatten(wire.decode_state(server), restored.server.initial_state())
    for info, data in zip(federation.task.clients, saved, strict=True):
        restored.dispatcher.answers(
            [restored.dispatcher.submit("restore", info.index, context, state=wire.decode_state(data))]
        )
    return restored


def check_global_random_state(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    """Check that a method does not touch torch's global random state."""
    federation = make()
    before = torch.random.get_rng_state()
    run_method(method, federation, rounds=1)
    untouched = torch.equal(before, torch.random.get_rng_state())
    require(untouched, method, "global random state was touched; draw from me.rng and ctx.rng only.")


def check_engine(
    method: Method[Any, Any, Any], make: Callable[[], Federation], engine: Callable[[Worker], Engine]
) -> None:
    """Check that another engine gives the results of the serial one."""
    serial, other = run_method(method, make()), run_method(method, make(), engine=engine)
    same = tree.equal(serial.state, other.state) and serial.accuracies == other.accuracies
    same = same and all(tree.equal(a, b) for a, b in zip(serial.clients, other.clients, strict=True))
    require(same, method, "another engine gave other results than the serial one.")


def check_corner_cases(method: Method[Any, Any, Any]) -> None:
    """Check that a method survives missing classes, single samples and clients of one class."""
    cases: dict[str, dict[str, Any]] = {
        "a client that lacks a class": {"classes": ((0, 1), (2,), (0,))},
        "a client with a single sample": {"samples": 1},
        "clients of one class": {"classes": ((0,), (1,), (1,))},
    }
    for label, settings in cases.items():
        federation = small_federation(method, **settings)
        _survives(method, label, functools.partial(run_method, method, federation))
    federation = small_federation(method, clients=4)
    _survives(
        method, "a client that never took part", lambda: run_method(method, federation, participation=0.5)
    )
    asynchronous = small_federation(method)
    _survives(method, "one update at a time", lambda: run_method(method, asynchronous, buffer=1))


def _survives(method: Method[Any, Any, Any], label: str, action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:
        raise MethodError(f"{type(method).__name__}: did not survive {label}: {error}") from error
