"""The tasks of one topology in a worker that are being handed over: those that leave, and those that arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from millrace.config import HANDOVER_SWITCH_LIMIT
from millrace.control.assignment import SWITCH, Move
from millrace.model.graph import TaskId
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.handover.arrival import Arrival
from millrace.runtime.tasks.handover.departure import Departure
from millrace.runtime.tasks.handover.group_arrival import GroupArrival
from millrace.runtime.tasks.handover.group_departure import GroupDeparture
from millrace.runtime.tasks.handover.retirement import Retirement
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task
    from millrace.runtime.worker.topology_run import TopologyRun


class Handovers:
    """`end` ends a task for good."""

    def __init__(self, run: TopologyRun, end: Callable[[Task], None]) -> None:
        self._run, self._end = run, end
        self.moves: list[Move] = []
        self.past = 0  # moves with a lower number have ended
        self._highest = 0  # number of a move, as known here
        self._leaving: list[Task] = []
        self._arriving: list[Task] = []  # that have not switched; then they are tasks like others

    def __iter__(self) -> Iterator[Task]:
        """The tasks that leave or arrive, and are not among those of the plan."""
        yield from self._leaving
        yield from self._arriving

    def find(self, number: int, incarnation: int) -> Task | None:
        return next((task for task in self if (task.number, task.incarnation) == (number, incarnation)), None)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Count tasks that have taken over among those that run here. The state can come before the plan that says so, and that
        plan can be skipped: the next one may know nothing of the move."""
        taken = [task for task in self._arriving if task.arrival is not None and task.arrival.over]
        for task in taken:
            self._arriving.remove(task)
            self._run.tasks[task.number] = task

    def update(self, moves: list[Move]) -> None:
        """Take the moves of a new plan. Tasks end that have handed over, and those whose move was cancelled."""
        self.moves = moves
        self._forget_past()
        whole = [move for move in moves if not move.groups and not move.retires]
        by_new = {(move.task, move.new.incarnation): move for move in whole}
        self._leaving = self._still(self._leaving, {(move.task, move.old.incarnation): move for move in whole})
        self._arriving = self._still(self._arriving, by_new)
        retiring = {(move.task, move.old.incarnation): move for move in moves if move.retires}
        for task in self._run.tasks.values():
            if isinstance(task.departure, Retirement) and (move := retiring.get((task.name, task.incarnation))) is not None:
                task.departure.update(move)
            if task.arrival is not None and (move := by_new.get((task.name, task.incarnation))) is not None:
                task.arrival.update(move)
            if isinstance(task, BoltTask) and (task.group_arrivals or task.group_departures):
                self._update_groups(task)
            elif isinstance(task, SpoutTask):
                task.split_moves.update({move.number: move for move in moves})

    def _forget_past(self) -> None:
        """Forget what tasks remember of moves that have ended: no plan will name them again."""
        numbers = [move.number for move in self.moves]
        self.past = min(numbers, default=self._highest + 1)
        self._highest = max(self._highest, *numbers, 0)
        for task in self._run.everyone():
            task.cuts = {number: channel for number, channel in task.cuts.items() if number >= self.past}
            if isinstance(task, BoltTask):
                task.inbox.forget_moves(self.past)

    def _update_groups(self, task: BoltTask) -> None:
        moves = {move.number: move for move in self.moves}
        for number, departure in task.group_departures.items():
            if number in moves:  # the others end in `check`, after the task has the channels of the plan
                departure.update(moves[number])
        for number, arrival in list(task.group_arrivals.items()):
            if number in moves:
                arrival.update(moves[number])
            else:
                del task.group_arrivals[number]

    def _still(self, tasks: Sequence[Task], moves: dict[tuple[TaskId, int], Move]) -> list[Task]:
        stay = []
        for task in tasks:
            move, part = moves.get((task.name, task.incarnation)), task.departure or task.arrival
            if move is not None and part is not None:
                part.update(move)
            if move is not None or (task.departure is not None and task.departure.frozen):
                stay.append(task)
            else:
                self._end(task)
        return stay

    def leaves(self, task: Task) -> bool:
        """Begin the departure of a task that the plan places elsewhere; False if it is not handed over."""
        move = next((move for move in self.moves if move.task == task.name and move.phase == SWITCH
                     and not move.groups and not move.retires and move.old.incarnation == task.incarnation), None)
        if move is None:
            return False
        task.departure = Departure(task, move, HANDOVER_SWITCH_LIMIT.of(self._run.graph.config))
        if isinstance(task, SpoutTask):
            task.active = False  # without a call of `deactivate`: the next incarnation is active
        self._leaving.append(task)
        return True

    def arrives(self, name: TaskId, incarnation: int) -> Task | None:
        """The task that was prepared for this place, if there is one: it is a task of the plan from now on."""
        task = next((task for task in self._arriving if (task.name, task.incarnation) == (name, incarnation)), None)
        if task is not None:
            self._arriving.remove(task)
        return task

    def begin(self, make: Callable[[TaskId, int], Task], slot: int, generation_of: Callable[[int], int]) -> list[Task]:
        """Make the tasks that are to arrive here. They begin when they are wired."""
        known = {(task.name, task.incarnation) for task in (*self._arriving, *self._run.tasks.values())}
        made = []
        for move in self.moves:
            if move.groups:
                self._begin_groups(move, generation_of)
            elif move.retires:
                self._begin_retirement(move)
            elif move.new.slot == slot and move.phase != SWITCH and (move.task, move.new.incarnation) not in known:
                task = make(move.task, move.new.incarnation)
                task.arrival = Arrival(task, move, generation_of(move.old.slot))
                if isinstance(task, BoltTask):
                    task.inbox.early = True
                self._arriving.append(task)
                made.append(task)
        return made

    def _begin_groups(self, move: Move, generation_of: Callable[[int], int]) -> None:
        """Let the tasks here that give or take key groups begin with it."""
        number_of, limit = self._run.graph.number, HANDOVER_SWITCH_LIMIT.of(self._run.graph.config)
        source, target = self._run.tasks.get(number_of(move.task)), self._run.tasks.get(number_of(move.target))
        if isinstance(target, BoltTask) and target.incarnation == move.new.incarnation and move.phase != SWITCH \
                and move.number not in target.group_arrivals:
            arrival = target.group_arrivals[move.number] = GroupArrival(target, move, generation_of(move.old.slot))
            arrival.begin()
        if isinstance(source, BoltTask) and source.incarnation == move.old.incarnation and move.phase == SWITCH \
                and move.number not in source.group_departures:
            departure = source.group_departures[move.number] = GroupDeparture(source, move, limit)
            departure.check()
        for task in (source, target):
            if isinstance(task, SpoutTask):
                task.split_moves.begin(move)

    def _begin_retirement(self, move: Move) -> None:
        task = self._run.tasks.get(self._run.graph.number(move.task))
        if task is not None and task.incarnation == move.old.incarnation and move.phase == SWITCH and task.departure is None:
            task.departure = Retirement(task, move, HANDOVER_SWITCH_LIMIT.of(self._run.graph.config))
            if isinstance(task, SpoutTask):
                task.active = False

    def mark(self, task: Task) -> None:
        """Cut the channels of a task to those that have switched: what it emits from now on goes to the new place, or by a lane
        to the new owner. One that has sent its end has nothing more to say, and its receivers may have forgotten it."""
        if task.departure is not None and task.departure.frozen:
            return
        cuts = [(move.number, channel) for move in self.moves if move.phase == SWITCH and move.number not in task.cuts
                and (channel := task.channels.get(self._run.graph.number(move.task))) is not None
                and channel.target_incarnation == move.old.incarnation]
        if cuts:
            task.send_waiting()
            for number, channel in cuts:
                channel.send_mark(wire.HandoverMark(wire.MOVE, number))
                task.cuts[number] = channel

    def lanes(self, component: str) -> list[Move]:
        """The moves of key groups of this component whose state is on its way."""
        return [move for move in self.moves if move.groups and move.phase == SWITCH and move.task.component == component]

    # -- time ----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Let tasks that leave hand over, or end if they have, and tasks that retire go on."""
        underway = {(move.task, move.old.incarnation) for move in self.moves}
        for task in list(self._leaving):
            assert task.departure is not None
            task.departure.go_on()
            if task.departure.over and (task.name, task.incarnation) not in underway:
                self._leaving.remove(task)
                self._end(task)
        numbers = {move.number for move in self.moves}
        for task in self._run.tasks.values():
            if isinstance(task.departure, Retirement):
                task.departure.go_on()
            if isinstance(task, SpoutTask):
                task.split_moves.go_on()
            if isinstance(task, BoltTask):
                over = [number for number, departure in task.group_departures.items()
                        if number not in numbers and departure.over]
                for number in over:
                    del task.group_departures[number]

    def tell_again(self) -> None:
        """Repeat answers that the master has not reacted to."""
        underway = {(move.task, move.new.incarnation) for move in self.moves}
        for task in (*self._arriving, *self._run.tasks.values()):
            if task.arrival is not None and (task.name, task.incarnation) in underway:
                task.arrival.tell_again()
            if isinstance(task.departure, Retirement):
                task.departure.tell_again()
            for arrival in task.group_arrivals.values() if isinstance(task, BoltTask) else ():
                arrival.tell_again()
            if isinstance(task, SpoutTask):
                task.split_moves.tell_again()

    def end_all(self) -> None:
        """End all of them."""
        tasks = list(self)
        self._leaving, self._arriving = [], []
        for task in tasks:
            self._end(task)
