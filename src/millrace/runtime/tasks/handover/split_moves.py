"""Splits of a spout task that go to another task, or come from one, while it reads its others.

The old owner stops reading them. When everything that it has sent of them is processed, their positions are final and it tells
them to the master. The new owner makes their instances meanwhile, and reads them as soon as the plan gives it their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from millrace.control.assignment import SWITCH, Move, SplitStart
from millrace.runtime.tasks.splits import Splits
from millrace.runtime.tasks.user_errors import describe, error_of
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.flow.channel import Channel
    from millrace.runtime.tasks.spout import SpoutTask

RETRY_SECONDS = 1.0  # before an instance is made again that could not be made


class SplitMove:
    """The part of one task in a move of splits. `go_on` does what can be done now."""

    def __init__(self, task: SpoutTask, move: Move) -> None:
        self._task, self.move = task, move
        self._error: BaseException | None = None
        self._not_before = 0.0
        self._told: wire.Armed | wire.Taken | None = None
        self.withdrawn = False  # the plan has no such move any more
        self.over = False

    @property
    def _splits(self) -> Splits:
        return cast(Splits, self._task.component)

    def go_on(self) -> None:
        raise NotImplementedError

    def _run(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Run user code where the task's code runs, then `done`; if it raises, try again later."""
        self._task.on_own_thread(partial(self._guarded, work), partial(self._returned, done))

    def _guarded(self, work: Callable[[], None]) -> None:
        self._error = error_of(work)

    def _returned(self, done: Callable[[], None]) -> None:
        task = self._task
        task.busy = False
        if task.ended:
            return
        if self._error is None:
            done()
        else:
            task.report_error(self._error, None)
            self._not_before = task.worker.clock.now() + RETRY_SECONDS
            task.worker.tell_master(self._armed(error=describe(self._error)))
        task.worker.ready(task)

    def _armed(self, starts: Mapping[int, SplitStart] = MappingProxyType({}), error: str = "") -> wire.Armed:
        worker, run = self._task.worker, self._task.topology
        return wire.Armed(worker.slot, worker.generation, run.number, run.epoch, self.move.number, 0, 0, error, dict(starts))

    def _tell(self, answer: wire.Armed | wire.Taken) -> None:
        self._told = answer
        self._task.worker.tell_master(answer)

    def tell_again(self) -> None:
        """Repeat the last answer: the master may not have received it."""
        if self._told is not None and not self.over:
            self._task.worker.tell_master(self._told)


class SplitDeparture(SplitMove):
    """The old owner's part."""

    def __init__(self, task: SpoutTask, move: Move) -> None:
        super().__init__(task, move)
        self._ends: dict[Channel, int] | None = None  # the last chunk in each channel that may have tuples of these splits
        self._starts: dict[int, SplitStart] = {}
        self._resting = False

    def go_on(self) -> None:
        task, groups = self._task, self.move.groups
        if self.over:
            return
        if self.withdrawn or self.move.phase == SWITCH:
            self._end()
            return
        if not self._resting:
            self._resting = True
            self._splits.rest(groups)
        if self._told is not None or task.worker.clock.now() < self._not_before or not self._splits.settled(groups):
            return
        if self._ends is None:
            self._ends = {channel: channel.seq for channel in task.channels.values()}
        if all(channel.consumed >= self._ends.get(channel, 0) for channel in task.channels.values()
               if channel.target_name in task.topology.places):
            self._run(self._hand_over, self._stopped)

    def _hand_over(self) -> None:
        self._starts = self._splits.starts(self.move.groups)

    def _stopped(self) -> None:
        self._tell(self._armed(self._starts))

    def tell_again(self) -> None:
        if self._told is None and not self.over:  # the master's reason, if it takes too long
            self._task.worker.tell_master(self._armed(error="tuples that it has sent are not processed yet"))
        super().tell_again()

    def _end(self) -> None:
        """Read the splits on if they are still this task's, otherwise drop them."""
        task, self.over = self._task, True
        kept = task.snapshots.owned_groups()
        self._splits.read_on(split for split in self.move.groups if split in kept)
        gone = [split for split in self.move.groups if split not in kept]
        if gone and task.splits is not None:
            self._run(partial(task.splits.drop, gone), lambda: None)


class SplitArrival(SplitMove):
    """The new owner's part."""

    def __init__(self, task: SpoutTask, move: Move) -> None:
        super().__init__(task, move)
        self._ready = self._has_taken = False

    def go_on(self) -> None:
        task = self._task
        if self.over or task.worker.clock.now() < self._not_before:
            return
        if self.withdrawn:
            self.over = True
            if not self._has_taken:
                self._run(partial(self._splits.drop, [split for split in self.move.groups if split not in self._splits.parts]),
                          lambda: None)
        elif self.move.phase == SWITCH:
            if not self._has_taken:
                self._run(self._take, self._taken)
        elif not self._ready:
            self._run(self._prepare, self._prepared)

    def _prepare(self) -> None:
        for split in self.move.groups:
            self._splits.prepare(split)

    def _prepared(self) -> None:
        self._ready = True
        self._tell(self._armed())

    def _take(self) -> None:
        if self._task.splits is not None:
            self._task.splits.take(self.move.starts)

    def _taken(self) -> None:
        worker, run, self._has_taken = self._task.worker, self._task.topology, True
        self._tell(wire.Taken(worker.slot, worker.generation, run.number, run.epoch, self.move.number, source=worker.slot))


class SplitMoves:
    """The moves of splits that one task takes part in."""

    def __init__(self, task: SpoutTask) -> None:
        self._task = task
        self._moves: dict[int, SplitMove] = {}

    def begin(self, move: Move) -> None:
        """Take part in a move, unless it is known."""
        task = self._task
        if move.number in self._moves or task.splits is None:
            return
        if (move.task, move.old.incarnation) == (task.name, task.incarnation) and move.phase != SWITCH:
            self._moves[move.number] = SplitDeparture(task, move)
        elif (move.target, move.new.incarnation) == (task.name, task.incarnation):
            self._moves[move.number] = SplitArrival(task, move)

    def update(self, moves: dict[int, Move]) -> None:
        """Take the moves of a new plan, by number."""
        for number, part in self._moves.items():
            part.move, part.withdrawn = moves.get(number, part.move), number not in moves

    def go_on(self) -> None:
        """Do what can be done now. Runs on the loop, before the task's code does."""
        task = self._task
        for number, part in list(self._moves.items()):
            if not task.started or task.busy or task.ended:
                return
            part.go_on()
            if part.over and part.withdrawn:
                del self._moves[number]

    def tell_again(self) -> None:
        for part in self._moves.values():
            part.tell_again()
