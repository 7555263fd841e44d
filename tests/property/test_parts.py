"""For any graph, placement and moves, a worker's lookups in its node's part match the whole plan."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.control.assignment import Assignment, TopologyAssignment
from millrace.control.events import Distribute, Killed, Moved, Submitted, Ticked, WorkerJoined, WorkerLost, WorkerReported
from millrace.control.master_state import MasterState
from millrace.control.plan_diff import plan_diff
from millrace.model.cluster import Node
from millrace.model.graph import ACKER, ComponentDef, Input, StreamDef, TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire

OUTPUTS = (StreamDef("default", ("word",)), StreamDef("other", ("word",)))
GROUPINGS = (Grouping.SHUFFLE, Grouping.fields("word"), Grouping.ALL, Grouping.GLOBAL)


@st.composite
def graphs(draw: st.DrawFn, name: str = "any") -> TopologyGraph:
    """Draw up to six components; every bolt reads some of those before it."""
    components: list[ComponentDef] = []
    for number in range(draw(st.integers(1, 6))):
        before = [component.name for component in components]
        sources = draw(st.lists(st.sampled_from(before), unique=True, max_size=3)) if before else []
        inputs = tuple(Input(source, draw(st.sampled_from(["default", "other"])), draw(st.sampled_from(GROUPINGS)))
                       for source in sources)
        kind, mode = ("bolt", "process") if inputs else ("spout", "next_tuple")
        components.append(ComponentDef(f"c{number}", kind, "parts:any", draw(st.integers(1, 4)), {}, OUTPUTS, inputs, False,
                                       mode))
    guarantee = draw(st.sampled_from(["at-least-once", "at-most-once"]))
    return TopologyGraph(name, tuple(components), {"topology.guarantee": guarantee, "topology.key.groups": 8})


class Watched:
    """A master whose every plan is checked, node by node, against all components that were ever on the node."""

    def __init__(self, slots: int, nodes: int) -> None:
        self.state, self.nodes, self.generation = MasterState(), nodes, 0
        self.been: dict[tuple[int, str], set[str]] = {}  # topology, node -> components
        self.running: dict[int, dict[tuple[int, TaskId], int]] = {}  # what the worker on each slot runs
        self.last = Assignment(0)
        for slot in range(slots):
            self.join(slot)

    def join(self, slot: int) -> None:
        self.generation += 1
        self.running[slot] = {}
        node = Node(f"node{slot % self.nodes}", 4, 1000.0, 4096)
        self.on(WorkerJoined(slot, self.generation, node, "boot", "", f"ipc://{slot}", ""))

    def on(self, event: object) -> None:
        for command in self.state.handle(event):  # type: ignore[arg-type]
            if isinstance(command, Distribute):
                self.check(command)

    def check(self, command: Distribute) -> None:
        whole = command.assignment
        assert whole.stamp > self.last.stamp
        self.last = whole
        node_of = {worker.slot: worker.node for worker in whole.workers}
        assert set(command.parts) == set(node_of.values())
        for topology in whole.topologies:
            for task, place in topology.places:
                self.been.setdefault((topology.number, node_of[place.slot]), set()).add(task.component)
        for node, part in command.parts.items():
            part = wire.decode_part(wire.encode(part))  # as the node gets it
            assert (part.stamp, part.workers, part.alive) == (whole.stamp, whole.workers, whole.alive)
            self.check_lookups(node, part, whole)
            for slot in [slot for slot, at in node_of.items() if at == node]:
                assert plan_diff(self.running[slot], part, slot) == plan_diff(self.running[slot], whole, slot)
                self.running[slot] = part.tasks_at(slot)

    def check_lookups(self, node: str, part: Assignment, whole: Assignment) -> None:
        by_number = {topology.number: topology for topology in part.topologies}
        for topology in whole.topologies:
            been = self.been.get((topology.number, node), set())
            mine = by_number.get(topology.number)
            if mine is None:
                assert not been
                continue
            assert (mine.graph, mine.version, mine.active, mine.losses) == (
                topology.graph, topology.version, topology.active, topology.losses)
            mine_places, places = dict(mine.places), dict(topology.places)
            needed = set(lookups(topology, been))
            for task in needed:
                assert mine_places.get(task) == places.get(task), (task, node)
            for name in {task.component for task in needed} | been:
                assert mine.key_groups.get(name) == topology.key_groups.get(name), (name, node)
            at_home = {task for task, place in places.items() if place.slot in self.slots_of(node, whole)}
            assert dict(mine.positions) == {task: at for task, at in topology.positions if task in at_home}
            assert set(mine_places) <= needed | at_home, "more than it needs"
            assert at_home <= set(mine_places)

    def slots_of(self, node: str, whole: Assignment) -> set[int]:
        return {worker.slot for worker in whole.workers if worker.node == node}


def lookups(topology: TopologyAssignment, been: set[str]) -> Iterator[TaskId]:
    """Return every lookup that a task of these components can make."""
    for index in range(topology.graph.ackers):
        yield TaskId(ACKER, index)
    for name in been - {ACKER}:
        for component, _ in topology.graph.downstream(name):
            for index in range(component.par):
                yield TaskId(component.name, index)


@given(graphs(), graphs("second"), st.integers(1, 5), st.integers(1, 3), st.data())
def test_every_lookup_finds_the_same_in_the_part_as_in_the_whole(first: TopologyGraph, second: TopologyGraph, slots: int,
                                                                nodes: int, data: st.DataObject) -> None:
    watched = Watched(slots, nodes)
    for graph in (first, second):
        watched.on(Submitted(graph))
    for _ in range(data.draw(st.integers(0, 8))):
        here = sorted(watched.state.workers)
        running = sorted(watched.state.topologies)
        what = data.draw(st.sampled_from(["move", "lose", "join", "report", "kill"]))
        if what == "move" and running and here:
            name = data.draw(st.sampled_from(running))
            places = watched.state.topologies[name].places
            if places and watched.state.topologies[name].status != "waiting":
                task = data.draw(st.sampled_from(sorted(places)))
                watched.on(Moved(name, task, data.draw(st.sampled_from(here))))
        elif what == "lose" and here:
            slot = data.draw(st.sampled_from(here))
            watched.on(WorkerLost(slot, watched.state.workers[slot].address.generation, "died"))
        elif what == "join":
            watched.join(data.draw(st.integers(0, slots - 1)))
        elif what == "report" and here:
            slot = data.draw(st.sampled_from(here))
            positions = tuple((topology.number, topology.graph.number(TaskId(spout.name, 0)), data.draw(st.integers(0, 99)))
                              for topology in watched.state.topologies.values() for spout in topology.graph.spouts)
            watched.on(WorkerReported(slot, watched.state.workers[slot].address.generation, watched.state.revision, (),
                                      positions))
        elif what == "kill" and running:
            watched.on(Killed(data.draw(st.sampled_from(running)), 0.0, 0.0))
            watched.on(Ticked(1.0))
