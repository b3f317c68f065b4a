"""Show a node's audit log, line by line and summed up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.flower.node.audit import AuditLog
from potluck.flower.node.config import NodeFile, read_node
from potluck.flower.node.guard import spent_epsilon


def node_log(path: Path, last: int) -> Iterator[str]:
    """Yield the log's last lines, its totals, and the digest to note; the whole chain is checked first."""
    node = read_node(path)
    lines = list(AuditLog(node.audit_log()).lines())
    if not lines:
        yield f"Nothing has left node {node.name!r} yet."
        return
    yield from map(format_line, lines[max(0, len(lines) - last) :] if last else lines)
    yield from summarize(node, lines)


def format_line(line: dict[str, Any]) -> str:
    """Return one answer that left."""
    fields = line["fields"]
    tensors = {**fields.get("payload", {}), **fields.get("state", {}), **fields.get("sums", {})}
    parts = [f"{name} {'×'.join(map(str, shape)) or 'one number'}" for name, (_, *shape) in tensors.items()]
    parts += [f"score {name}" for name in fields.get("scores", ())]
    contents = ", ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "")
    repeated = " again" if line["again"] else ""
    return (
        f"{line['time']}  {line['run'][:8] or '-':8}  {line['method']}  {line['kind']} {line['job']}{repeated}  "
        f"{line['bytes']} bytes  {line['digest'][:12]}  {contents}"
    ).rstrip()


def summarize(node: NodeFile, lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what left in each run and in all, what it cost, and how the log ends."""
    size, count = Counter[str](), Counter[str]()
    for line in lines:
        size[line["run"]] += line["bytes"]
        count[line["run"]] += 1
    for run in count:
        yield f"run {run or '(before it had an id)'}: {count[run]} answers, {size[run]} bytes"
    end = lines[-1]
    yield f"in all: {len(lines)} answers, {sum(size.values())} bytes in {len(set(count) - {''})} runs"
    yield _privacy(node, end)
    yield f"the chain holds; note in a place that only you can write: {end['number']} {end['chain']}"


def _privacy(node: NodeFile, end: dict[str, Any]) -> str:
    policy = node.policy
    limit = f" of its policy.epsilon = {policy.epsilon:g}" if policy.epsilon else ""
    without_noise = f"{end['bare']} training answers left without noise" if end["bare"] else ""
    if not end["spent"]:
        return f"privacy: {without_noise or 'no training answer has left'}"
    try:
        epsilon = spent_epsilon({**end, "bare": 0}, policy.delta)
    except PotluckError:
        hint = "pip install 'potluck[privacy]' to see what they cost"
        return f"privacy: noisy answers left; {hint} {without_noise}".rstrip()
    assert math.isfinite(epsilon)
    sentence = f"privacy: ε = {epsilon:.3g} at δ = {policy.delta:g} is spent{limit}"
    return f"{sentence}, and {without_noise}" if without_noise else sentence
