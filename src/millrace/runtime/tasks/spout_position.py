"""The position of a replayable spout, or those of its splits: restored when it starts, reported for its next incarnation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from millrace.api.spout import ReplayableSpout
from millrace.control.assignment import SplitStart
from millrace.model.graph import TaskId
from millrace.runtime.meters import REWOUND
from millrace.runtime.tasks.user_errors import USER_ERRORS
from millrace.state.checkpoint import SplitRecord

if TYPE_CHECKING:
    from millrace.runtime.tasks.splits import Splits
    from millrace.runtime.tasks.spout import SpoutTask

POSITION_SECONDS = 0.2  # between two reads of the position of a blocking spout
SENT_SECONDS = 0.05  # between two times that are remembered with the position reached then
TIMES_REMEMBERED = 12_000


class SentPositions:
    """The positions of one spout task, or of one split, that were sent from this worker by all incarnations here, and when.
    `reached`: everything before this position was sent, here or elsewhere."""

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
        self._known: dict[TaskId, int] = {}
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

    def reached(self) -> int:
        """The position before which everything was sent."""
        return self._task.topology.sent[self._task.name].reached

    def reported(self) -> Mapping[TaskId, int]:
        """The position that the master keeps for the next incarnation; none if the source cannot be replayed."""
        if not self._task.busy:
            self._read()
        return self._known

    def refresh(self, now: float) -> None:
        """Read it on the thread of a blocking spout, so that the report need not wait for the spout."""
        if now - self._known_at > POSITION_SECONDS:
            self._read()

    def _read(self) -> None:
        task = self._task
        if task.component is None:
            return
        self._known_at = task.worker.clock.now()
        try:
            self._known = self._now()
        except USER_ERRORS as error:  # the master keeps the position that it has
            task.report_error(error, None)

    def _now(self) -> dict[TaskId, int]:
        component = self._task.component
        return {self._task.name: component.position()} if isinstance(component, ReplayableSpout) else {}


class SplitPositions(SpoutPosition):
    """The last known positions of the splits of one task."""

    def __init__(self, task: SpoutTask) -> None:
        super().__init__(task)
        self._noted: dict[int, int] = {}  # by split: everything before this position is noted as sent
        self._repeated: dict[int, int] = {}  # by split that began before this position: others have sent everything before it

    @property
    def _splits(self) -> Splits:
        return cast("Splits", self._task.component)

    def restore(self) -> None:
        """Read the splits that the task owns, unless it is restored from a wave, or another incarnation hands them over."""
        task = self._task
        if not task.topology.graph.waves and task.arrival is None:
            self.restore_from({})

    def restore_from(self, places: Mapping[int, SplitRecord]) -> None:
        """Have the splits that the task owns by the current plan, at these places, unless the master has kept others. Runs
        where the task does."""
        task = self._task
        kept = {split: SplitRecord(position) for split in task.snapshots.owned_groups()
                if (position := task.topology.positions.get(self.source(split))) is not None}
        self._splits.become(task.snapshots.owned_groups(), {**places, **kept})
        self._begun(self._splits.parts)

    def take(self, starts: Mapping[int, SplitStart]) -> None:
        """Read these splits, too. Runs where the task does."""
        new = {split: start for split, start in starts.items() if split not in self._splits.parts}
        for split, start in sorted(new.items()):
            self._splits.begin(split, *start)
        self._begun(new)

    def _begun(self, splits: Iterable[int]) -> None:
        for split in splits:
            first, reached = self._splits.parts[split]._next_position, self._task.topology.sent[self.source(split)].reached
            self._noted[split] = first
            if first < reached:
                self._repeated[split] = reached

    def source(self, split: int) -> TaskId:
        return TaskId(self._task.name.component, split)

    def origin(self, positions: Sequence[Any], now: float) -> float:
        """As for a spout without splits. A chunk may have tuples of several of them; all that were emitted are sent now."""
        sent = self._task.topology.sent
        origin = self._first_origin(positions) if self._repeated else 0.0
        for split, part in self._splits.parts.items():
            if part._next_position > self._noted[split]:
                sent[self.source(split)].note(self._noted[split], part._next_position - 1, now)
                self._noted[split] = part._next_position
        return origin

    def _first_origin(self, positions: Sequence[Any]) -> float:
        """The time when the first tuple that is sent again was sent before; 0 if there is none among these."""
        sent, count = self._task.topology.sent, self._task.definition.splits
        self._repeated = {split: before for split, before in self._repeated.items() if self._noted.get(split, 0) < before}
        for tup_id in positions:
            position, split = divmod(tup_id, count)
            if position < self._repeated.get(split, 0):
                return sent[self.source(split)].sent_at(position)
        return 0.0

    def reached_by(self, split: int) -> int:
        """The position before which everything of a split was sent."""
        return self._task.topology.sent[self.source(split)].reached

    def drop(self, splits: Iterable[int]) -> None:
        """Stop having splits: others have them. Runs where the task does."""
        self._splits.drop(splits)
        for split in splits:
            self._noted.pop(split, None)
            self._repeated.pop(split, None)

    def _now(self) -> dict[TaskId, int]:
        return {self.source(split): position for split, position in self._splits.positions().items()}
