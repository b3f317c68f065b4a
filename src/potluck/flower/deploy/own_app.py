"""Do a node's messages with the Potluck that is installed here: `python -m potluck.flower.deploy.own_app`.

Flower would unpack the app that came with a run and call it: code of whoever can submit a run. This program takes the
place of Flower's (the SuperNode runs with `--isolation process`), hands every message to Potluck's own client app, and
never unpacks what the server sent. Messages are done in forks of this process, one each: what a job leaves behind in
memory ends with it, and nothing has to be imported again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
FORKS = 16
"""Messages that are done at a time; further ones wait, however many a server sends."""
PAUSE = 0.5
"""Seconds between two looks for a message."""


def main() -> None:
    """Look for messages until told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime", required=True, help="address of the SuperNode's runtime API")
    parser.add_argument("--secret", required=True, type=Path, help="what this node's SuperNode knows us by")
    given = parser.parse_args()
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    from potluck.flower.client_app import app

    known = SuperExecAuthHttpInterceptor(master_secret=given.secret.read_bytes(), protected_methods={ACQUIRE})
    node = _runtime(given.runtime, "SuperExec", known)
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP, TaskType.AGENT_APP])
    supervisor, at_work = os.getppid(), set[int]()
    while os.getppid() == supervisor:  # who is left alone has nothing to do
        with suppress(httpx.TransportError):  # the SuperNode is being started again
            found = node.AcquireTask(wanted) if len(at_work) < FORKS else None
            if found is not None and found.HasField("task") and found.token:
                at_work.add(in_a_fork(lambda token=found.token: do_message(given.runtime, token, app)))  # type: ignore[misc]
        at_work -= ended(at_work)
        time.sleep(PAUSE)


def ended(children: set[int]) -> set[int]:
    """Those of our forks that have ended; none of them stays as a zombie."""
    found = set()
    for child in children:
        try:
            found |= {child} if os.waitpid(child, os.WNOHANG)[0] else set()
        except ChildProcessError:  # somebody else has seen to it
            found.add(child)
    return found


def in_a_fork(work: Callable[[], None]) -> int:
    """Do something in a copy of this process, which ends with it."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def do_message(runtime: str, token: str, app: Callable[[Any, Any], Any]) -> None:
    """One message: fetch it, let the app answer it, hand the answer over."""
    from flwr.common.constant import SubStatus
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    start_parent_process_monitor(os.getppid())
    node = _runtime(runtime, "flwr-clientapp", RuntimeTokenHttpInterceptor(token), patient=True)
    heart = HeartbeatSender(make_task_heartbeat_fn_http(node))
    heart.start()
    message, context, _, _ = pull_task_input(node)  # the last one is the server's app, which stays packed
    push_message(node, answered(app, message, context), context)
    push_task_output(node, context, SubStatus.COMPLETED, "")
    heart.stop()
    node.close()


def answered(app: Callable[[Any, Any], Any], message: Any, context: Any) -> Any:
    """What the app says; where it fails, that it failed, and the trace for this node's own log."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    try:
        return app(message, context)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__} in the node's app; its log says more"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _runtime(address: str, name: str, *interceptors: Any, patient: bool = False) -> Any:
    """A connection to this node's SuperNode, on the loopback interface; a `patient` one tries again and again."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        address,
        True,
        None,
        [RuntimeVersionHttpInterceptor(component_name=name), *interceptors],
        retry_invoker=make_simple_http_retry_invoker() if patient else None,
    )


if __name__ == "__main__":
    main()
