"""Ties the life of a process to that of its parent. Imports little, so that processes start quickly."""

from __future__ import annotations

import ctypes
import logging
import signal

log = logging.getLogger("millrace.worker")
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the pulse notices)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(DEATH_SIGNAL, signal.SIGKILL)
    except (OSError, AttributeError) as error:
        log.debug("no death signal on this system: %s", error)
