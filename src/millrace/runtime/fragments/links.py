"""The requesting side of a fragment exchange: one link per other worker, with a few requests in progress at a time."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple, Protocol

import zmq

from millrace.errors import MillraceError
from millrace.runtime.fragments.messages import FragmentAnswer, FragmentRequest
from millrace.runtime.wire.messages import encode
from millrace.runtime.wire.transport import Keys, reached_by_ipc, visit

LINK_WINDOW = 4  # requests in progress on a link


class Address(NamedTuple):
    """The address of an exchange. `boot` identifies the running kernel: if it is equal, ipc may reach the exchange."""

    ipc: str
    tcp: str
    boot: str


class Asker(Protocol):
    """Waits for an answer. `over`: it wants no more answers."""

    over: bool

    def answered(self, answer: FragmentAnswer | None, part: memoryview | None) -> None:
        """Handle the answer; None if the other worker does not answer."""


class FragmentLink:
    """Queues requests until fewer than `LINK_WINDOW` are in progress, so that the socket's queue stays small."""

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        self.socket = socket
        self.heard = 0.0  # when the last answer came, or when the first request in progress was sent
        self._waiting: deque[tuple[FragmentRequest, memoryview | None, Asker]] = deque()
        self._flying: dict[int, Asker] = {}
        self._last = 0

    @property
    def busy(self) -> bool:
        return bool(self._flying)

    def ask(self, request: FragmentRequest, part: memoryview | None, asker: Asker, now: float) -> None:
        self._waiting.append((request, part, asker))
        self._send(now)

    def answer(self, answer: FragmentAnswer, part: memoryview | None, now: float) -> bool:
        """Pass an answer to its asker; False if there is none."""
        asker = self._flying.pop(answer.request, None)
        if asker is None:
            return False
        self.heard = now
        if not asker.over:
            asker.answered(answer, part)
        self._send(now)
        return True

    def close(self) -> None:
        """Close the socket and tell all askers that there will be no answer."""
        self.socket.close(linger=0)
        askers = dict.fromkeys([*self._flying.values(), *(asker for _, _, asker in self._waiting)])
        self._flying.clear()
        self._waiting.clear()
        for asker in askers:
            if not asker.over:
                asker.answered(None, None)

    def _send(self, now: float) -> None:
        while self._waiting and len(self._flying) < LINK_WINDOW:
            request, part, asker = self._waiting.popleft()
            if asker.over:
                continue
            if not self._flying:
                self.heard = now
            self._last += 1
            request.request = self._last
            self._flying[self._last] = asker
            parts = () if part is None else (part,)
            self.socket.send_multipart([encode(request), *parts], zmq.NOBLOCK, copy=False)


class FragmentLinks:
    """Links by address: opened on first use, closed when the other side is silent while requests are in progress."""

    def __init__(self, context: zmq.Context[Any], keys: Keys, boot: str, frame_limit: int, silence: float,
                 poller: zmq.Poller) -> None:
        self._context, self._keys, self._boot, self._poller = context, keys, boot, poller
        self._frame_limit, self._silence = frame_limit, silence
        self._links: dict[Address, FragmentLink] = {}
        self.by_socket: dict[zmq.Socket[Any], FragmentLink] = {}

    @property
    def busy(self) -> bool:
        return any(link.busy for link in self._links.values())

    def to(self, address: Address) -> FragmentLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = FragmentLink(self._connected(address))
            self.by_socket[link.socket] = link
            self._poller.register(link.socket, zmq.POLLIN)
        return link

    def heard(self, address: Address) -> float:
        link = self._links.get(address)
        return link.heard if link is not None else -math.inf

    def forget(self, address: Address) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            self._poller.unregister(link.socket)
            del self.by_socket[link.socket]
            link.close()

    def close_silent(self, now: float) -> None:
        for address, link in list(self._links.items()):
            if link.busy and now - link.heard > self._silence:
                self.forget(address)

    def close(self) -> None:
        for address in list(self._links):
            self.forget(address)

    def _connected(self, address: Address) -> zmq.Socket[Any]:
        same_host = reached_by_ipc(self._boot, address.boot, address.ipc, address.tcp)
        endpoint = address.ipc if same_host else address.tcp
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.maxmsgsize = self._frame_limit
        if not same_host:
            visit(socket, self._keys)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise MillraceError(f"cannot exchange fragments with the worker at {address}: {error.strerror}. If it is on "
                                "another host and has no tcp port, give the engine a `bind` address") from None
        return socket
