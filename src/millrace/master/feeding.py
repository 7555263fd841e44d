"""The master's side of a topology whose spouts are fed by queries in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from millrace.control.events import Event, Killed, Say, WaveRequested
from millrace.control.waves import Waves
from millrace.master.load.observed import TopologyObserved
from millrace.master.state_view import MasterView
from millrace.runtime.wire.transport import Keys


class FeedingPort(Protocol):
    """The part of the master that feeding uses."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The cluster's settings."""

    @property
    def endpoint(self) -> str:
        """Address of the master's port for workers and feeders."""

    @property
    def keys(self) -> Keys:
        """The keys with which feeders prove that they belong to this run."""

    @property
    def state(self) -> MasterView:
        """Workers and topologies."""

    @property
    def observed(self) -> Mapping[str, TopologyObserved]:
        """Reports of the tasks, by topology."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work on the master's thread and return its result; callable from any thread."""

    def later(self, work: Callable[[], Any]) -> None:
        """Run the work on the master's thread soon; callable from any thread."""

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition, which is evaluated on the master's thread, holds. False if time ran out."""

    def tell(self, event: Event) -> None:
        """Let the master decide on an event; called on its thread."""

    def say(self, message: Say) -> None:
        """Report something to users; called on the master's thread."""

    def delay_kill(self, topology: str, hook: Callable[[Killed], None]) -> None:
        """Have the hook called, once, in place of killing the topology; called on the master's thread."""


class FedTopology:
    """One topology, for the queries that feed it. Every method may be called from any thread."""

    def __init__(self, name: str, port: FeedingPort) -> None:
        self.name, self._port = name, port
        self.settings, self.endpoint, self.keys = port.settings, port.endpoint, port.keys

    # -- reports -------------------------------------------------------------------------------------------------------

    def say(self, text: str, level: str = "info") -> None:
        self._port.later(lambda: self._port.say(Say(text, self.name, level)))

    def report_error(self, component: str, text: str) -> None:
        """Report an error to users, and record it as one of the component."""

        def report() -> None:
            self._port.say(Say(text, self.name, "error"))
            observed = self._port.observed.get(self.name)
            if observed is not None:
                observed.note_driver_error(component, text)

        self._port.later(report)

    # -- its end -------------------------------------------------------------------------------------------------------

    def delay_kill(self, hook: Callable[[Killed], None]) -> None:
        """Have the hook called, on the master's thread, when the topology is to be killed; the hook's owner then calls `kill`.
        A second request kills at once."""
        self._port.call(lambda: self._port.delay_kill(self.name, hook))

    def kill(self, event: Killed) -> None:
        """Kill the topology, after `delay_kill`: its time for tuples in flight begins now."""
        self._port.later(lambda: self._kill(event))

    def _kill(self, event: Killed) -> None:
        if self.name in self._port.state.topologies:  # a second kill may have ended it already
            self._port.tell(Killed(event.name, event.wait, time.monotonic()))

    # -- positions -----------------------------------------------------------------------------------------------------

    def offsets(self) -> str:
        """The run under which its read positions are recorded."""
        return str(self._port.call(lambda: self._port.state.topology(self.name).offsets))

    def committed_offsets(self) -> str:
        """The run that its last checkpoint names; empty if there is none."""
        return str(self._port.call(self._committed_offsets))

    def _committed_offsets(self) -> str:
        topology = self._port.state.topologies.get(self.name)
        return topology.checkpoint.offsets if topology is not None and topology.checkpoint is not None else ""

    def fed_spouts(self) -> int:
        """The number of spouts fed by queries, over all topologies, including those that are starting."""
        count: int = self._port.call(lambda: sum(
            component.dataframe for topology in self._port.state.topologies.values()
            for component in topology.graph.components))
        return count

    # -- waves ---------------------------------------------------------------------------------------------------------

    def roll_backs(self) -> int:
        """The number of times that tasks were rolled back to a wave."""
        count: int = self._port.call(self._roll_backs)
        return count

    def request_wave(self) -> int:
        """Make a wave due. Returns the number of the last one that has begun."""
        wave: int = self._port.call(self._request_wave)
        return wave

    def wait_for_wave(self, wave: int, roll_backs: int, seconds: float) -> bool:
        """Wait until the wave is committed or tasks were rolled back since the number was `roll_backs`. False if time ran
        out."""
        return self._port.wait_until(lambda: self._waves().committed >= wave or self._roll_backs() != roll_backs, seconds)

    def _roll_backs(self) -> int:
        return self._port.state.topology(self.name).roll_backs

    def _request_wave(self) -> int:
        self._port.tell(WaveRequested(self.name))
        return self._waves().wave

    def _waves(self) -> Waves:
        waves = self._port.state.topology(self.name).waves
        assert waves is not None
        return waves
