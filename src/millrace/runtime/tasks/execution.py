"""*Execute*: runs a bolt's code on a chunk and handles the exceptions it raises.

All of this may run on the task's own thread, beside the loop. So it only fills the task's outbox and verdicts, updates its
meters and marks the current chunk. The task *settles* everything shared with other tasks afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millrace.api.tuple import Tuple
from millrace.hotpath.steps import tuples_of
from millrace.runtime.flow.channel import Delivery
from millrace.runtime.flow.routing import rows_of_batch
from millrace.runtime.tasks.user_errors import USER_ERRORS, describe, is_about_the_data
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask


class Execution:
    """Runs the code of one bolt: per tuple, per list of rows or per Arrow batch."""

    def __init__(self, task: BoltTask) -> None:
        self._task, self._reader, self._clock = task, task.reader, task.worker.clock
        self.ended = 0.0  # time when the last chunk was executed
        self._whole_chunks = task.definition.mode != "process"
        self._run = {"process": self._run_each, "process_rows": self._run_rows,
                     "process_arrow": self._run_arrow}[task.definition.mode]

    def run(self, delivery: Delivery) -> None:
        """Process a chunk."""
        clock = self._clock
        start, cpu = clock.now(), clock.cpu()
        try:
            self._run(delivery)
        except wire.WireError as error:
            self._unreadable(delivery, error)
        elapsed = clock.now() - start
        if self._whole_chunks:
            self._task.pace.called(delivery.count, elapsed)
        meters = self._task.meters
        meters.cpu_seconds += clock.cpu() - cpu
        meters.busy_seconds += elapsed
        meters.executed += delivery.count
        meters.execute_latency.record(elapsed / (delivery.count or 1), delivery.count)
        hop = meters.hop(delivery.component)
        hop.inbox_latency.record(start - delivery.arrived, delivery.count)
        hop.chunk_latency.record(elapsed, delivery.count)
        self.ended = start + elapsed

    def run_calls(self, calls: list[Callable[[], None]]) -> None:
        """Run user code that belongs to no chunk."""
        clock, meters = self._clock, self._task.meters
        start, cpu = clock.now(), clock.cpu()
        for call in calls:
            try:
                call()
            except USER_ERRORS as error:
                if not self._rolls_back(error):
                    meters.failed += 1
                    self._task.report_error(error, None)
        meters.cpu_seconds += clock.cpu() - cpu
        meters.busy_seconds += clock.now() - start

    # -- modes -------------------------------------------------------------------------------------------------------

    def _run_each(self, delivery: Delivery) -> None:
        component = self._task.component
        waiting = tuples_of(self._reader.rows(delivery, component.named_rows), delivery)
        process, tup = component.process, None
        while True:
            try:
                for tup in waiting:
                    process(tup)
                return
            except USER_ERRORS as error:
                self._user_error(error, delivery, tup)
                if delivery.failed and delivery.lineage.roots:
                    return  # the whole root is replayed, with the rest of this chunk
                process = self._task.component.process

    def _run_rows(self, delivery: Delivery) -> None:
        component: Any = self._task.component
        rows = self._reader.rows(delivery, component.named_rows)
        try:
            component.process_rows(rows)
        except USER_ERRORS as error:
            self._chunk_error(error, delivery, rows, lambda bolt, row: bolt.process_rows([row]))

    def _run_arrow(self, delivery: Delivery) -> None:
        component: Any = self._task.component
        rows = None if delivery.form == wire.ARROW else self._reader.rows(delivery, component.named_rows)
        try:
            batch = self._reader.batch(delivery) if rows is None else self._reader.as_batch(delivery, rows)
            component.process_arrow(batch)
        except wire.WireError:
            raise
        except USER_ERRORS as error:  # raised by the bolt, or by Arrow if no column type can hold these values
            self._chunk_error(error, delivery, rows_of_batch(batch) if rows is None else rows,
                              lambda bolt, row: bolt.process_arrow(self._reader.as_batch(delivery, [row])))

    # -- exceptions --------------------------------------------------------------------------------------------------

    def _unreadable(self, delivery: Delivery, error: wire.WireError) -> None:
        """A body cannot be read: its root fails and is replayed. Exactly-once, only a roll-back brings its tuples back."""
        task = self._task
        delivery.failed = True
        task.worker.counters["malformed"] += 1
        task.report_error(error, None)
        if task.topology.graph.exactly_once:
            task.broken = f"{task.name} could not read its input ({describe(error)})"

    def _user_error(self, error: BaseException, delivery: Delivery, tup: Tuple | None) -> None:
        if self._rolls_back(error):
            return
        task = self._task
        task.meters.failed += 1
        task.report_error(error, tup)
        if tup is not None and task.component.auto_fail:
            task.dead_letters.fail_or_drop(tup, delivery, error)
        elif not task.acks.by_hand:
            delivery.left = -1  # neither acked nor failed: the root times out, as the bolt requested
        task.life.replace()

    def _chunk_error(self, error: BaseException, delivery: Delivery, rows: list[Any],
                     process_row: Callable[[Any, Any], None]) -> None:
        """A whole-chunk call raised. Fail the chunk if it will be replayed; otherwise process it row by row to find the tuples
        at fault. `process_row` passes one row to the bolt, which may be a new instance."""
        task, lineage = self._task, delivery.lineage
        if lineage.roots and lineage.attempt < task.max_fails:
            self._user_error(error, delivery, Tuple(rows[0], delivery))
            return
        if self._rolls_back(error):
            return
        again = bool(lineage.roots) or task.commits or task.component.keeps_all_or_none
        if not again:  # nothing may be processed twice, so the whole chunk is dropped
            task.meters.failed += len(rows)
            task.report_error(error, None)
            for index, row in enumerate(rows):
                task.dead_letters.fail_or_drop(Tuple(row, delivery, index), delivery, error)
            task.life.replace()
            return
        for index, row in enumerate(rows):
            try:
                process_row(task.component, row)
            except USER_ERRORS as culprit:
                self._user_error(culprit, delivery, Tuple(row, delivery, index))

    def _rolls_back(self, error: BaseException) -> bool:
        """True if the topology must roll back to the last wave: an exactly-once sink could not write, and none of its input
        may be skipped. Only an error in a row itself makes that row a dead letter."""
        task = self._task
        if not task.commits or is_about_the_data(error):
            return False
        task.meters.failed += 1
        task.report_error(error, None)
        task.broken = f"{task.name} could not write ({describe(error)})"
        return True
