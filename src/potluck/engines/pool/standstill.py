"""Workers that live and do nothing: stopped by a signal for good, in the middle of a job or of a letter."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

LOOK = 5.0
"""Seconds without news after which the parent looks at its workers; one found stopped twice is replaced."""
PATIENCE = 60
"""Seconds in which a worker that reads or writes a letter moves at least one byte of it."""


def is_stopped(pid: int | None) -> bool:
    """Whether a process was stopped by a signal (not by a debugger); False where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return status.rpartition(")")[2].split()[0] == "T"  # the name, in brackets, may hold anything


def be_impatient(end: socket.socket) -> None:
    """Let our end of a socket give up a letter that stands still, as if the other side were gone."""
    patience = struct.pack("ll", PATIENCE, 0)
    for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        end.setsockopt(socket.SOL_SOCKET, direction, patience)
