"""Compare this machine's clock with the server's: Flower's server accepts a node's signature for a few minutes only."""

from __future__ import annotations

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

TOLERATED = (-300.0, 5.0)
"""Seconds by which a node's clock may be ahead of the server's, so that its signed requests are accepted."""
NO_CHECK_TIME = 0x200000
"""OpenSSL's flag to accept certificates at any time: nothing but a date is asked for here."""


def seconds_ahead(server: str, ca: Path, timeout: float = 10.0) -> float | None:
    """Return by how many seconds this machine's clock is ahead of the server's, to about a second.

    None if the server cannot be reached, has a certificate of another authority, or tells no date.
    """
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags |= NO_CHECK_TIME
    connection = http.client.HTTPSConnection(server, timeout=timeout, context=context)
    try:
        connection.request("GET", "/v1/fleet/")
        before = time.time()
        date = connection.getresponse().getheader("date")
        after = time.time()
        server_time = parsedate_to_datetime(date or "").timestamp() + 0.5  # whole seconds
    except (OSError, http.client.HTTPException, ValueError, TypeError):
        return None
    finally:
        connection.close()
    return (before + after) / 2 - server_time


def clock_problem(server: str, ca: Path) -> str:
    """Return the sentence for a clock that differs by too much; empty if it does not, or cannot be compared."""
    ahead = seconds_ahead(server, ca)
    if ahead is None or TOLERATED[0] < ahead < TOLERATED[1]:
        return ""
    direction = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock differs from the server's by {abs(ahead):.0f} s (it is {direction} it); correct it, for "
        "signed requests are accepted from 300 s behind to 5 s ahead"
    )
