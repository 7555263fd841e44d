"""Measures the link to another node: the round trip, and what open connections to it carry.

The kernel measures both for every connection, whatever the processes at its ends do meanwhile. A message that a worker echoes
would measure how busy that worker is.
"""

from __future__ import annotations

import logging
import os
import socket as sockets
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import zmq
from zmq.utils.monitor import recv_monitor_message

from millrace.runtime.wire.transport import CONNECT_MS, Keys, visit

log = logging.getLogger("millrace.worker")
LOOK_MS = 100  # between checks whether the thread should end
TCP_INFO = getattr(sockets, "TCP_INFO", -1)  # only Linux tells
OPEN_FILES = Path("/proc/self/fd")
# Offsets in the kernel's struct tcp_info: flags, then times in microseconds and bytes per second.
APP_LIMITED, ROUND_TRIP, LEAST_ROUND_TRIP, DELIVERY_RATE, LENGTH = 7, 68, 148, 160, 168


class TcpInfo(NamedTuple):
    """The kernel's figures of a connection. `bandwidth`: bytes per second; 0 if its sender has not always had more to send."""

    round_trip: float
    bandwidth: float


class LinkProbe:
    """Measures one link at a time, on a thread of its own: a node that does not answer must not hold up anything."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self._context, self._keys = context, keys
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._numbers = count(1)  # of attempts
        self._measured: deque[tuple[str, float, float]] = deque()

    def begin(self, node: str, endpoints: Sequence[str]) -> None:
        """Measure the link to the node whose workers have these endpoints, unless another is being measured."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._measure, args=(node, endpoints), daemon=True, name="link probe")
            self._thread.start()

    def take(self) -> list[tuple[str, float, float]]:
        """The measurements since the last call: node, seconds there and back, bytes per second or 0."""
        return [self._measured.popleft() for _ in range(len(self._measured))]

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _measure(self, node: str, endpoints: Sequence[str]) -> None:
        """Connect to the first for a moment, and look at the connections that this process has to any of them."""
        try:
            round_trip = self._round_trip(endpoints[0])
        except zmq.ZMQError as error:
            log.debug("the link to %s cannot be measured: %s", node, error)
            return
        if round_trip is not None:
            carried = [info.bandwidth for info in _connections({_address(endpoint) for endpoint in endpoints})]
            self._measured.append((node, round_trip, max(carried, default=0.0)))

    def _round_trip(self, endpoint: str) -> float | None:
        """None if nobody answers there in time, or if the system does not tell."""
        with self._context.socket(zmq.PUSH) as socket:
            socket.linger = 0
            visit(socket, self._keys)
            # An address of its own: pyzmq's default names a file descriptor, which may belong to the socket before this one.
            monitor = socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED,
                                                f"inproc://link-probe-{next(self._numbers)}")
            try:
                socket.connect(endpoint)
                return self._handshake(monitor, endpoint)
            finally:
                socket.disable_monitor()
                monitor.close(linger=0)

    def _handshake(self, monitor: zmq.Socket[Any], endpoint: str) -> float | None:
        """Wait for the handshake, but not for ever: a peer that refuses it is connected to again and again."""
        deadline = time.monotonic() + CONNECT_MS / 1000
        connection = None
        while not self._ended.is_set() and time.monotonic() < deadline:
            if not monitor.poll(LOOK_MS):
                continue
            event = recv_monitor_message(monitor)
            if event["event"] == zmq.EVENT_CONNECTED:
                connection = int(event["value"])
            elif connection is not None:  # the handshake has gone back and forth, so the kernel knows
                info = _info_of(connection, {_address(endpoint)})
                return info.round_trip if info is not None else None
        return None


def _connections(addresses: set[tuple[str, int]]) -> Iterator[TcpInfo]:
    for name in os.listdir(OPEN_FILES) if OPEN_FILES.is_dir() else ():
        info = _info_of(int(name), addresses)
        if info is not None:
            yield info


def _info_of(descriptor: int, addresses: set[tuple[str, int]]) -> TcpInfo | None:
    """The figures of an open file, if it is a connection to one of these addresses. Another thread may close it meanwhile."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        with sockets.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in (sockets.AF_INET, sockets.AF_INET6) or connection.getpeername()[:2] not in addresses:
                return None
            info = connection.getsockopt(sockets.IPPROTO_TCP, TCP_INFO, LENGTH)
    except OSError:
        return None
    if len(info) < LENGTH:
        return None
    shortest, usual = (struct.unpack_from("I", info, offset)[0] / 1e6 for offset in (LEAST_ROUND_TRIP, ROUND_TRIP))
    rate = struct.unpack_from("Q", info, DELIVERY_RATE)[0] if not info[APP_LIMITED] & 1 else 0
    return TcpInfo(shortest or usual, float(rate))


def _address(endpoint: str) -> tuple[str, int]:
    parts = urlsplit(endpoint)
    return parts.hostname or "", parts.port or 0
