"""Waits of the engine that a busy machine must not end: a late heartbeat would be a fault that no test has caused.

The death of a process on this host is noticed at once, whatever the timeout. Tests that need silence to be noticed set a
short timeout themselves.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.config import HEARTBEAT_TIMEOUT
from millrace.master.workers import port

HEARTBEAT_SECONDS = 20.0


def wait_for_late_heartbeats() -> None:
    """Masters that this process makes from now on use the long timeout, unless their settings say otherwise."""
    port.HEARTBEAT_TIMEOUT = replace(HEARTBEAT_TIMEOUT, default=HEARTBEAT_SECONDS)
