"""Distribution of plans: to the coordination store and, if that is embedded in this process, directly to the nodes' agents."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from millrace.control.assignment import Stamp
from millrace.control.events import Distribute, Say
from millrace.errors import MillraceError, NotTheAuthor
from millrace.master.load.cluster_links import ClusterLinks
from millrace.master.plans.publisher import PlanPublisher
from millrace.master.state_view import MasterView
from millrace.runtime.wire import messages as wire


class DistributionPort(Protocol):
    """The part of the master that the distribution of plans uses."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work on the master's thread."""

    def say(self, message: Say) -> None:
        """Report something to users."""

    def give_way(self, error: NotTheAuthor) -> None:
        """Stop deciding, because another master has taken over."""


class Agents(Protocol):
    def send_to_agent(self, slot: int, agency: wire.Agency) -> None:
        """Send to the agent in this slot, if it has asked before."""


Polls = tuple[float, float]  # seconds between an agent's polls of the master, and a worker's of the plan store


class PlanDistribution:
    """Called on the master's thread, except for the publisher's callback. `polls`: how often agents and workers poll now."""

    def __init__(self, coordination: str, cluster: str, secret: bytes, state: MasterView, agents: Agents,
                 port: DistributionPort, links: ClusterLinks, polls: Callable[[], Polls]) -> None:
        self._state, self._agents, self._port, self._links, self._polls = state, agents, port, links, polls
        self._told = polls()  # as the workers know them, or learn when they ask first
        self.publisher = PlanPublisher(coordination, cluster, secret, self._failed)

    def distribute(self, command: Distribute) -> None:
        stamp = command.assignment.stamp
        parts = {node: wire.encode(part) for node, part in command.parts.items()}
        self.publisher.publish(stamp, parts)
        for node, slot in self._state.agents.items():
            self._agents.send_to_agent(slot, self._agency(node, slot, stamp, parts.get(node, b"")))

    def tick(self) -> None:
        """Tell all workers how often to poll if that has changed. Whoever misses it learns of it when it asks next."""
        polls = self._polls()
        if polls != self._told:
            self._told = polls
            for slot, worker in self._state.workers.items():
                self._agents.send_to_agent(slot, self._agency(worker.node.name, slot, Stamp(0, 0), b""))

    def answer(self, node: str, fetch: wire.Fetch) -> wire.Agency:
        """Tell a worker whether it is its node's agent and, if so, send it a plan newer than the one it has, and the node to
        which it measures the link now."""
        self._links.take(node, fetch.links)
        agency = self._answer(node, fetch)
        if agency.agent:
            agency.target, agency.endpoints = self._links.to_measure(node, time.monotonic())
        return agency

    def _answer(self, node: str, fetch: wire.Fetch) -> wire.Agency:
        is_agent = self._state.agents.get(node) == fetch.slot
        plan = self.publisher.store.read(node) if self.publisher.embedded and is_agent else None
        if plan is not None and plan[0] > Stamp(fetch.author, fetch.revision):
            return self._agency(node, fetch.slot, *plan)
        return self._agency(node, fetch.slot, Stamp(0, 0), b"")

    def _agency(self, node: str, slot: int, stamp: Stamp, part: bytes) -> wire.Agency:
        return wire.Agency(self._state.agents.get(node) == slot, *stamp, part if self.publisher.embedded else b"",
                           agent_poll=self._told[0], worker_poll=self._told[1])

    def _failed(self, error: Exception | None) -> None:
        """Called on the publisher's thread."""
        with suppress(MillraceError):  # the master is ending
            self._port.call(lambda: self._on_failure(error))

    def _on_failure(self, error: Exception | None) -> None:
        if isinstance(error, NotTheAuthor):
            self._port.give_way(error)
        elif error is not None:
            self._port.say(Say(f"new plans cannot be published; tasks keep running under the current plan: {error}",
                               level="warning"))
        else:
            self._port.say(Say("the coordination store is available again: the newest plan is written"))
