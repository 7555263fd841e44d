"""One topology in a worker: its part of the plan, and its tasks that run here."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from millrace.config import ACKERS, AT_LEAST_ONCE, CHANNEL_WINDOW, GUARANTEE
from millrace.control.assignment import SWITCH, Move, TopologyAssignment
from millrace.control.ledger import Owner
from millrace.model.graph import ACKER, Input, TaskId
from millrace.runtime.flow.tracker import Tracker
from millrace.runtime.meters import TopologyMeters
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.tasks.spout_position import SentPositions
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.handovers import Handovers

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task
    from millrace.runtime.worker.worker import Worker


class TopologyRun:
    """One topology in a worker."""

    def __init__(self, worker: Worker, plan: TopologyAssignment) -> None:
        self.number, self.graph = plan.number, plan.graph
        self.tracked = GUARANTEE.of(plan.graph.config) == AT_LEAST_ONCE and ACKERS.of(plan.graph.config) != 0
        self.window: int = CHANNEL_WINDOW.of(plan.graph.config)
        self.tracker = Tracker(plan.number, worker.slot, worker.generation, worker.links.send, self._send_verdicts,
                               worker.clock.cpu)
        self.worker = worker
        self.tasks: dict[int, Task] = {}
        self.meters = TopologyMeters()
        self.sent: defaultdict[TaskId, SentPositions] = defaultdict(SentPositions)
        self.handovers = Handovers(self, worker.end)
        self.ackers: dict[int, int] = {}  # acker index -> incarnation, of the ackers that run here
        self.losses, self.epoch = plan.losses, plan.epoch
        self.rewinds = plan.graph.waves and GUARANTEE.of(plan.graph.config) == AT_LEAST_ONCE  # spouts, to the last wave
        self.broken = ""  # why nothing more may be committed in this epoch: tuples are missing
        self.replan(plan)

    def replan(self, plan: TopologyAssignment) -> None:
        """Apply a plan that has other tasks."""
        self.graph = plan.graph
        # Shared by all tasks: with a copy for each, ten thousand of them would need a hundred million entries.
        self._components = {str(self.graph.number(task)): task.component for task in self.graph.tasks()}
        self.update(plan)
        for task in self.everyone():
            task.redefine(self.graph.component(task.name.component))

    def update(self, plan: TopologyAssignment) -> None:
        """Apply a plan for the same tasks."""
        if plan.epoch != self.epoch:
            self.broken = ""
        self.version, self.epoch, self.active = plan.version, plan.epoch, plan.active
        self.key_groups = plan.key_groups
        self.places = dict(plan.places)
        self.positions = dict(plan.positions)
        for task, position in plan.reached:
            self.sent[task].reached = max(position, self.sent[task].reached)
        self.restore, self.blocks, self.holders = plan.restore, plan.blocks, dict(plan.holders)
        self.recovers = plan.recovers
        self.capturing = plan.capturing
        if not plan.capturing:
            for running in self.tasks.values():
                running.captured = False
        self.apart = frozenset(plan.apart)
        self.retiring = frozenset(move.task for move in plan.moves if move.retires and move.phase == SWITCH)
        self.handovers.update(plan.moves)
        ackers = [self.places.get(TaskId(ACKER, index)) for index in range(self.graph.ackers)]
        self.tracker.acker_slots = [place.slot if place is not None else None for place in ackers]
        self.tracker.version = plan.version

    def take(self, name: TaskId) -> Task | None:
        """Take a task out of those of the plan. The graph may not have it any more."""
        number = next((number for number, task in self.tasks.items() if task.name == name), None)
        return self.tasks.pop(number) if number is not None else None

    def everyone(self) -> list[Task]:
        """The tasks that run here, those that leave and those that arrive."""
        return [*self.tasks.values(), *self.handovers]

    def lanes(self, component: str) -> list[Move]:
        """The moves of the component's key groups that are under way."""
        return self.handovers.lanes(component)

    def find(self, number: int, incarnation: int) -> Task | None:
        """The incarnation of a task that a message is for or from."""
        task = self.tasks.get(number)
        if task is not None and task.incarnation == incarnation:
            return task
        return self.handovers.find(number, incarnation)

    def context(self, task: TaskId) -> dict[str, Any]:
        """The topology context of a component, under Storm's names."""
        graph, definition = self.graph, self.graph.component(task.component)
        sources = {subscription.source: graph.component(subscription.source) for subscription in definition.inputs}
        targets: dict[str, dict[str, Any]] = {stream.name: {} for stream in definition.outputs}
        for component, subscription in graph.downstream(task.component):
            targets[subscription.stream][component.name] = grouping_context(subscription)
        return {
            "taskid": graph.number(task), "componentid": task.component,
            "task->component": self._components,
            "streams": [stream.name for stream in definition.outputs],
            "stream->outputfields": {stream.name: list(stream.fields) for stream in definition.outputs},
            "stream->target->grouping": targets,
            "source->stream->grouping": {name: {subscription.stream: grouping_context(subscription)
                                                for subscription in definition.inputs if subscription.source == name}
                                         for name in sources},
            "source->stream->fields": {name: {stream.name: list(stream.fields) for stream in source.outputs}
                                       for name, source in sources.items()},
        }

    def _send_verdicts(self, owner: Owner, finished: list[int], failed: list[int]) -> None:
        """Send verdicts to a spout task, here or in another worker."""
        slot, number, incarnation = owner
        if slot == self.worker.slot:
            self.on_verdicts(number, incarnation, finished, failed)
        else:
            self.worker.links.send(slot, wire.Verdicts(self.worker.slot, self.worker.generation, self.number, number,
                                                       incarnation, finished, failed))

    def on_verdicts(self, number: int, incarnation: int, finished: list[int], failed: list[int]) -> None:
        """Pass verdicts on roots to the spout task that sent them, if it is still the same incarnation."""
        task = self.find(number, incarnation)
        if isinstance(task, SpoutTask):
            task.tracking.on_verdicts(finished, failed)


def grouping_context(subscription: Input) -> dict[str, Any]:
    grouping = subscription.grouping
    kind = grouping.kind.upper().replace("-", "_")
    return {"type": kind, "fields": list(grouping.names)} if grouping.names else {"type": kind}
