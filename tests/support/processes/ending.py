"""The end of worker processes, noticed by the master without chance: at once, or by a silence that need not be waited for."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from millrace.master.service import Master

LIMIT_SECONDS = 60.0

def kill_and_wait(pid: int) -> None:
    """Kill -9, and wait until the process has ended. Called on the master's thread, this makes the loss the first thing that
    the master hears: messages of the process that it has not read yet are ignored."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(ended, signal.SIGKILL)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        assert poll.poll(LIMIT_SECONDS * 1000), f"process {pid} outlives kill -9"
    finally:
        os.close(ended)


def presumed_dead(master: Master, slot: int) -> Callable[[], bool]:
    """A condition: the master presumes a worker dead whose process is stopped, or dead on another host. Its last heartbeat
    counts as long past and its connection as closed; the other workers keep a timeout that a busy machine does not exceed."""

    def lost() -> bool:
        connection = master.connections.get(slot)
        if connection is not None:
            connection.pulse = b"gone"
            connection.heard = time.monotonic() - 2 * master.worker_port.patience.timeout
        return slot not in master.state.workers

    return lost
