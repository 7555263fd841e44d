"""The wait of a worker's loop: for messages, or until a time that is exact to some microseconds."""

from __future__ import annotations

import ctypes
import math
import os
import time
from typing import Any

import zmq

_libc = ctypes.PyDLL(None, use_errno=True)  # its calls are short: they keep the interpreter lock
_NANOSECONDS = 1_000_000_000


class LoopWait:
    """Polls sockets and file descriptors, and a timer of the kernel: ZeroMQ's own time limit counts in milliseconds, which is
    as long as a tuple takes from a spout to a sink. It looks again and again for `spin` seconds before it sleeps: the wake-up
    of a sleeping process takes some tens of microseconds, that of a sleeping core more."""

    def __init__(self, spin: float = 0.0) -> None:
        self.poller = zmq.Poller()
        self._spin = spin
        self._timer = _new_timer()
        self._times = (ctypes.c_long * 4)()  # struct itimerspec: the interval, which stays 0, and the time
        if self._timer is not None:
            self.poller.register(self._timer, zmq.POLLIN)

    def wait(self, seconds: float) -> dict[Any, int]:
        """Everything that is ready, at the latest after so many seconds; nothing if only the time has come."""
        ready = dict(self._poll(seconds))
        ready.pop(self._timer, None)
        return ready

    def _poll(self, seconds: float) -> list[tuple[Any, int]]:
        poll = self.poller.poll
        if seconds <= 0.0:
            return poll(0)
        milliseconds = self._set_timer(seconds)
        if self._spin:
            until = time.monotonic() + min(self._spin, seconds)
            while time.monotonic() < until:
                if ready := poll(0):
                    return ready
        return poll(milliseconds)

    def _set_timer(self, seconds: float) -> int | None:
        """Set the timer, which also forgets that an earlier time has come. Returns the limit of the poll in milliseconds, which
        is needed without a timer."""
        if self._timer is None:
            return math.ceil(seconds * 1000)
        self._times[2], self._times[3] = divmod(int(seconds * _NANOSECONDS) or 1, _NANOSECONDS)
        if _libc.timerfd_settime(self._timer, 0, self._times, None) < 0:
            raise OSError(ctypes.get_errno(), "cannot set a timer")
        return None

    def close(self) -> None:
        if self._timer is not None:
            os.close(self._timer)


def _new_timer() -> int | None:
    """The descriptor of a timer of the kernel; None on systems that have no such timers: then waits are whole milliseconds."""
    create = getattr(_libc, "timerfd_create", None)
    if create is None:
        return None
    timer: int = create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        raise OSError(ctypes.get_errno(), "cannot create a timer")
    return timer
