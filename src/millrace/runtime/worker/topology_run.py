"""What a worker knows of one topology: its part of the plan, and the tasks of it that run here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.config import ACKERS, AT_LEAST_ONCE, CHANNEL_WINDOW, GUARANTEE
from millrace.control.assignment import TopologyAssignment
from millrace.control.ledger import Owner
from millrace.model.graph import ACKER, TaskId
from millrace.runtime.flow.tracker import Tracker
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task
    from millrace.runtime.worker.worker import Worker


class TopologyRun:
    """What a worker knows of one topology."""

    def __init__(self, worker: Worker, given: TopologyAssignment) -> None:
        self.number, self.graph = given.number, given.graph
        self.tracked = GUARANTEE.of(given.graph.config) == AT_LEAST_ONCE and ACKERS.of(given.graph.config) != 0
        self.window: int = CHANNEL_WINDOW.of(given.graph.config)
        self.tracker = Tracker(given.number, worker.slot, worker.generation, worker.links.send, self._tell)
        self.worker = worker
        self.tasks: dict[int, Task] = {}
        self.retired: list[Task] = []  # moved elsewhere: they work off their inbox, for a while, and get nothing new
        self.ackers: dict[int, int] = {}  # acker index -> incarnation, of the ackers that run here
        self.losses, self.epoch = given.losses, given.epoch
        self.broken = ""  # why nothing more may be committed in this epoch: something is missing
        self.replan(given)

    def replan(self, given: TopologyAssignment) -> None:
        """Another plan, perhaps with other tasks."""
        self.graph = given.graph
        # One for all tasks: with a copy for each, ten thousand of them would need a hundred million entries.
        self._components = {str(self.graph.number(task)): task.component for task in self.graph.tasks()}
        self.update(given)

    def update(self, given: TopologyAssignment) -> None:
        if given.epoch != self.epoch:
            self.broken = ""
        self.version, self.epoch, self.active = given.version, given.epoch, given.active
        self.key_groups = given.key_groups
        self.places = dict(given.places)
        self.positions = dict(given.positions)
        self.restore, self.blocks, self.holders = given.restore, given.blocks, dict(given.holders)
        ackers = [self.places.get(TaskId(ACKER, index)) for index in range(self.graph.ackers)]
        self.tracker.acker_slots = [place.slot if place is not None else None for place in ackers]
        self.tracker.version = given.version

    def everyone(self) -> list[Task]:
        """The tasks that run here, and those that have moved away and are not done."""
        return [*self.tasks.values(), *self.retired]

    def find(self, number: int, incarnation: int) -> Task | None:
        """The very task that a message is for, or of."""
        task = self.tasks.get(number)
        if task is not None and task.incarnation == incarnation:
            return task
        return next((old for old in self.retired if old.number == number and old.incarnation == incarnation), None)

    def context(self, task: TaskId) -> dict[str, Any]:
        """What Storm tells a component about its surroundings, under Storm's names."""
        graph, definition = self.graph, self.graph.component(task.component)
        sources = {given.source: graph.component(given.source) for given in definition.inputs}
        targets: dict[str, dict[str, Any]] = {stream.name: {} for stream in definition.outputs}
        for component, given in graph.downstream(task.component):
            targets[given.stream][component.name] = grouping_context(given)
        return {
            "taskid": graph.number(task), "componentid": task.component,
            "task->component": self._components,
            "streams": [stream.name for stream in definition.outputs],
            "stream->outputfields": {stream.name: list(stream.fields) for stream in definition.outputs},
            "stream->target->grouping": targets,
            "source->stream->grouping": {name: {given.stream: grouping_context(given) for given in definition.inputs
                                                if given.source == name} for name in sources},
            "source->stream->fields": {name: {stream.name: list(stream.fields) for stream in source.outputs}
                                       for name, source in sources.items()},
        }

    def _tell(self, owner: Owner, finished: list[int], failed: list[int]) -> None:
        """Verdicts for a spout task, here or at another worker."""
        slot, number, incarnation = owner
        if slot == self.worker.slot:
            self.on_verdicts(number, incarnation, finished, failed)
        else:
            self.worker.links.send(slot, wire.Verdicts(self.worker.slot, self.worker.generation, self.number, number,
                                                       incarnation, finished, failed))

    def on_verdicts(self, number: int, incarnation: int, finished: list[int], failed: list[int]) -> None:
        """What became of roots, for the spout task that sent them, if it is still the same."""
        task = self.tasks.get(number)
        if isinstance(task, SpoutTask) and task.incarnation == incarnation:
            task.told(finished, failed)


def grouping_context(given: Any) -> dict[str, Any]:
    kind = given.grouping.kind.upper().replace("-", "_")
    return {"type": kind, "fields": list(given.grouping.names)} if given.grouping.names else {"type": kind}
