"""A node's part of a plan: everything that its workers need and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from millrace.api.grouping import Grouping
from millrace.control.assignment import (
    ARM,
    Assignment,
    Move,
    Place,
    Stamp,
    TopologyAssignment,
    WorkerAddress,
    numbers_in,
    ranges_of,
)
from millrace.control.events import Distribute, Killed, Moved, Submitted, Ticked, WorkerJoined, WorkerLost
from millrace.control.master_state import MasterState
from millrace.control.plan_diff import PlanDiff, plan_diff
from millrace.control.plan_parts import parts_of
from millrace.model.cluster import Node
from millrace.model.graph import ACKER, ComponentDef, Input, StreamDef, TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire

WORDS = (StreamDef("default", ("word",)),)


def part_of(whole: Assignment, node: str, hosted: Mapping[int, frozenset[str]],
            keepers: Mapping[str, frozenset[int]] | None = None) -> Assignment:
    """Return the part of a node that has hosted these components, by topology number."""
    return parts_of(whole, {topology.number: {node: hosted.get(topology.number, frozenset())} for topology in whole.topologies},
                    {topology.number: keepers or {} for topology in whole.topologies})[node]


def component(name: str, par: int, *inputs: Input) -> ComponentDef:
    kind = "bolt" if inputs else "spout"
    return ComponentDef(name, kind, f"parts:{name}", par, {}, WORDS, inputs, False, "process" if inputs else "next_tuple")


def by_word(source: str) -> Input:
    return Input(source, "default", Grouping.fields("word"))


def chain(par: int = 2, ackers: int = 2) -> TopologyGraph:
    """lines → split → count → top, with fields groupings between."""
    return TopologyGraph("chain", (component("lines", par), component("split", par, by_word("lines")),
                                   component("count", par, by_word("split")), component("top", par, by_word("count"))), {},
                         ackers)


def address(slot: int, nodes: int = 4) -> WorkerAddress:
    return WorkerAddress(slot, 10 + slot, f"node{slot % nodes}", "boot", f"ipc://{slot}", "")


def whole(graph: TopologyGraph, slots: dict[str, int], workers: int = 4, number: int = 7) -> Assignment:
    """All tasks of a component on one slot; the ackers in turn on all."""
    places = [(task, Place(slots.get(task.component, task.index % workers), 3)) for task in graph.tasks()]
    groups = {name: tuple(range(graph.component(name).par)) for name in ("split", "count", "top")}
    positions = [(TaskId("lines", index), 100 + index) for index in range(graph.component("lines").par)]
    topology = TopologyAssignment(number, graph, 3, True, sorted(places), groups, positions, losses=1, epoch=2)
    return Assignment(20, [address(slot) for slot in range(workers)], [topology], [(number, number)], 5, [(10, 9 + workers)])


def hosts(*names: str, number: int = 7) -> dict[int, frozenset[str]]:
    return {number: frozenset(names)}


CHAIN = whole(chain(), {"lines": 0, "split": 1, "count": 2, "top": 3})


def components(part: Assignment) -> set[str]:
    return {task.component for topology in part.topologies for task, _ in topology.places}


def test_a_node_is_told_of_its_own_tasks_their_targets_and_the_ackers() -> None:
    (topology,) = part_of(CHAIN, "node1", hosts("split")).topologies
    wanted = [(task, place) for task, place in CHAIN.topologies[0].places if task.component in ("split", "count", ACKER)]
    assert topology.places == wanted
    assert set(topology.key_groups) == {"split", "count"}
    assert topology.positions == []


def test_everything_that_is_not_about_tasks_is_as_in_the_whole() -> None:
    part = part_of(CHAIN, "node2", hosts("count"))
    assert (part.revision, part.author, part.alive, part.generations) == (20, 5, [(7, 7)], [(10, 13)])
    blank = {"places": [], "key_groups": {}, "positions": []}
    assert replace(part.topologies[0], **blank) == replace(CHAIN.topologies[0], **blank)


def test_only_the_node_of_a_spout_is_told_its_position() -> None:
    assert part_of(CHAIN, "node0", hosts("lines")).topologies[0].positions == CHAIN.topologies[0].positions
    assert part_of(CHAIN, "node1", hosts("lines", "split")).topologies[0].positions == []


def test_a_node_that_hosts_the_last_component_needs_no_targets() -> None:
    part = part_of(CHAIN, "node3", hosts("top"))
    assert components(part) == {"top", ACKER}
    assert set(part.topologies[0].key_groups) == {"top"}


def test_a_task_that_moved_away_still_finds_its_targets() -> None:
    """All split tasks are on node 1 now, and one on node 3 may still be draining."""
    part = part_of(CHAIN, "node3", hosts("top", "split"))
    assert components(part) == {"top", "count", ACKER}
    assert set(part.topologies[0].key_groups) == {"top", "count", "split"}


def test_a_node_with_nothing_but_an_acker_is_told_of_the_ackers() -> None:
    assert components(part_of(CHAIN, "node3", hosts(ACKER))) == {"top", ACKER}, "top is there by its place"
    alone = whole(chain(), {"lines": 0, "split": 1, "count": 2, "top": 2})
    assert components(part_of(alone, "node3", hosts(ACKER))) == {ACKER}


def test_a_topology_that_never_was_on_a_node_is_left_out_and_still_known_to_be_alive() -> None:
    for nothing in ({}, {7: frozenset()}):
        part = part_of(CHAIN, "node1", nothing)
        assert (part.topologies, part.alive) == ([], [(7, 7)])


def test_topologies_do_not_mix() -> None:
    other = whole(replace(chain(), name="other"), {"lines": 3, "split": 2, "count": 1, "top": 0}, number=8)
    both = replace(CHAIN, topologies=CHAIN.topologies + other.topologies, alive=[(7, 8)])
    first, second = part_of(both, "node1", hosts("split") | hosts("count", number=8)).topologies
    assert {task.component for task, _ in first.places} == {"split", "count", ACKER}
    assert {task.component for task, _ in second.places} == {"count", "top", ACKER}
    assert [topology.number for topology in part_of(both, "node1", hosts("count", number=8)).topologies] == [8]


def test_the_parts_size_does_not_grow_with_tasks_elsewhere() -> None:
    """The components are there, ten or ten thousand tasks each; this node has one task of `top` and talks to nobody."""
    sizes = []
    for par in (10, 10_000):
        graph = chain()
        few, many = graph.components[3:], [replace(component, par=par) for component in graph.components[:3]]
        grown = whole(replace(graph, components=(*many, *few)), {"lines": 0, "split": 1, "count": 2, "top": 3})
        sizes.append(len(wire.encode(part_of(grown, "node3", hosts("top")))))
    assert sizes[1] <= sizes[0] + 3 * 4, "but for the three numbers themselves"


# ---- addresses ----


LONG = whole(replace(chain(ackers=0), components=(*chain().components, component("end", 2, by_word("top")))),
             {"lines": 0, "split": 1, "count": 2, "top": 3, "end": 4}, workers=5)


def reached(part: Assignment) -> list[int]:
    return [worker.slot for worker in part.workers]


def test_a_part_has_the_addresses_of_the_senders_and_receivers_of_its_tasks() -> None:
    """A receiver sends credits to its senders."""
    spread = replace(LONG, workers=[address(slot, nodes=5) for slot in range(5)])
    names = ("lines", "split", "count", "top", "end")
    assert [reached(part_of(spread, f"node{slot}", hosts(name))) for slot, name in enumerate(names)] == [
        [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4]]


def test_ackers_reach_every_task_and_are_reached_by_all() -> None:
    tracked = whole(chain(ackers=1), {"lines": 0, "split": 1, "count": 2, "top": 3, ACKER: 3})
    assert reached(part_of(tracked, "node0", hosts("lines"))) == [0, 1, 3]
    assert reached(part_of(tracked, "node3", hosts("top", ACKER))) == [0, 1, 2, 3]


def test_a_part_has_the_addresses_of_those_that_hold_blocks_of_its_tasks() -> None:
    (topology,) = LONG.topologies
    held = replace(LONG, workers=[address(slot, nodes=5) for slot in range(5)],
                   topologies=[replace(topology, holders=[(TaskId("lines", 0), [3, 3]), (TaskId("split", 0), [4])])])
    assert reached(part_of(held, "node0", hosts("lines"))) == [0, 1, 3]
    assert reached(part_of(held, "node0", hosts("lines"), {"lines": frozenset([2])})) == [0, 1, 2, 3], "they had some before"
    assert reached(part_of(held, "node0", hosts("lines"), {"top": frozenset([2])})) == [0, 1, 3]


def test_a_part_has_the_moves_that_touch_its_tasks_and_their_addresses() -> None:
    (topology,) = LONG.topologies
    move = Move(1, TaskId("count", 0), Place(2, 3), Place(4, 4), ARM)
    moving = replace(LONG, workers=[address(slot, nodes=5) for slot in range(5)], topologies=[replace(topology, moves=[move])])
    parts = {name: part_of(moving, f"node{slot}", hosts(name)) for slot, name in enumerate(("lines", "split", "count", "top"))}
    assert {name: part.topologies[0].moves for name, part in parts.items()} == {
        "lines": [], "split": [move], "count": [move], "top": [move]}
    assert {name: reached(part) for name, part in parts.items()} == {
        "lines": [0, 1], "split": [0, 1, 2, 4], "count": [1, 2, 3, 4], "top": [2, 3, 4]}


def test_a_worker_that_a_component_left_stays_in_reach_of_its_neighbours() -> None:
    """The remains of a task there need the credits of its receivers."""
    spread = replace(LONG, workers=[address(slot, nodes=6) for slot in range(6)])
    parts = parts_of(spread, {7: {"node3": frozenset(["top"]), "node5": frozenset(["count"])}}, {7: {}})
    assert reached(parts["node3"]) == [2, 3, 4, 5]
    assert reached(parts["node5"]) == [1, 2, 3, 5]


def test_numbers_are_read_as_they_are_written() -> None:
    assert ranges_of([]) == []
    assert ranges_of([3, 1, 2, 7, 9, 8, 5]) == [(1, 3), (5, 5), (7, 9)]
    assert list(numbers_in([(1, 3), (5, 5), (7, 9)])) == [1, 2, 3, 5, 7, 8, 9]


def test_parts_travel() -> None:
    part = part_of(CHAIN, "node0", hosts("lines", ACKER))
    assert wire.decode_part(wire.encode(part)) == part
    with pytest.raises(wire.WireError):
        wire.decode_part(msgspec.msgpack.encode({"no": "plan"}))


# ---- stamps ----


def test_the_author_comes_before_the_revision() -> None:
    stamps = [Stamp(1, 1), Stamp(1, 9), Stamp(1, 10), Stamp(2, 1), Stamp(10, 0)]
    assert sorted(stamps, key=lambda stamp: stamp) == stamps
    assert CHAIN.stamp == (5, 20)
    assert part_of(CHAIN, "node0", hosts("lines")).stamp == CHAIN.stamp


@pytest.mark.parametrize("stamp", [Stamp(0, 0), Stamp(1, 2), Stamp(2**53, 2**63)])
def test_a_stamp_is_read_as_it_is_written(stamp: Stamp) -> None:
    assert Stamp.parse(str(stamp)) == stamp


@pytest.mark.parametrize("text", ["", "-", "1", "1-", "-1", "a-b", "1-2-3"])
def test_anything_else_is_no_stamp(text: str) -> None:
    with pytest.raises(ValueError):
        Stamp.parse(text)


def test_a_plan_is_for_those_who_were_there_when_it_was_made() -> None:
    assert CHAIN.is_for(1, 11)
    assert not CHAIN.is_for(1, 12), "another run of the same slot"
    assert not CHAIN.is_for(2, 11)
    assert not CHAIN.is_for(9, 19)
    assert part_of(CHAIN, "node0", hosts("lines")).is_for(0, 10), "the workers of a node are in its part"


# ---- a worker applies its part ----


def test_a_part_makes_a_worker_do_what_the_whole_would() -> None:
    slots = {"lines": 0, "split": 1, "count": 2, "top": 3}
    for slot, name in enumerate(slots):
        part = part_of(CHAIN, f"node{slot}", hosts(name, ACKER))
        assert plan_diff({}, part, slot) == plan_diff({}, CHAIN, slot)
        running = {(7, TaskId(name, 0)): 3, (7, TaskId(name, 1)): 2, (7, TaskId("lines", 9)): 1}
        assert plan_diff(running, part, slot) == plan_diff(running, CHAIN, slot)


def test_a_task_placed_anew_on_its_own_worker_ends_and_starts() -> None:
    task = TaskId("split", 0)
    assert plan_diff({(7, task): 2}, CHAIN, 1) == PlanDiff(
        start=[(7, TaskId(ACKER, 1), 3), (7, task, 3), (7, TaskId("split", 1), 3)], retire=[(7, task)], drop=[])


# ---- parts made by the master ----


class Story:
    """A master state and the parts that it last sent to the nodes."""

    def __init__(self, workers: int = 4, nodes: int = 2) -> None:
        self.state, self.generation, self.nodes = MasterState(author=5), 0, nodes
        self.last: Distribute | None = None
        for slot in range(workers):
            self.join(slot)

    def on(self, event: object) -> None:
        for command in self.state.handle(event):  # type: ignore[arg-type]
            if isinstance(command, Distribute):
                self.last = command

    def join(self, slot: int) -> None:
        self.generation += 1
        node = Node(f"node{slot % self.nodes}", 4, 1000.0, 4096)
        self.on(WorkerJoined(slot, self.generation, node, "boot", "", f"ipc://{slot}", ""))

    def lose(self, slot: int) -> None:
        self.on(WorkerLost(slot, self.state.workers[slot].address.generation, "died"))

    def part(self, node: str) -> Assignment:
        assert self.last is not None
        return self.last.parts[node]


def test_every_node_has_a_part_of_the_same_stamp() -> None:
    story = Story(workers=6, nodes=3)
    assert story.last is not None
    assert set(story.last.parts) == {"node0", "node1", "node2"}
    assert {part.stamp for part in story.last.parts.values()} == {story.last.assignment.stamp} == {Stamp(5, 6)}


def test_the_agent_of_a_node_is_its_lowest_worker_and_stays_it() -> None:
    story = Story(workers=0, nodes=2)
    for slot in (3, 2, 1, 0):
        story.join(slot)
    assert story.state.agents == {"node0": 2, "node1": 3}, "the first that came: later ones change nothing"
    story.lose(3)
    assert story.state.agents == {"node0": 2, "node1": 1}
    story.join(3)
    assert story.state.agents == {"node0": 2, "node1": 1}
    story.lose(2)
    story.lose(0)
    assert story.state.agents == {"node1": 1}, "a node without workers has none"
    assert story.last is not None and set(story.last.parts) == {"node1"}
    story.join(0)
    assert story.state.agents == {"node0": 0, "node1": 1}


def test_an_agent_whose_slot_comes_up_on_another_node_is_no_agent_of_the_old_one() -> None:
    story = Story(workers=4, nodes=2)
    story.nodes = 1  # slot 1 was on node1
    story.join(1)
    assert story.state.agents == {"node0": 0, "node1": 3}


def test_a_component_that_left_a_node_is_remembered_there_until_its_topology_ends() -> None:
    story = Story()
    story.on(Submitted(replace(chain(par=1), config={"topology.guarantee": "at-most-once"})))
    places = story.state.topologies["chain"].places
    split = TaskId("split", 0)
    left = places[split].slot
    node = f"node{left % 2}"
    story.on(Moved("chain", split, (left + 1) % 4))
    assert "count" in components(story.part(node)), "what is still draining there must find its targets"
    story.on(Killed("chain", 0.0, 0.0))
    story.on(Ticked(1.0))
    assert (story.part(node).topologies, story.part(node).alive) == ([], [])
