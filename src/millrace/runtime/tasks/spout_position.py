"""The position of a replayable spout: restored when it starts, and reported for its next incarnation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millrace.api.spout import ReplayableSpout
from millrace.runtime.meters import REWOUND
from millrace.runtime.tasks.user_errors import USER_ERRORS

if TYPE_CHECKING:
    from millrace.runtime.tasks.spout import SpoutTask

POSITION_SECONDS = 0.2  # between two reads of the position of a blocking spout
SENT_SECONDS = 0.05  # between two times that are remembered with the position reached then
TIMES_REMEMBERED = 12_000


class SentPositions:
    """The positions of one spout task that were sent from this worker, by all its incarnations here, and when. `reached`:
    everything before this position was sent, here or elsewhere."""

    def __init__(self) -> None:
        self.reached = 0
        self._here = 0  # the same for this worker
        self._positions: list[int] = []  # reached at these times, in order
        self._times: list[float] = []

    def note(self, first: int, last: int, now: float) -> None:
        """A chunk of the positions from the first to the last is sent."""
        if last < self._here:
            return
        if self.reached > self._here:  # others have sent what is between
            self._positions, self._times = [], []
        if not self._times or now - self._times[-1] >= SENT_SECONDS:
            self._positions.append(max(first, self._here))
            self._times.append(now)
            if len(self._times) > 2 * TIMES_REMEMBERED:
                del self._positions[:-TIMES_REMEMBERED], self._times[:-TIMES_REMEMBERED]
        self._here = last + 1
        self.reached = max(self.reached, self._here)

    def sent_at(self, position: int) -> float:
        """The time when a position was first sent, or up to `SENT_SECONDS` before that; `REWOUND` if it is not known."""
        at = bisect_right(self._positions, position) - 1
        return self._times[at] if at >= 0 and position < self._here else REWOUND


class SpoutPosition:
    """The last known position of one spout. Reading it runs the spout's code, which may be busy on its own thread."""

    def __init__(self, task: SpoutTask) -> None:
        self._task = task
        self._known: int | None = None
        self._known_at = 0.0
        self._replayable = False
        self._before: int | None = None  # an earlier incarnation has sent everything before this position; None: not asked yet

    def restore(self) -> None:
        """Continue from the position that the master has kept."""
        task = self._task
        if not isinstance(task.component, ReplayableSpout):
            return
        self._replayable = True
        if task.name in task.topology.positions:
            position = task.topology.positions[task.name]
            task.component._next_position = position
            task.component.seek(position)

    def origin(self, positions: Sequence[Any], now: float) -> float:
        """Note that a chunk with these positions is sent. Returns the time when an earlier incarnation has sent the first of
        them, `REWOUND` if that is not known, or 0 if none has."""
        first, last = positions[0], positions[-1]
        if not self._replayable or type(first) is not int or type(last) is not int:
            return 0.0
        sent = self._task.topology.sent[self._task.name]
        if self._before is None:
            self._before = sent.reached
        origin = sent.sent_at(first) if first < self._before else 0.0
        sent.note(first, last, now)
        return origin

    def reported(self) -> int | None:
        """The position that the master keeps for the next incarnation; None if the source cannot be replayed."""
        if not self._task.busy:
            self._read()
        return self._known

    def refresh(self, now: float) -> None:
        """Read it on the thread of a blocking spout, so that the report need not wait for the spout."""
        if now - self._known_at > POSITION_SECONDS:
            self._read()

    def _read(self) -> None:
        task = self._task
        if isinstance(task.component, ReplayableSpout):
            self._known_at = task.worker.clock.now()
            try:
                self._known = task.component.position()
            except USER_ERRORS as error:  # the master keeps the position that it has
                task.report_error(error, None)
