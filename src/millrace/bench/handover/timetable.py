"""The timetable of an open-loop source: each line has the time at which it is due, and nothing moves the lines after it.

Latency counts from that time, so the wait of a line that could not be sent when it was due counts, too. The timetable is a
file, because every incarnation of a spout and of a sink must follow the same one, in any process of this machine.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

PRIMING = 64  # lines of each spout task before the timetable: some of their words reach every task, which sets up its state
FILE = "timetable.json"


@dataclass(frozen=True, slots=True)
class Timetable:
    """`start`: time of the first line, by the monotonic clock of the machine. `rate`: lines per second of all spout tasks,
    which take turns; `tasks`: their number. `lines`: of each task, after the priming ones; None: the end is not known yet.
    `priming`: lines of each task before the timetable."""

    start: float
    rate: float
    tasks: int
    lines: int | None = None
    priming: int = PRIMING

    def due_at(self, task: int, position: int) -> float:
        """The time at which a line of a task is due."""
        return self.start + ((position - self.priming) * self.tasks + task) / self.rate

    def due_times(self, numbers: np.ndarray) -> np.ndarray:
        """The times at which lines are due, by their numbers among those of all tasks after the priming ones."""
        return self.start + numbers / self.rate

    def first_not_due(self, task: int, now: float) -> int:
        """The first position of a task that is not due yet, or does not exist."""
        due = max(0, math.floor(((now - self.start) * self.rate - task) / self.tasks) + 1)
        return self.priming + (due if self.lines is None else min(due, self.lines))

    def ending(self, at: float) -> Timetable:
        """The same timetable with an end at about this time."""
        return replace(self, lines=max(0, math.ceil((at - self.start) * self.rate / self.tasks)))

    def positions(self) -> dict[int, int]:
        """The positions that each spout task has sent when the timetable is over, by its index."""
        if self.lines is None:
            raise ValueError("the timetable has no end")
        return dict.fromkeys(range(self.tasks), self.priming + self.lines)

    def write(self, directory: Path) -> None:
        unfinished = directory / f"{FILE}.part"
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.replace(directory / FILE)

    @classmethod
    def read(cls, directory: Path) -> Timetable | None:
        """The timetable in the directory; None if there is none yet."""
        try:
            return cls(**json.loads((directory / FILE).read_text()))
        except FileNotFoundError:
            return None
