"""Links from a worker to the others: opened on first use, dropped when a plan has another address."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Protocol

from millrace.control.assignment import WorkerAddress
from millrace.errors import MillraceError
from millrace.runtime.flow.channel import Link
from millrace.runtime.wire import messages as wire

log = logging.getLogger("millrace.worker")
UNSENT_LIMIT = 1024  # messages kept for workers without an address


class Peers(Protocol):
    """Makes links. `forget`: the worker of this slot is gone or was replaced."""

    def link(self, address: WorkerAddress) -> Link: ...

    def forget(self, slot: int) -> None: ...


class Nowhere:
    """The link to an unreachable worker: it drops everything."""

    def send(self, frames: list[Any]) -> None: ...


class Links:
    """The links of one worker, by slot. All channels to a slot share its link.

    Plans do not reach all workers at the same moment. A worker may receive chunks or roots from another with a newer plan, and
    not know its address before it has that plan, too: its answers wait until then."""

    def __init__(self, peers: Peers, counters: Counter[str]) -> None:
        self._peers, self._counters = peers, counters
        self._addresses: dict[int, WorkerAddress] = {}
        self._open: dict[int, Link] = {}
        self._unsent: deque[tuple[int, list[Any]]] = deque(maxlen=UNSENT_LIMIT)

    def reach(self, workers: Iterable[WorkerAddress]) -> None:
        """Set the workers of a new plan."""
        fresh = {address.slot: address for address in workers}
        for slot, address in self._addresses.items():
            if fresh.get(slot) != address:
                self._open.pop(slot, None)
                self._peers.forget(slot)
        self._addresses = fresh
        unsent, self._unsent = self._unsent, deque(maxlen=UNSENT_LIMIT)
        for slot, frames in unsent:
            self._send(slot, frames)

    def to(self, slot: int) -> Link | None:
        """The link to a slot; None if it has no worker."""
        link = self._open.get(slot)
        address = self._addresses.get(slot)
        if link is None and address is not None:
            try:
                link = self._peers.link(address)
            except MillraceError as error:  # chunks sent there are lost; tracked ones are replayed
                log.error("%s", error)
                self._counters["unreachable"] += 1
                link = Nowhere()
            self._open[slot] = link
        return link

    def send(self, slot: int, message: wire.DataMessage) -> None:
        self._send(slot, [wire.encode(message)])

    def _send(self, slot: int, frames: list[Any]) -> None:
        link = self.to(slot)
        if link is not None:
            link.send(frames)
        else:
            self._unsent.append((slot, frames))
