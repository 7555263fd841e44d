"""Dead letters: tuples that failed and are not tried again, sent on their own stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millrace.api.tuple import DEAD_LETTERS, Tuple
from millrace.errors import EncodingError
from millrace.runtime.flow.channel import Delivery
from millrace.runtime.tasks.output import Output
from millrace.runtime.tasks.user_errors import describe

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask


class DeadLetters:
    """Decides between another attempt and a dead letter for each tuple of one bolt that failed."""

    def __init__(self, task: BoltTask) -> None:
        self._task = task

    def fail_or_drop(self, tup: Tuple, delivery: Delivery, error: BaseException | str) -> None:
        """Fail the tuple's root. If it failed too often, or nothing would replay it, make it a dead letter."""
        task = self._task
        if delivery.lineage.roots and delivery.lineage.attempt < task.max_fails:
            delivery.failed = True
            return
        task.meters.dead_letters += 1
        output = task.outbox.by_stream[DEAD_LETTERS]
        letter = self._letter(delivery.stream, tup.values, error if isinstance(error, str) else describe(error))
        task.worker.errors.dead_letter(task, letter)
        if task.acks.by_hand:
            task.outbox.add(output, letter, (tup,), None, None)
            task.acks.ack(tup)
        else:
            output.rows.append(letter)

    def add_unsendable(self, output: Output, row: Any, error: BaseException) -> None:
        """Emit a dead letter for an emitted row that cannot be sent."""
        if output.name != DEAD_LETTERS:
            self._task.outbox.by_stream[DEAD_LETTERS].rows.append(self._letter(output.name, row, describe(error)))

    def _letter(self, stream: str, values: Iterable[Any], error: str) -> tuple[Any, ...]:
        """A row of the dead-letter stream. Values that cannot be encoded, perhaps the cause, are replaced by their repr."""
        name = self._task.name
        row, origin = self._task.outbox.by_stream[DEAD_LETTERS].row, [name.component, name.index, stream]
        try:
            return row([*origin, list(values), error])
        except EncodingError:
            return row([*origin, [repr(value) for value in values], error])
