"""The master's side of topologies that run in batches. Their slots are filled by Spark executors, which have no connection to
the master: the engine in this process reports for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from millrace.control.events import BatchBegan, BatchCommitted, BatchesEnded, BatchOver, Event, WorkerJoined, WorkerLost
from millrace.master.batch_log import BatchLog, BatchRecord, UnderWay
from millrace.master.load.observed import TopologyObserved
from millrace.master.state_view import MasterView
from millrace.model.cluster import Node
from millrace.runtime.wire import messages as wire
from millrace.state.checkpoint import Manifest


@dataclass(slots=True)
class Enlisted:
    """An executor that fills a slot, and the last reported use of its processes."""

    generation: int
    cpu_seconds: float = 0.0
    memory_mb: float = 0.0
    counters: Counter[str] = field(default_factory=Counter)


class Batching:
    """Called on the master's thread. Reports of a topology or a slot that is gone are dropped.

    `tell` lets the master decide on an event, `take` adds up a report, `new_generation` numbers a process that joins.
    """

    def __init__(self, state: MasterView, observed: Mapping[str, TopologyObserved], tell: Callable[[Event], None],
                 take: Callable[[Enlisted, wire.Report], None], new_generation: Callable[[], int]) -> None:
        self._state, self._observed = state, observed
        self._tell, self._take, self._new_generation = tell, take, new_generation
        self.enlisted: dict[int, Enlisted] = {}
        self.logs: dict[str, BatchLog] = {}

    def enlist(self, slot: int, node: Node, executor: str, boot: str) -> None:
        enlisted = self.enlisted[slot] = Enlisted(self._new_generation())
        self._tell(WorkerJoined(slot, enlisted.generation, node, boot or node.name, executor, "", ""))

    def dismiss(self, slot: int, cause: str) -> None:
        enlisted = self.enlisted.pop(slot, None)
        if enlisted is not None:
            self._tell(WorkerLost(slot, enlisted.generation, cause))

    def take_report(self, report: wire.Report) -> None:
        """Complete the report with generation and revision: a batch always runs under the newest plan."""
        enlisted = self.enlisted.get(report.slot)
        if enlisted is not None:
            self._take(enlisted, msgspec.structs.replace(report, generation=enlisted.generation,
                                                         revision=self._state.revision))

    def began(self, name: str) -> None:
        if name in self._state.topologies:
            self._tell(BatchBegan(name))

    def under_way(self, name: str, batch: UnderWay | None) -> None:
        """Record a slow batch; None clears it."""
        if name in self._state.topologies:
            self.logs.setdefault(name, BatchLog()).under_way = batch

    def committed(self, name: str, manifest: Manifest) -> None:
        if name in self._state.topologies:
            self._tell(BatchCommitted(name, manifest))

    def note(self, name: str, record: BatchRecord) -> None:
        """Record a batch that is over."""
        if name in self._state.topologies:
            self.logs.setdefault(name, BatchLog()).add(record)
            self._tell(BatchOver(name))

    def note_error(self, name: str, component: str, text: str, stack: str) -> None:
        """Record an error in code of the component that the engine ran in the driver."""
        observed = self._observed.get(name)
        if observed is not None:
            observed.note_driver_error(component, text, stack)

    def finish(self, name: str, how: str, uncommitted: str) -> None:
        self.under_way(name, None)
        if name in self._state.topologies:
            self._tell(BatchesEnded(name, how, uncommitted))
