"""The ways from a worker to the others: opened when something first goes there, forgotten when a plan has another address."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

from millrace.control.assignment import WorkerAddress
from millrace.errors import MillraceError
from millrace.runtime.flow.channel import Link
from millrace.runtime.wire import messages as wire

log = logging.getLogger("millrace.worker")


class Peers(Protocol):
    """Who can make a link. `forget`: the worker of this slot is gone, or is another one now."""

    def link(self, address: WorkerAddress) -> Link: ...

    def forget(self, slot: int) -> None: ...


class Nowhere:
    """The link to a worker that cannot be reached."""

    def send(self, frames: list[Any]) -> None: ...


class Links:
    """One for each worker. Several channels share the link to the slot of their targets."""

    def __init__(self, peers: Peers, counters: Counter[str]) -> None:
        self._peers, self._counters = peers, counters
        self._addresses: dict[int, WorkerAddress] = {}
        self._open: dict[int, Link] = {}

    def reach(self, workers: Iterable[WorkerAddress]) -> None:
        """The workers that there are under a new plan."""
        fresh = {address.slot: address for address in workers}
        for slot, address in self._addresses.items():
            if fresh.get(slot) != address:
                self._open.pop(slot, None)
                self._peers.forget(slot)
        self._addresses = fresh

    def to(self, slot: int) -> Link | None:
        """None: there is no worker in that slot."""
        link = self._open.get(slot)
        address = self._addresses.get(slot)
        if link is None and address is not None:
            try:
                link = self._peers.link(address)
            except MillraceError as error:  # what is sent there is lost, and replayed if it is tracked
                log.error("%s", error)
                self._counters["unreachable"] += 1
                link = Nowhere()
            self._open[slot] = link
        return link

    def send(self, slot: int, message: wire.DataMessage) -> None:
        link = self.to(slot)
        if link is not None:
            link.send([wire.encode(message)])
