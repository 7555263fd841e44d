"""Breaks tcp connections of another process, as a router that restarts or a link that flaps does."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from pathlib import Path

from support.servers.needed import not_tested

PIDFD_GETFD = 438  # the number of the system call on every architecture
ESTABLISHED = 1  # state of a connection in struct tcp_info and in /proc/net/tcp


def cut(pid: int, port: int) -> int:
    """Shut down the established connections of the process that have this port at one end. Returns how many were cut."""
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
        not_tested("connections that break", "the right to open another process's sockets",
                   f"no way into another process here: {os.strerror(ctypes.get_errno())}")
    with socket.socket(fileno=copy) as connection:
        if connection.family != socket.AF_INET or connection.type != socket.SOCK_STREAM or _state(connection) != ESTABLISHED:
            return False
        try:
            if port not in (connection.getsockname()[1], connection.getpeername()[1]):
                return False
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # disconnected meanwhile: cutting the other end does that
            return False
        assert _state(connection) != ESTABLISHED, "the connection outlived the cut"
        return True


def _state(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def established(ports: set[int]) -> set[tuple[str, str]]:
    """(local, remote) of the established tcp connections with one of these local ports."""
    return {(local, remote) for local, remote in _established() if int(local.rpartition(":")[2], 16) in ports}


def established_to(port: int) -> set[tuple[str, str]]:
    """(local, remote) of the established tcp connections with this remote port."""
    return {(local, remote) for local, remote in _established() if int(remote.rpartition(":")[2], 16) == port}


def _established() -> list[tuple[str, str]]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [(row[1], row[2]) for row in rows if int(row[3], 16) == ESTABLISHED]


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])
