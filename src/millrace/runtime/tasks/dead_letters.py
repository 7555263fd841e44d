"""Dead letters: tuples that failed and are not tried again, sent on their own stream.

A letter larger than a frame could not be sent either: its large values are replaced by their beginning and their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from millrace.api.tuple import DEAD_LETTERS, Tuple
from millrace.errors import EncodingError
from millrace.runtime.flow.channel import Delivery
from millrace.runtime.tasks.output import Output
from millrace.runtime.tasks.user_errors import describe
from millrace.runtime.wire.bodies import encode_extended

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask

LEAST_ROOM = 64  # bytes for a shortened value; with less for each, all values together become one text


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
        """Emit a dead letter for an emitted row that cannot be sent. A letter that a bolt emitted itself is only shortened."""
        letters = self._task.outbox.by_stream[DEAD_LETTERS]
        if output is not letters:
            letters.rows.append(self._letter(output.name, row, describe(error)))
        elif (shorter := self._short(row)) != row:
            letters.rows.append(shorter)

    def _letter(self, stream: str, values: Iterable[Any], error: str) -> tuple[Any, ...]:
        """A row of the dead-letter stream. Values that cannot be encoded, perhaps the cause, are replaced by their repr."""
        name, values = self._task.name, list(values)
        row, origin = self._task.outbox.by_stream[DEAD_LETTERS].row, [name.component, name.index, stream]
        try:
            return self._fitting(row([*origin, values, error]))
        except EncodingError:
            return self._fitting(row([*origin, list(map(_text_of, values)), error]))

    def _fitting(self, letter: tuple[Any, ...]) -> tuple[Any, ...]:
        """The letter, shortened if no frame can hold it."""
        fits = _size_of(letter) < self._task.worker.frame_limit  # a frame also has the header of a list
        return letter if fits else self._short(letter)

    def _short(self, letter: tuple[Any, ...]) -> tuple[Any, ...]:
        limit, (*origin, values, error) = self._task.worker.frame_limit, letter
        short = shortened(values if isinstance(values, list) else [values], limit // 4)
        return (*origin, short, str(error)[:limit // 16])


def shortened(values: Sequence[Any], room: int) -> list[Any]:
    """The values, with large ones replaced by a text of their beginning and size: all together fit into `room` bytes."""
    share = room // max(1, len(values))
    if share < LEAST_ROOM:
        return [_beginning(list(values), room)]
    return [value if _size_of(value) <= share else _beginning(value, share) for value in values]


def _beginning(value: Any, room: int) -> str:
    """A text of at most `room` bytes; a character has up to four."""
    return f"{_text_of(value, quoted=False)[:room // 8]}... ({_size_of(value)} bytes)"


def _size_of(value: Any) -> int:
    """Bytes of the encoded value; 0 if it cannot be encoded. Decimals, dates and times are sent as extensions."""
    try:
        return len(encode_extended([value])) - 1  # without the header of the list
    except (TypeError, ValueError, OverflowError, RecursionError):
        return 0


def _text_of(value: Any, quoted: bool = True) -> str:
    if isinstance(value, str) and not quoted:
        return value
    try:
        return repr(value)
    except ValueError:  # an integer with more digits than Python converts to a string
        return f"a {type(value).__name__} that is too large to show"
