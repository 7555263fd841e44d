"""How tasks are joined under a plan: the channels that each sends by, the routes that choose among them, and the inlets where
they end."""

from __future__ import annotations

from millrace.errors import UnknownName
from millrace.model.graph import Input, TaskId
from millrace.runtime.flow.channel import Channel, Inlet
from millrace.runtime.flow.links import Links
from millrace.runtime.flow.routing import make_route
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.task import Task


class Wiring:
    """`wire` is called for every task at each new plan. Which ways there are is for `channel` to say."""

    def wire(self, task: Task) -> None:
        """Give the task its channels under the current plan; channels whose target has not moved are kept."""
        run, outputs = task.topology, task.outbox.outputs
        channels: dict[int, Channel] = {}
        routes: dict[str, list[tuple[Input, str, list[Channel]]]] = {output.name: [] for output in outputs}
        for component, given in run.graph.downstream(task.name.component):
            targets = []
            for index in range(component.par):
                target = TaskId(component.name, index)
                number = run.graph.number(target)
                if number not in channels:
                    channels[number] = self.channel(task, target, number)
                targets.append(channels[number])
            routes[given.stream].append((given, component.name, targets))
        for output in outputs:
            output.routes = [make_route(given.grouping, targets, output.fields, run.key_groups.get(component, ()))
                             for given, component, targets in routes[output.name] if given.grouping.kind != "direct"]
            output.targets = {channel.target: channel for given, _, targets in routes[output.name] for channel in targets
                              if given.grouping.kind == "direct"}
        task.rewire(channels)
        if isinstance(task, BoltTask):
            forget_inlets(task)

    def channel(self, task: Task, target: TaskId, number: int) -> Channel:
        """From the task to the target, whose number is given with it."""
        raise NotImplementedError


class LinkWiring(Wiring):
    """By the places of the plan: to a task of the same worker directly, to others over a link."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def channel(self, task: Task, target: TaskId, number: int) -> Channel:
        run = task.topology
        place = run.places.get(target)
        incarnation = place.incarnation if place is not None else -1
        channel = task.channels.get(number)
        if channel is None or channel.target_incarnation != incarnation:
            moved, channel = channel, Channel(task, number, incarnation, target, run.window)
            channel.tuples = moved.tuples if moved is not None else 0  # the traffic of the two tasks, wherever they are
        if place is None:
            channel.full = True  # nowhere to go: wait until there is a slot for it
        elif place.slot == task.worker.slot:
            connect_local(channel, task, number)
        else:
            channel.slot, channel.link = place.slot, self._links.to(place.slot)
        return channel


def connect_local(channel: Channel, task: Task, number: int) -> None:
    """The target is in the same worker: what is sent is handed over by reference."""
    local = task.topology.tasks.get(number)
    if channel.local is None and isinstance(local, BoltTask):
        channel.local = local
        channel.inlet = inlet_of(local, task.number, task.incarnation, task.worker.slot, channel)


def inlet_of(task: BoltTask, source: int, incarnation: int, slot: int, outlet: Channel | None) -> Inlet:
    """Where the task takes what an incarnation of another sends it; made when the first of it comes."""
    inlet = task.inlets.get((source, incarnation))
    if inlet is None:
        graph = task.topology.graph
        component = graph.component(graph.task(source).component)
        if all(given.source != component.name for given in task.definition.inputs):
            raise UnknownName(f"{task.name} takes nothing from {component.name}")
        streams = tuple(stream.name for stream in component.outputs)
        inlet = task.inlets[(source, incarnation)] = Inlet(source, incarnation, component.name, streams, slot, outlet)
    return inlet


def forget_inlets(task: BoltTask) -> None:
    """Of each source the last two incarnations stay: the one that moved away may still be draining."""
    newest: dict[int, list[int]] = {}
    for source, incarnation in sorted(task.inlets, reverse=True):
        newest.setdefault(source, []).append(incarnation)
    for source, incarnations in newest.items():
        for incarnation in incarnations[2:]:
            del task.inlets[source, incarnation]
