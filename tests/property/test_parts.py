"""For any graph, placement and moves, what a worker looks up and decides by its node's part is as by the whole plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.control.assignment import Assignment, Move, TopologyAssignment
from millrace.control.events import Distribute, Killed, Moved, Submitted, Ticked, WorkerJoined, WorkerLost, WorkerReported
from millrace.control.master_state import MasterState
from millrace.control.plan_diff import plan_diff
from millrace.model.cluster import Node
from millrace.model.graph import ACKER, ComponentDef, Input, StreamDef, TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.known_workers import KnownWorkers

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
    components = [replace(component, stateful=bool(component.inputs) and draw(st.booleans())) for component in components]
    guarantee = draw(st.sampled_from(["at-least-once", "at-most-once"]))
    return TopologyGraph(name, tuple(components), {"topology.guarantee": guarantee, "topology.key.groups": 8})


class Watched:
    """A master whose every plan is checked, node by node, against all components that were ever on the node."""

    def __init__(self, slots: int, nodes: int) -> None:
        self.state, self.nodes, self.generation = MasterState(), nodes, 0
        self.been: dict[tuple[int, str], set[str]] = {}  # topology, node -> components
        self.running: dict[int, dict[tuple[int, TaskId], int]] = {}  # what the worker on each slot runs
        self.known: dict[int, tuple[KnownWorkers, KnownWorkers]] = {}  # by slot: from the parts, and from the whole plans
        self.blocks: dict[tuple[int, str], set[int]] = {}  # topology, component -> slots that may have blocks of its tasks
        self.last = Assignment(0)
        for slot in range(slots):
            self.join(slot)

    def join(self, slot: int) -> None:
        self.generation += 1
        self.running[slot] = {}
        self.known[slot] = KnownWorkers(), KnownWorkers()
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
            arriving = [(move.task, move.new) for move in topology.moves if move.new.slot in node_of]
            for task, place in (*topology.places, *arriving):
                self.been.setdefault((topology.number, node_of[place.slot]), set()).add(task.component)
            for task, slots in topology.holders:
                self.blocks.setdefault((topology.number, task.component), set()).update(slots)
        for node, part in command.parts.items():
            part = wire.decode_part(wire.encode(part))  # as the node gets it
            assert (part.stamp, part.alive, part.generations) == (whole.stamp, whole.alive, whole.generations)
            self.check_lookups(node, part, whole)
            for slot in [slot for slot, at in node_of.items() if at == node]:
                assert plan_diff(self.running[slot], part, slot) == plan_diff(self.running[slot], whole, slot)
                self.running[slot] = part.tasks_at(slot)
                self.check_workers(slot, node, part, whole)

    def check_workers(self, slot: int, node: str, part: Assignment, whole: Assignment) -> None:
        """The worker refuses the same messages as with the whole plan, and reaches everyone that it may have to write to."""
        mine, full = self.known[slot]
        mine.learn(part)
        full.learn(whole)
        for other in self.known:
            for generation in range(self.generation + 2):
                alive = any(generation == worker.generation for worker in whole.workers)
                if not alive or full.generation_of(other) == generation:  # a generation is of one slot only
                    assert mine.is_fenced(other, generation) == full.is_fenced(other, generation)
                    assert mine.is_lost(other, generation) == full.is_lost(other, generation)
        needed = {worker.slot for worker in whole.workers if worker.node == node}
        for topology in whole.topologies:
            needed |= set(self.partners(topology, node, whole))
        reached = {address.slot: address for address in mine.addresses}
        everyone = {address.slot: address for address in whole.workers}
        assert {to: reached.get(to) for to in needed} == {to: everyone.get(to) for to in needed}
        assert reached.items() <= everyone.items()
        assert {address.slot for address in part.workers} <= needed, "more than it needs"

    def partners(self, topology: TopologyAssignment, node: str, whole: Assignment) -> Iterator[int]:
        """The slots that tasks of these components send chunks, credits, acks, verdicts, state or blocks to."""
        been = self.been.get((topology.number, node), set())
        near = neighbours(topology, been) | been
        if ACKER in been:
            near |= {component.name for component in topology.graph.components}
        nodes = {at for name in near | {ACKER} for (number, at), names in self.been.items()
                 if been and number == topology.number and name in names}
        yield from (worker.slot for worker in whole.workers if worker.node in nodes)
        for move in touching(topology, been):
            yield from (move.old.slot, move.new.slot)
        for name in been:
            yield from self.blocks.get((topology.number, name), ())

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
            assert mine.moves == touching(topology, been)
            assert {task for task in topology.apart if task in needed} == set(mine.apart) & needed
            at_home = {task for task, place in places.items() if place.slot in self.slots_of(node, whole)}
            assert dict(mine.positions) == {task: at for task, at in topology.positions if task in at_home}
            assert dict(mine.holders) == {task: slots for task, slots in topology.holders if task in at_home}
            assert (mine.blocks, mine.epoch, mine.restore) == (topology.blocks, topology.epoch, topology.restore)
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


def neighbours(topology: TopologyAssignment, been: set[str]) -> set[str]:
    """The components that these send to, and those that send to them."""
    pairs = [(read.source, component.name) for component in topology.graph.components for read in component.inputs]
    return {target for source, target in pairs if source in been} | {source for source, target in pairs if target in been}


def touching(topology: TopologyAssignment, been: set[str]) -> list[Move]:
    """The moves of tasks that these components have, send to or receive from."""
    return [move for move in topology.moves if move.task.component in been | neighbours(topology, been)]


@given(graphs(), graphs("second"), st.integers(1, 8), st.integers(1, 8), st.data())
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
