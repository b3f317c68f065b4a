"""A public conformance check: does a method keep the contract that engines, checkpoints and wires rely on?

from potluck.testing import check_method
check_method(MyMethod(lr=0.1))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from potluck.core.method import Method, check_needs
from potluck.core.random import one_thread
from potluck.federation.federation import Federation
from potluck.loop.jobs import Engine
from potluck.loop.worker import Worker
from potluck.testing import promises
from potluck.testing.federation import small_federation
from potluck.testing.watch import MethodError

__all__ = ["MethodError", "check_method", "small_federation"]


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
        promises.check_runs_and_repeats,
        promises.check_payloads_travel,
        promises.check_payloads_are_copies,
        promises.check_predict_leaves_the_client_alone,
        promises.check_state_survives_saving,
        promises.check_global_random_state,
    )
    with one_thread():
        for check in checks:
            check(method, make)
        for engine in engines:
            promises.check_engine(method, make, engine)
        promises.check_corner_cases(method)
