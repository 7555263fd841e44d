"""The parts of the master and of the engine that the batches of one topology use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from millrace.control.events import Say
from millrace.control.topology_state import TopologyState
from millrace.control.workers import WorkerView
from millrace.errors import NotTheAuthor
from millrace.master.batch_log import BatchRecord, UnderWay
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.process import WorkerSetup
from millrace.spark.cluster.executors import Executors
from millrace.spark.cluster.free_cores import FreeCores
from millrace.spark.cluster.placement import Placement
from millrace.state.checkpoint import Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BatchStatePort(Protocol):
    """A read-only view of the master's state."""

    @property
    def topologies(self) -> Mapping[str, TopologyState]: ...

    @property
    def workers(self) -> Mapping[int, WorkerView]: ...


class BatchNotesPort(Protocol):
    """Records facts about batches."""

    def take_report(self, report: wire.Report) -> None: ...

    def began(self, name: str) -> None: ...

    def under_way(self, name: str, batch: UnderWay | None) -> None: ...

    def committed(self, name: str, manifest: Manifest) -> None: ...

    def note(self, name: str, record: BatchRecord) -> None: ...

    def note_error(self, name: str, component: str, text: str, stack: str) -> None: ...

    def finish(self, name: str, how: str, uncommitted: str = "") -> None: ...


class DeletingPort(Protocol):
    """Deletes checkpoints in the background, on another thread; errors are logged."""

    def collect(self, topology: str, epoch: int) -> None: ...

    def discard(self, topology: str, names: list[str]) -> None: ...


class BatchPort(Protocol):
    """The part of the master that batches use. Callable from any thread, except `say`."""

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def superseded(self) -> str:
        """The reason why this master has stopped deciding; empty until another driver takes over."""
        ...

    @property
    def state(self) -> BatchStatePort: ...

    @property
    def batching(self) -> BatchNotesPort: ...

    @property
    def checkpointing(self) -> DeletingPort: ...

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work on the master's thread and return its result."""
        ...

    def say(self, message: Say) -> None: ...

    def give_way(self, error: NotTheAuthor) -> None:
        """Stop deciding, because another driver has taken over; called on the master's thread."""
        ...


class BatchEnginePort(Protocol):
    """The part of the engine that a query uses."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def master(self) -> BatchPort: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def executors(self) -> Executors: ...

    @property
    def free_cores(self) -> FreeCores: ...

    @property
    def setup(self) -> WorkerSetup: ...

    @property
    def number(self) -> int: ...

    @property
    def lost(self) -> str:
        """The error to report once Spark has ended; empty until then."""
        ...

    def spark_is_gone(self) -> None:
        """Called by a query that has noticed that Spark has ended."""
        ...

    def next_epoch(self) -> int: ...

    def runs(self) -> list[str]: ...
