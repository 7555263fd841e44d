"""The master's side of topologies that run in batches. Their slots are filled by Spark executors, which have no connection to
the master: the engine in this process reports for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from millrace.control.events import BatchBegan, BatchCommitted, BatchesEnded, BatchOver, Event, WorkerJoined, WorkerLost
from millrace.master.batch_log import BatchLog, BatchRecord, UnderWay
from millrace.master.load.monitor import WorkerMeters
from millrace.master.load.observed import TopologyObserved
from millrace.master.state_view import MasterView
from millrace.model.cluster import Node
from millrace.runtime.wire import messages as wire
from millrace.state.checkpoint import Manifest


@dataclass(slots=True)
class Enlisted:
    """An executor that fills a slot, and the last reported use of its processes."""

    generation: int
    meters: WorkerMeters | None = None
    counters: Counter[str] = field(default_factory=Counter)

    def take(self, report: wire.Report) -> None:
        self.counters, self.meters = Counter(report.counters), WorkerMeters.of(report)


class Batching:
    """Records executors and batches; called from any thread. Reports of a topology or a slot that is gone are dropped.

    `call` runs work on the master's thread, where `tell` lets the master decide on an event, `take` adds up a report, and
    `new_generation` numbers a process that joins. `enlisted` and `logs` are read on that thread.
    """

    def __init__(self, state: MasterView, observed: Mapping[str, TopologyObserved], call: Callable[[Callable[[], None]], None],
                 tell: Callable[[Event], None], take: Callable[[Enlisted, wire.Report], None],
                 new_generation: Callable[[], int]) -> None:
        self._state, self._observed, self._call = state, observed, call
        self._tell, self._take, self._new_generation = tell, take, new_generation
        self.enlisted: dict[int, Enlisted] = {}
        self.logs: dict[str, BatchLog] = {}  # by topology; kept for a while after it ended

    # -- executors ---------------------------------------------------------------------------------------------------

    def enlist(self, slot: int, node: Node, executor: str, boot: str = "") -> None:
        """Register a Spark executor that fills this slot. `boot` names its machine, if several nodes may be on one."""
        self._call(lambda: self._enlist(slot, node, executor, boot))

    def dismiss(self, slot: int, cause: str) -> None:
        """Remove an executor that has ended; its tasks move to the others."""
        self._call(lambda: self._dismiss(slot, cause))

    def take_report(self, report: wire.Report) -> None:
        """Take a report of tasks on an enlisted slot; generation and revision are filled in here."""
        self._call(lambda: self._take_report(report))

    def _enlist(self, slot: int, node: Node, executor: str, boot: str) -> None:
        enlisted = self.enlisted[slot] = Enlisted(self._new_generation())
        self._tell(WorkerJoined(slot, enlisted.generation, node, boot or node.name, executor, "", ""))

    def _dismiss(self, slot: int, cause: str) -> None:
        enlisted = self.enlisted.pop(slot, None)
        if enlisted is not None:
            self._tell(WorkerLost(slot, enlisted.generation, cause))

    def _take_report(self, report: wire.Report) -> None:
        """Complete the report: a batch always runs under the newest plan."""
        enlisted = self.enlisted.get(report.slot)
        if enlisted is not None:
            self._take(enlisted, msgspec.structs.replace(report, generation=enlisted.generation,
                                                         revision=self._state.revision))

    # -- batches -----------------------------------------------------------------------------------------------------

    def began(self, name: str) -> None:
        """Record that a batch has begun; the topology is not drained until `note` is called."""
        self._call(lambda: self._happened(BatchBegan(name)))

    def under_way(self, name: str, batch: UnderWay | None) -> None:
        """Record a slow batch; None clears it."""
        self._call(lambda: self._note_slow(name, batch))

    def committed(self, name: str, manifest: Manifest) -> None:
        """Record a committed batch: queries show its positions and state. Its sinks may not have published yet."""
        self._call(lambda: self._happened(BatchCommitted(name, manifest)))

    def note(self, name: str, record: BatchRecord) -> None:
        """Record a batch that is over."""
        self._call(lambda: self._note(name, record))

    def note_error(self, name: str, component: str, text: str, stack: str) -> None:
        """Record an error in code of the component that the engine ran in the driver."""
        self._call(lambda: self._note_error(name, component, text, stack))

    def finish(self, name: str, how: str, uncommitted: str = "") -> None:
        """End the topology: no other batch of it will be run. `uncommitted`: what was not committed or published, and why."""
        self._call(lambda: self._finish(name, how, uncommitted))

    def _happened(self, event: BatchBegan | BatchCommitted | BatchOver | BatchesEnded) -> None:
        if event.name in self._state.topologies:
            self._tell(event)

    def _note_slow(self, name: str, batch: UnderWay | None) -> None:
        if name in self._state.topologies:
            self.logs.setdefault(name, BatchLog()).under_way = batch

    def _note(self, name: str, record: BatchRecord) -> None:
        if name in self._state.topologies:
            self.logs.setdefault(name, BatchLog()).add(record)
            self._tell(BatchOver(name))

    def _note_error(self, name: str, component: str, text: str, stack: str) -> None:
        observed = self._observed.get(name)
        if observed is not None:
            observed.note_driver_error(component, text, stack)

    def _finish(self, name: str, how: str, uncommitted: str) -> None:
        self._note_slow(name, None)
        self._happened(BatchesEnded(name, how, uncommitted))
