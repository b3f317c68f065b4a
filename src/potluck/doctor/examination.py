"""The whole examination, and its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from potluck.doctor.devices import look_at_cpu, look_at_device, look_at_speed
from potluck.doctor.finding import Finding
from potluck.doctor.machine import look_at_machine
from potluck.engines.hardware import accelerators


def examine(devices: Sequence[str] = (), folder: Path = Path()) -> Iterator[Finding]:
    """Findings one by one: of the machine, of training on the CPU, of every accelerator (or those named)."""
    yield from look_at_machine(folder)
    reference, findings = look_at_cpu()
    yield from findings
    yield from look_at_speed("cpu")
    places = list(devices) or accelerators()
    if not places:
        yield Finding("accelerators", "found", "none")
    for name in places:
        yield from look_at_device(name, reference)
        yield from look_at_speed(name)


def table(findings: Sequence[Finding]) -> str:
    """Markdown, for an issue."""
    rows = [
        f"| {one.part} | {one.what} | {one.found} | {'' if one.well else 'NOT WELL'} |" for one in findings
    ]
    return "\n".join(["| part | what | found | |", "|---|---|---|---|", *rows])
