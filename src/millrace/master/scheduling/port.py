"""The part of the master that the scheduling loop uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from millrace.control.events import Event, Say
from millrace.master.load.monitor import WorkerMeters
from millrace.master.load.observed import TopologyObserved
from millrace.master.state_view import MasterView


class Process(Protocol):
    """A process that reports for a slot: a worker, or a Spark executor."""

    meters: WorkerMeters | None


class SchedulingPort(Protocol):
    """The master as the scheduling loop sees it: its state, and the changes that the loop requests."""

    @property
    def state(self) -> MasterView:
        """Workers, topologies and plans."""

    @property
    def observed(self) -> Mapping[str, TopologyObserved]:
        """Reports of the tasks, by topology."""

    def processes(self) -> Mapping[int, Process]:
        """All processes that report, by slot."""

    def tell(self, event: Event) -> None:
        """Let the master decide on an event."""

    def say(self, message: Say) -> None:
        """Report something to users."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work on the master's thread; callable from any thread."""
