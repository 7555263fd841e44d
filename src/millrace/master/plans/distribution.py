"""How plans leave the master: to the coordination store and, if that is in this process, straight on to the nodes' agents."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from millrace.config import COORDINATION
from millrace.control.assignment import Stamp
from millrace.control.events import Distribute, Say
from millrace.errors import MillraceError, NotTheAuthor
from millrace.master.plans.publisher import Publisher
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.master.service import Master


class Distributing:
    """Called on the master's thread, but for what the publisher has to tell."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self.publisher = Publisher(COORDINATION.of(master.settings), master.name, self._failed)

    def distribute(self, command: Distribute) -> None:
        stamp = command.assignment.stamp
        parts = {node: wire.encode(part) for node, part in command.parts.items()}
        self.publisher.publish(stamp, parts)
        for node, slot in self._master.state.agents.items():
            connection = self._master.connections.get(slot)
            if connection is not None and connection.agent is not None:
                self._master.worker_port.reply(connection.agent, self._agency(node, slot, stamp, parts.get(node, b"")))

    def answer(self, node: str, fetch: wire.Fetch) -> wire.Agency:
        """To a worker that asks whether it is its node's agent, and what is new since the plan that it has."""
        is_agent = self._master.state.agents.get(node) == fetch.slot
        found = self.publisher.store.read(node) if self.publisher.embedded and is_agent else None
        if found is not None and found[0] > Stamp(fetch.author, fetch.revision):
            return self._agency(node, fetch.slot, *found)
        return self._agency(node, fetch.slot, Stamp(0, 0), b"")

    def _agency(self, node: str, slot: int, stamp: Stamp, part: bytes) -> wire.Agency:
        return wire.Agency(self._master.state.agents.get(node) == slot, *stamp, part if self.publisher.embedded else b"")

    def _failed(self, error: Exception | None) -> None:
        """On the publisher's thread."""
        with suppress(MillraceError):  # the master is ending
            self._master.call(lambda: self._on_failure(error))

    def _on_failure(self, error: Exception | None) -> None:
        if isinstance(error, NotTheAuthor):
            self._master.give_way(error)
        elif error is not None:
            self._master.say(Say(f"plans wait, and everything runs on as it is: {error}", level="warning"))
        else:
            self._master.say(Say("the coordination store is back: the newest plan is written"))
