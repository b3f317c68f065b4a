"""A public conformance check: does a method keep the contract that engines, checkpoints and messages rely on?

from potluck.testing import check_method
check_method(MyMethod(lr=0.1))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from potluck.core.method import Method
from potluck.core.needs import check_needs
from potluck.core.random import one_thread
from potluck.federation.federation import Federation
from potluck.testing import conformance
from potluck.testing.conformance import MethodError, small_federation
from potluck.wire.jobs import Engine
from potluck.worker.worker import Worker

__all__ = ["MethodError", "check_method", "small_federation"]


def check_method(
    method: Method[Any, Any, Any],
    *,
    federation: Callable[[], Federation] | None = None,
    engines: Sequence[Callable[[Worker], Engine]] = (),
) -> None:
    """Raise `MethodError` for the first requirement of the contract that the method breaks.

    The federation for the check is made to the method's needs (nested models where it asks for them) unless you
    pass a function that makes one. `engines` are further engines that must give the serial engine's results.
    """
    make = federation or (lambda: small_federation(method))
    check_needs(method, make().task)
    checks = (
        conformance.check_runs_and_repeats,
        conformance.check_payloads_travel,
        conformance.check_payloads_are_copies,
        conformance.check_predict_leaves_the_client_alone,
        conformance.check_state_survives_saving,
        conformance.check_global_random_state,
    )
    with one_thread():
        if federation is None:
            conformance.check_precisions(method)
        for check in checks:
            check(method, make)
        for engine in engines:
            conformance.check_engine(method, make, engine)
        conformance.check_corner_cases(method)
