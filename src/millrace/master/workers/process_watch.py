"""Notices the end of a process on this host at once, through a pidfd, without being its parent."""

from __future__ import annotations

import os


class PidWatch:
    """`fd` becomes readable when the process ends. `open` returns None if the process cannot be watched."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid, self.fd = pid, fd

    @classmethod
    def open(cls, pid: int) -> PidWatch | None:
        if not hasattr(os, "pidfd_open"):
            return None
        try:
            return cls(pid, os.pidfd_open(pid))
        except (OSError, OverflowError):
            return None  # ended already, or another user's process: heartbeats show its end

    def close(self) -> None:
        os.close(self.fd)
