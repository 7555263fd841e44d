"""Break tcp connections of another process, as a router that restarts or a link that flaps would."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from pathlib import Path

import pytest

PIDFD_GETFD = 438  # the number of the system call on every architecture


def cut(pid: int, port: int) -> int:
    """Shut down the connections of the process that have this port at one of their ends. Returns how many."""
    pidfd = os.pidfd_open(pid)
    try:
        return sum(_cut_one(pidfd, int(fd.name), port) for fd in Path(f"/proc/{pid}/fd").iterdir() if _is_socket(fd))
    finally:
        os.close(pidfd)


def _is_socket(fd: Path) -> bool:
    try:
        return str(fd.readlink()).startswith("socket:")
    except OSError:  # closed meanwhile
        return False


def _cut_one(pidfd: int, fd: int, port: int) -> bool:
    copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, fd, 0)
    if copy < 0 and ctypes.get_errno() == errno.EBADF:
        return False
    if copy < 0:
        pytest.skip(f"no way into another process here: {os.strerror(ctypes.get_errno())}")
    with socket.socket(fileno=copy) as connection:
        try:
            if connection.family == socket.AF_INET and port in (connection.getsockname()[1], connection.getpeername()[1]):
                connection.shutdown(socket.SHUT_RDWR)
                return True
        except OSError:  # one that only listens
            pass
    return False


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])
