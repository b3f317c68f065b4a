"""Write to a disk that may be full: say so, and wait for space."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)
RETRY_SECONDS = 5.0
Result = TypeVar("Result")


def write_with_space(
    write: Callable[[], Result], path: Path, sleep: Callable[[float], None] = time.sleep
) -> Result:
    """Write, again and again while the disk is full; `write` leaves nothing behind where it fails.

    A job whose outcome cannot be stored is neither answered nor lost: its answer leaves when there is space.
    """
    waits = False
    while True:
        try:
            result = write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not waits:
                log.error("The disk of %r is full; this node waits until there is space.", str(path.parent))
            waits = True
            sleep(RETRY_SECONDS)
            continue
        if waits:
            log.warning("There is space on the disk of %r again.", str(path.parent))
        return result
