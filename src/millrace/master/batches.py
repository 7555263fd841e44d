"""The master's side of topologies that run in batches, and of the slots that run them: Spark's executors, workers without a
socket, of which the engine in this process tells."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from millrace.control.events import BatchBegan, BatchCommitted, BatchesEnded, BatchOver, WorkerJoined, WorkerLost
from millrace.master.batch_log import BatchLog, BatchRecord, UnderWay
from millrace.model.cluster import Node
from millrace.runtime.wire import messages as wire
from millrace.state.checkpoint import Manifest

if TYPE_CHECKING:
    from millrace.master.service import Master


@dataclass(slots=True)
class Enlisted:
    """An executor that fills a slot, and what its processes have used, as was last told of it."""

    generation: int
    cpu_seconds: float = 0.0
    memory_mb: float = 0.0
    counters: Counter[str] = field(default_factory=Counter)


class Batching:
    """Called on the master's thread. What is told of a topology or a slot that is gone by now is dropped."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self.enlisted: dict[int, Enlisted] = {}
        self.logs: dict[str, BatchLog] = {}

    def enlist(self, slot: int, node: Node, executor: str, boot: str) -> None:
        enlisted = self.enlisted[slot] = Enlisted(self._master.new_generation())
        self._master.tell(WorkerJoined(slot, enlisted.generation, node, boot or node.name, executor, "", ""))

    def dismiss(self, slot: int, cause: str) -> None:
        enlisted = self.enlisted.pop(slot, None)
        if enlisted is not None:
            self._master.tell(WorkerLost(slot, enlisted.generation, cause))

    def take_report(self, report: wire.Report) -> None:
        """It lacks what only the master knows. Whoever told it runs by the newest plan at the next batch, and by no other."""
        enlisted = self.enlisted.get(report.slot)
        if enlisted is not None:
            self._master.take(enlisted, msgspec.structs.replace(report, generation=enlisted.generation,
                                                                revision=self._master.state.revision))

    def began(self, name: str) -> None:
        if name in self._master.state.topologies:
            self._master.tell(BatchBegan(name))

    def under_way(self, name: str, batch: UnderWay | None) -> None:
        """It takes long. None: it does not any more."""
        if name in self._master.state.topologies:
            self.logs.setdefault(name, BatchLog()).under_way = batch

    def committed(self, name: str, manifest: Manifest) -> None:
        if name in self._master.state.topologies:
            self._master.tell(BatchCommitted(name, manifest))

    def note(self, name: str, record: BatchRecord) -> None:
        if name in self._master.state.topologies:
            self.logs.setdefault(name, BatchLog()).add(record)
            self._master.tell(BatchOver(name))

    def note_error(self, name: str, component: str, text: str, stack: str) -> None:
        """Of what the engine itself has run for the component, in the driver."""
        observed = self._master.observed.get(name)
        if observed is not None:
            observed.note_error({"topology": name, "task": component, "error": text, "traceback": stack})

    def finish(self, name: str, how: str) -> None:
        self.under_way(name, None)
        if name in self._master.state.topologies:
            self._master.tell(BatchesEnded(name, how))
