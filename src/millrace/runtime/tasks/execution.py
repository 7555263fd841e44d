"""*Execute*: a bolt's code is given a chunk, and what it raises is sorted out.

Everything here may run on the task's own thread, beside the loop. So it fills the task's outbox and verdicts, counts in its
meters and marks the chunk at hand; what is shared with other tasks is left to the task, which *settles* afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

from millrace.api.tuple import Tuple
from millrace.runtime.flow.channel import Delivery
from millrace.runtime.flow.routing import rows_of
from millrace.runtime.tasks.user_errors import USER_ERRORS, describe, is_about_the_data
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask


class Execution:
    """Runs the code of a bolt's task, in the way that it is written for."""

    def __init__(self, task: BoltTask) -> None:
        self._task, self._reader, self._clock = task, task.reader, task.worker.clock
        self._run = {"process": self._run_each, "process_rows": self._run_rows,
                     "process_arrow": self._run_arrow}[task.definition.mode]

    def run(self, delivery: Delivery) -> None:
        """Give the bolt a chunk."""
        clock = self._clock
        start, cpu = clock.now(), clock.cpu()
        try:
            self._run(delivery)
        except wire.WireError as error:
            delivery.failed = True  # a body that cannot be read: its sender will be told, and send it again
            self._task.worker.counters["malformed"] += 1
            self._task.report_error(error, None)
        elapsed = clock.now() - start
        meters = self._task.meters
        meters.cpu_seconds += clock.cpu() - cpu
        meters.busy_seconds += elapsed
        meters.executed += delivery.count
        meters.execute_latency.record(elapsed / (delivery.count or 1), delivery.count)

    def run_calls(self, calls: list[Callable[[], None]]) -> None:
        """User code that belongs to no chunk."""
        clock, meters = self._clock, self._task.meters
        start, cpu = clock.now(), clock.cpu()
        for call in calls:
            try:
                call()
            except USER_ERRORS as error:
                if not self._goes_back(error):
                    meters.failed += 1
                    self._task.report_error(error, None)
        meters.cpu_seconds += clock.cpu() - cpu
        meters.busy_seconds += clock.now() - start

    # -- the ways to give a bolt a chunk -----------------------------------------------------------------------------

    def _run_each(self, delivery: Delivery) -> None:
        component = self._task.component
        tuples = map(Tuple, self._reader.rows(delivery, component.named_rows), repeat(delivery), count())
        process, tup = component.process, None
        while True:
            try:
                for tup in tuples:
                    process(tup)
                return
            except USER_ERRORS as error:
                self._user_error(error, delivery, tup)
                if delivery.failed and delivery.roots:
                    return  # the whole root comes again, so the rest of the chunk can wait for it
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
        except USER_ERRORS as error:  # of the bolt, or because no column can hold these values together
            given = rows_of(batch) if rows is None else rows
            self._chunk_error(error, delivery, given,
                              lambda bolt, row: bolt.process_arrow(self._reader.as_batch(delivery, [row])))

    # -- what it raises ----------------------------------------------------------------------------------------------

    def _user_error(self, error: BaseException, delivery: Delivery, tup: Tuple | None) -> None:
        if self._goes_back(error):
            return
        task = self._task
        task.meters.failed += 1
        task.report_error(error, tup)
        if tup is not None and task.component.auto_fail:
            task.give_up_or_fail(tup, delivery, error)
        elif not task.by_hand:
            delivery.left = -1  # neither acked nor failed: the root will time out, as the bolt asked for
        task.rebuild()

    def _chunk_error(self, error: BaseException, delivery: Delivery, rows: list[Any], one: Callable[[Any, Any], None]) -> None:
        """A whole-chunk call raised. If the chunk will come again, fail it; if not, find the tuples that are to blame: `one`
        gives the bolt, perhaps a new instance, a single row."""
        task = self._task
        if delivery.roots and delivery.attempt < task.max_fails:
            self._user_error(error, delivery, Tuple(rows[0], delivery))
            return
        if self._goes_back(error):
            return
        if not delivery.roots and not task.commits:  # nothing may be tried twice, so all of the chunk is given up
            task.meters.failed += len(rows)
            task.report_error(error, None)
            for index, row in enumerate(rows):
                task.give_up_or_fail(Tuple(row, delivery, index), delivery, error)
            task.rebuild()
            return
        for index, row in enumerate(rows):
            try:
                one(task.component, row)
            except USER_ERRORS as culprit:
                self._user_error(culprit, delivery, Tuple(row, delivery, index))

    def _goes_back(self, error: BaseException) -> bool:
        """A sink of an exactly-once topology could not write: what it did not get may not be left out, so everything goes
        back to the last wave, for as long as it takes. Only what is wrong with a row itself makes it a dead letter."""
        task = self._task
        if not task.commits or is_about_the_data(error):
            return False
        task.meters.failed += 1
        task.report_error(error, None)
        task.broken = f"{task.name} could not write ({describe(error)})"
        return True
