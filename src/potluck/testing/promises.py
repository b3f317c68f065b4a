"""The promises of the contract, one function each."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from potluck.core import tree
from potluck.core.client import Client
from potluck.core.method import Method, payload_types
from potluck.engines.serial import SerialEngine
from potluck.federation.federation import Federation
from potluck.loop import letter
from potluck.loop.jobs import Engine, Job
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation, Schedule
from potluck.loop.worker import Worker
from potluck.testing.federation import small_federation
from potluck.testing.watch import MethodError, Trace, require, run_method, same_payload, same_state


def check_runs_and_repeats(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    first, second = run_method(method, make()), run_method(method, make())
    same = same_state(first.state, second.state) and first.accuracies == second.accuracies
    same = same and all(same_state(a, b) for a, b in zip(first.clients, second.clients, strict=True))
    require(same, method, "the same seed gave two different results; draw from me.rng and ctx.rng only.")


def check_payloads_travel(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    down, up = payload_types(method)
    shape = make().task.input_shape
    for label, message, _ in run_method(method, make(), rounds=1).messages:
        kind = down if label.startswith("broadcast") else up
        require(
            type(message) is kind,
            method,
            f"{label} is a {type(message).__name__}, declared is {kind.__name__}.",
        )
        back = letter.decode(kind, letter.encode(message))
        require(same_payload(message, back), method, f"{label} does not survive its letter.")
        if label.startswith("answer"):
            raw = [name for name, t in message.flatten()[0].items() if tuple(t.shape[1:]) == shape]
            require(
                not raw,
                method,
                f"{label} holds raw data: field {raw[0] if raw else ''!r} has the input's shape.",
            )


def check_payloads_are_copies(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
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
    worker = Worker(method, federation.client)
    loop = Loop(method, federation.task, SerialEngine(worker), Schedule(2), Evaluation())
    me = worker.client(0)
    me.begin("train", 0, 1, 2)
    return me, loop


def check_predict_leaves_the_client_alone(
    method: Method[Any, Any, Any], make: Callable[[], Federation]
) -> None:
    federation = make()
    me, loop = _first_job(method, federation)
    worker = loop.dispatcher.engine.worker  # type: ignore[attr-defined]
    message = loop.server.message(me.info, loop.server.context())
    worker.run(Job(1, "train", 0, 0, 1, 2, message))
    before = me.state()
    worker.run(Job(2, "evaluate", 0, 1, 1, 2, message, ("own",)))
    worker.run(Job(3, "evaluate", 0, 1, 1, 2, None, ("own",)))
    require(same_state(before, me.state()), method, "predict changed the client; work on copies.")


def check_state_survives_saving(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    """Stop after one round, save everything, go on from the saved bytes: nothing may differ."""
    whole = run_method(method, make(), rounds=3)
    federation = make()
    loop, trace, method = _saved_loop(method, federation), Trace(), copy.deepcopy(method)
    resumed = Loop(
        method, federation.task, loop.dispatcher.engine, Schedule(3), Evaluation(), [trace], loop.progress
    )
    resumed.run()
    require(
        same_state(whole.state, tree.flatten(trace.state)),
        method,
        "a resumed run's server differs; keep all state in State.",
    )
    for info in federation.task.clients:
        same = same_state(
            whole.clients[info.index], resumed.dispatcher.fetch_all([info.index], resumed.server.context())[0]
        )
        require(same, method, "a resumed run's client differs; keep its state in me.private or me.module.")


def _saved_loop(method: Method[Any, Any, Any], federation: Federation) -> Loop:
    """One round, then server and clients as fresh objects restored from bytes."""
    first, method = copy.deepcopy(method), copy.deepcopy(method)
    engine = SerialEngine(Worker(first, federation.client))
    loop = Loop(first, federation.task, engine, Schedule(3), Evaluation())
    loop.step()
    context = loop.server.context()
    everybody = [info.index for info in federation.task.clients]
    server = letter.encode_state(tree.flatten(loop.progress.state))
    saved = [letter.encode_state(state) for state in loop.dispatcher.fetch_all(everybody, context)]
    fresh = SerialEngine(Worker(method, federation.client))
    again = Loop(method, federation.task, fresh, Schedule(3), Evaluation(), progress=loop.progress)
    again.progress.state = tree.unflatten(letter.decode_state(server), again.server.initial_state())
    for info, data in zip(federation.task.clients, saved, strict=True):
        again.dispatcher.answers(
            [again.dispatcher.submit("restore", info.index, context, state=letter.decode_state(data))]
        )
    return again


def check_global_random_state(method: Method[Any, Any, Any], make: Callable[[], Federation]) -> None:
    federation = make()
    before = torch.random.get_rng_state()
    run_method(method, federation, rounds=1)
    untouched = torch.equal(before, torch.random.get_rng_state())
    require(untouched, method, "global random state was touched; draw from me.rng and ctx.rng only.")


def check_engine(
    method: Method[Any, Any, Any], make: Callable[[], Federation], engine: Callable[[Worker], Engine]
) -> None:
    serial, other = run_method(method, make()), run_method(method, make(), engine=engine)
    same = same_state(serial.state, other.state) and serial.accuracies == other.accuracies
    same = same and all(same_state(a, b) for a, b in zip(serial.clients, other.clients, strict=True))
    require(same, method, "another engine gave another result than the serial one.")


def check_corner_cases(method: Method[Any, Any, Any]) -> None:
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
    _survives(method, "one answer at a time", lambda: run_method(method, asynchronous, buffer=1))


def _survives(method: Method[Any, Any, Any], label: str, action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:
        raise MethodError(f"{type(method).__name__}: did not survive {label}: {error}") from error
