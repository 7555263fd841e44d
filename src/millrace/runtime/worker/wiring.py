"""Connects tasks under a plan: the channels of each task, the routes that choose among them, and the inlets where they end."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.api.grouping import Grouping
from millrace.errors import UnknownName
from millrace.model.graph import Input, TaskId
from millrace.runtime.flow.aggregates import Aggregates
from millrace.runtime.flow.channel import UNPLACED, Channel, Inlet, Lane
from millrace.runtime.flow.combined import Combined
from millrace.runtime.flow.links import Links
from millrace.runtime.flow.merged_fields import ByMergedFields, Merge, MergedKeys
from millrace.runtime.flow.pace import FIRST_TUPLES
from millrace.runtime.flow.routing import ByFields, BySampledFields, Route, make_route
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.host import TaskTopology
from millrace.runtime.tasks.output import Output
from millrace.runtime.tasks.task import Task


class Wiring:
    """Call `wire` for every task at each new plan. Subclasses make the channels."""

    def wire(self, task: Task) -> None:
        """Give the task its channels under the current plan; channels whose target has not moved are kept."""
        run, outputs = task.topology, task.outbox.outputs
        channels: dict[int, Channel] = {}
        routes: dict[str, list[tuple[Input, str, list[Channel]]]] = {output.name: [] for output in outputs}
        for component, subscription in run.graph.downstream(task.name.component):
            targets = []
            for index in range(component.par):
                target = TaskId(component.name, index)
                if target in run.retiring:
                    continue
                number = run.graph.number(target)
                if number not in channels:
                    channels[number] = self.channel(task, target, number)
                if target not in run.apart:  # those are the last ones: owners of key groups count from the first
                    targets.append(channels[number])
            routes[subscription.stream].append((subscription, component.name, targets))
        for output in outputs:
            output.routes = [self._route(task, output, subscription.grouping, component, targets)
                             for subscription, component, targets in routes[output.name]
                             if subscription.grouping.kind != "direct"]
            output.targets = {channel.target: channel for subscription, _, targets in routes[output.name]
                              if subscription.grouping.kind == "direct" for channel in targets}
        task.rewire(channels)
        if isinstance(task, BoltTask):
            forget_inlets(task)

    def _route(self, task: Task, output: Output, grouping: Grouping, component: str, targets: Sequence[Channel]) -> Route:
        route = make_route(grouping, targets, output.fields, *lanes_of(task.topology, component, targets))
        if isinstance(route, ByFields):
            route = self.counted(task, output, grouping, component, route)
        if not grouping.combine:
            return route
        keys = [output.fields.index(name) for name in grouping.names]
        combiner = (MergedKeys(keys, merge_of(task, output, component)) if isinstance(grouping.combine, str)
                    else Aggregates(output.fields, keys, grouping.combine, lambda error: task.report_error(error, None)))
        return Combined(route, combiner, task.count_merged)

    def channel(self, task: Task, target: TaskId, number: int) -> Channel:
        """Make or reuse the channel from the task to the target task of this number."""
        raise NotImplementedError

    def counted(self, task: Task, output: Output, grouping: Grouping, component: str, route: ByFields) -> ByFields:
        """The route to the component with counts of the tuples that are sent to each key group."""
        raise NotImplementedError


def lanes_of(run: TaskTopology, component: str, targets: Sequence[Channel]) -> tuple[Sequence[int], list[Lane]]:
    """The owners of the component's key groups, and lanes for those that are being handed over. Lanes are numbered after the
    tasks."""
    owners, moves = run.key_groups.get(component, ()), run.lanes(component)
    if not moves:
        return owners, []
    lane_of = {group: len(targets) + index for index, move in enumerate(moves) for group in move.groups}
    lanes = [Lane(targets[move.target.index], move.number) for move in moves]
    return [lane_of.get(group, owner) for group, owner in enumerate(owners)], lanes


def merge_of(task: Task, output: Output, component: str) -> Merge:
    """The `merge` of a bolt class, for a sender of tuples to it."""
    return Merge(task.topology.graph.component(component).code, output.row, lambda error: task.report_error(error, None))


class LinkWiring(Wiring):
    """Connects tasks of the same worker directly, and others over links to their slots."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def wire(self, task: Task) -> None:
        task.count_groups()  # the routes of the last plan end
        super().wire(task)

    def counted(self, task: Task, output: Output, grouping: Grouping, component: str, route: ByFields) -> ByFields:
        """The route with counts of key groups and frequent keys, from a sample, and with merging of hot keys if the bolt
        declares how and its senders do not combine all keys."""
        counts, heavy = task.group_counts_of(component, route), task.heavy_keys[component]
        if grouping.combine or not task.topology.graph.component(component).merges:
            return BySampledFields(route, counts, heavy)
        return ByMergedFields(route, counts, heavy, merge_of(task, output, component), task.count_merged)

    def channel(self, task: Task, target: TaskId, number: int) -> Channel:
        run = task.topology
        place = run.places.get(target)
        incarnation = place.incarnation if place is not None else UNPLACED
        channel = task.channels.get(number)
        if channel is None or channel.target_incarnation != incarnation:
            moved, channel = channel, Channel(task, number, incarnation, target, run.window, FIRST_TUPLES)
            if moved is not None:
                channel.succeed(moved)
        if place is not None and place.slot == task.worker.slot:
            connect_local(channel, task, number)
        elif place is not None:
            channel.slot, channel.link = place.slot, self._links.to(place.slot)
        channel.send_held()
        return channel


def connect_local(channel: Channel, task: Task, number: int) -> None:
    """Connect to a target in the same worker: chunks are handed over by reference."""
    local = task.topology.tasks.get(number)
    if channel.local is None and isinstance(local, BoltTask):
        channel.local = local
        channel.inlet = inlet_of(local, task.number, task.incarnation, task.worker.slot, channel)


def inlet_of(task: BoltTask, source: int, incarnation: int, slot: int, outlet: Channel | None) -> Inlet:
    """The task's inlet for one incarnation of a source task; made on first use."""
    inlet = task.inbox.inlets.get((source, incarnation))
    if inlet is None:
        graph = task.topology.graph
        component = graph.component(graph.task(source).component)
        if all(subscription.source != component.name for subscription in task.definition.inputs):
            raise UnknownName(f"{task.name} has no input from {component.name}")
        streams = tuple(stream.name for stream in component.outputs)
        inlet = Inlet(source, incarnation, component.name, streams, slot, outlet)
        task.inbox.inlets[(source, incarnation)] = inlet
    return inlet


def forget_inlets(task: BoltTask) -> None:
    """Keep the inlets of the last two incarnations of each source, of the last two that have sent something, and of those that
    have not sent their end. An incarnation that was prepared beside the task, and whose move was cancelled, has sent nothing:
    it must not take the place of the one that works."""
    inlets = task.inbox.inlets
    newest: dict[int, list[int]] = {}
    for source, incarnation in sorted(inlets, reverse=True):
        newest.setdefault(source, []).append(incarnation)
    for source, incarnations in newest.items():
        if len(incarnations) <= 2:
            continue
        working = [each for each in incarnations if inlets[source, each].next_seq or inlets[source, each].consumed]
        for incarnation in set(incarnations[2:]).difference(working[:2]):
            if not task.inbox.succession.awaits((source, incarnation)):
                del inlets[source, incarnation]
