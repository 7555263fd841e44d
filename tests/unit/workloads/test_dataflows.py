"""The dataflows have the tasks, instances, edges and machines of the paper; source, tasks and truth do what they say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millrace.api.grouping import stable_hash
from millrace.api.topology import Topology
from millrace.config import KEY_GROUP_COUNT
from millrace.errors import TopologyError
from millrace.model.graph import TaskId, graph_of
from millrace.testing.components import drain, rows, start, tuples, values
from millrace.workloads.audit import AuditResult
from millrace.workloads.dataflows import topologies
from millrace.workloads.dataflows.deployments import (
    EDGE_MACHINE,
    EDGE_SLOTS,
    Deployment,
    default_deployment,
    scaled_in,
    scaled_out,
)
from millrace.workloads.dataflows.shapes import (
    DATAFLOWS,
    DIAMOND,
    GRID,
    LINEAR,
    LONG_LINEAR,
    SINK_NAME,
    SOURCE_NAME,
    STAR,
    TRAFFIC,
    Dataflow,
    linear,
)
from millrace.workloads.dataflows.tasks import (
    EVENT_FIELDS,
    EVENT_KEYS,
    Events,
    EventSink,
    KeyedTimedTask,
    TimedTask,
    event_keys,
    trail_crc,
)
from millrace.workloads.dataflows.truth import audit_events, true_events, true_key_counts
from millrace.workloads.notes import NOTE_BYTES

ALL = (*DATAFLOWS, LONG_LINEAR)
FIELDS = " ".join(EVENT_FIELDS)
# Table 1 of the paper: tasks, instances, machines of 2 slots by default, of 4 slots scaled in, of 1 slot scaled out
TABLE = {"Linear": (5, 5, 3, 2, 5), "Diamond": (5, 8, 4, 2, 8), "Star": (5, 8, 4, 2, 8), "Grid": (15, 21, 11, 6, 21),
         "Traffic": (11, 13, 7, 4, 13)}


class SetClock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def by_name(dataflow: Dataflow) -> str:
    return dataflow.name


# -- structure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataflow", DATAFLOWS, ids=by_name)
def test_tasks_instances_and_machines_are_those_of_the_paper(dataflow: Dataflow) -> None:
    default, inside, outside = default_deployment(dataflow), scaled_in(dataflow), scaled_out(dataflow)
    assert (len(dataflow.tasks), dataflow.total_instances, default.machines, inside.machines, outside.machines) == \
        TABLE[dataflow.name]
    assert (default.slots, inside.slots, outside.slots) == (2, 4, 1)


def test_the_paper_has_five_dataflows() -> None:
    assert [dataflow.name for dataflow in DATAFLOWS] == ["Linear", "Diamond", "Star", "Traffic", "Grid"]


@pytest.mark.parametrize(("dataflow", "edges", "out"), [(LINEAR, 6, 1), (DIAMOND, 9, 4), (STAR, 8, 4), (TRAFFIC, 15, 4),
                                                        (GRID, 19, 4), (LONG_LINEAR, 51, 1)], ids=str)
def test_edges_and_the_rate_at_the_sink(dataflow: Dataflow, edges: int, out: int) -> None:
    """For Grid the paper states 8 events/s in and 32 out; it never has more than 32 events/s at a task."""
    assert len(set(dataflow.edges)) == len(dataflow.edges) == edges
    assert dataflow.arrivals(SINK_NAME) == len(dataflow.trails()) == out
    assert max(dataflow.arrivals(task) for task in dataflow.tasks) <= 4


@pytest.mark.parametrize("dataflow", ALL, ids=by_name)
def test_every_task_is_on_a_way_from_the_source_to_the_sink(dataflow: Dataflow) -> None:
    trails = dataflow.trails()
    assert {task for trail in trails for task in trail} == set(dataflow.tasks)
    for trail in trails:
        assert set(zip((SOURCE_NAME, *trail), (*trail, SINK_NAME))) <= set(dataflow.edges)
    assert len({trail_crc("/".join(trail)) for trail in trails}) == len(trails)


def test_the_instances_of_single_tasks() -> None:
    assert [DIAMOND.instances(task) for task in DIAMOND.tasks] == [1, 1, 1, 1, 4]
    assert [STAR.instances(task) for task in STAR.tasks] == [1, 1, 2, 2, 2]
    assert [TRAFFIC.instances(task) for task in TRAFFIC.tasks] == [1] * 10 + [3]
    assert [GRID.instances(task) for task in GRID.tasks] == [1] * 12 + [3] * 3


def test_a_linear_dataflow_of_any_length() -> None:
    assert linear(5).inputs == LINEAR.inputs
    assert (len(LONG_LINEAR.tasks), LONG_LINEAR.total_instances) == (50, 50)
    assert linear(1).trails() == (("t1",),)
    with pytest.raises(TopologyError, match="at least 1"):
        linear(0)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("dataflow", ALL, ids=by_name)
def test_topologies_have_the_tasks_and_edges_of_the_dataflow(dataflow: Dataflow, keyed: bool) -> None:
    topology: type[Topology] = getattr(topologies, f"Keyed{dataflow.name}" if keyed else dataflow.name)
    graph = graph_of(topology)
    assert {component.name: component.par for component in graph.components} == {
        SOURCE_NAME: 1, SINK_NAME: 1, **{task: dataflow.instances(task) for task in dataflow.tasks}}
    read = [(read.source, component.name) for component in graph.components for read in component.inputs]
    assert sorted(read) == sorted(dataflow.edges)
    groupings = {read.grouping.kind for component in graph.bolts if component.name != SINK_NAME for read in component.inputs}
    assert groupings == {"fields" if keyed else "shuffle"}
    assert all(component.blocking and component.stateful for component in graph.bolts if component.name != SINK_NAME)
    assert graph.waves and all(graph.movable(task) for task in graph.tasks())
    assert (graph.config["rate"], graph.config["task_seconds"]) == (8.0, 0.1)


# -- deployments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataflow", ALL, ids=by_name)
def test_every_instance_has_a_slot_of_its_own_and_moves_to_another_machine(dataflow: Dataflow) -> None:
    default = default_deployment(dataflow).placement(dataflow)
    assert default.keys() == {TaskId(SOURCE_NAME, 0), TaskId(SINK_NAME, 0),
                              *(TaskId(task, index) for task in dataflow.tasks for index in range(dataflow.instances(task)))}
    for scaled in (scaled_in(dataflow), scaled_out(dataflow)):
        after = scaled.placement(dataflow)
        assert len(set(after.values())) == len(after)
        fixed = {task for task in default if default[task] == after[task]}
        assert fixed == {TaskId(SOURCE_NAME, 0), TaskId(SINK_NAME, 0)}
        assert len({place.machine for place in after.values()}) == scaled.machines + 1
        assert {place.slot for place in after.values() if place.machine != EDGE_MACHINE} <= set(range(scaled.slots))
        assert all(place.slot < EDGE_SLOTS for place in after.values())


def test_instances_are_placed_round_robin() -> None:
    places = [tuple(place) for task, place in scaled_in(LINEAR).placement(LINEAR).items() if task.component.startswith("t")]
    assert places == [("D3-0", 0), ("D3-1", 0), ("D3-0", 1), ("D3-1", 1), ("D3-0", 2)]


def test_too_few_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="Grid has 21 instances, and 2 machines of 4 slots have only 8"):
        Deployment("D3", 2, 4).placement(GRID)


# -- components --------------------------------------------------------------------------------------------------------


def test_a_pause_and_a_roll_back_do_not_move_the_timetable() -> None:
    clock = SetClock(100.0)
    source = start(Events, {"rate": 8.0}, clock=clock)
    assert len(drain(source)) == 1
    clock.now = 101.0
    assert [emitted.tup_id for emitted in drain(source)] == list(range(1, 9))
    source.deactivate()
    clock.now = 110.0
    source.activate()
    assert len(drain(source)) == 9 * 8
    source.seek(40)
    assert [emitted.tup_id for emitted in drain(source)] == list(range(40, 81))
    clock.now = 110.5
    assert len(drain(source)) == 4


def test_a_timetable_with_a_begin_is_the_same_in_every_incarnation() -> None:
    clock = SetClock(100.0)
    config = {"rate": 8.0, "begin": 5000.0}
    early = start(Events, config, clock=clock, wall_clock=SetClock(4999.9375))
    assert not drain(early)
    clock.now = 100.0625
    assert len(drain(early)) == 1
    later = start(Events, config, clock=SetClock(7.0), wall_clock=SetClock(5010.0))
    later.seek(30)
    assert [emitted.tup_id for emitted in drain(later)] == list(range(30, 81))


def test_events_are_the_same_at_every_reading_and_for_any_number_of_tasks() -> None:
    config = {"limit": 100, "keys": 7}
    [whole] = [drain(start(Events, config))]
    shared = [emitted.values for index in range(3) for emitted in drain(start(Events, config, index, 3))]
    assert Counter(values[2] for values in shared) == Counter(emitted.values[2] for emitted in whole)
    assert [emitted.values for emitted in whole[:8]] == [(0, n, event_keys(7)[n % 7], "") for n in range(8)]


@pytest.mark.parametrize("par", [2, 3, 4])
def test_successive_keys_reach_the_tasks_in_turn(par: int) -> None:
    keys = event_keys(EVENT_KEYS)
    assert len(set(keys)) == EVENT_KEYS
    groups = KEY_GROUP_COUNT.default
    tasks = [stable_hash(key) % groups * par // groups for key in keys]
    for first in range(0, EVENT_KEYS - 4 * par):
        assert max(Counter(tasks[first:first + 4 * par]).values()) <= 6


@pytest.mark.parametrize("task", [TimedTask, KeyedTimedTask])
def test_a_task_takes_its_time_for_each_event_and_adds_its_name(task: type[TimedTask | KeyedTimedTask]) -> None:
    waited: list[float] = []
    bolt = start(task, wait=waited.append)
    for tup in tuples(FIELDS, [(0, 5, "key 5", "/t1"), (0, 6, "key 6", "/t1")]):
        bolt.process(tup)
    assert waited == [0.1, 0.1]
    assert values(bolt) == [(0, 5, "key 5", f"/t1/{task.__name__}"), (0, 6, "key 6", f"/t1/{task.__name__}")]
    quick = start(task, {"task_seconds": 0.0}, wait=waited.append)
    quick.process(*tuples(FIELDS, [(0, 5, "key 5", "")]))
    assert len(waited) == 2


def test_a_task_continues_to_count_from_its_snapshot() -> None:
    bolt, again = start(TimedTask, {"task_seconds": 0.0}), start(TimedTask, {"task_seconds": 0.0})
    for tup in tuples(FIELDS, [(0, n, "key", "") for n in range(3)]):
        bolt.process(tup)
    again.restore(bolt.snapshot())
    again.process(*tuples(FIELDS, [(0, 3, "key", "")]))
    assert again.snapshot() == 4


def test_a_keyed_task_has_state_of_the_chosen_size() -> None:
    bolt = start(KeyedTimedTask, {"task_seconds": 0.0, "notes": 30 * NOTE_BYTES, "tuples_per_note": 2})
    events = tuples(FIELDS, [(0, n, f"key {n}", "") for n in range(8)])
    bolt.process(events[0])
    before = dict(bolt.notes)
    for tup in events[1:]:
        bolt.process(tup)
    assert sum(map(len, bolt.notes.values())) == 30 * NOTE_BYTES
    assert sum(bolt.notes[key] is not note for key, note in before.items()) == 4
    assert dict(bolt.counts) == {f"key {n}": 1 for n in range(8)}


# -- truth -------------------------------------------------------------------------------------------------------------


def write(directory: Path, arrivals: list[tuple[int, int, str]]) -> None:
    sink = start(EventSink, {"path": str(directory)})
    sink.process_rows(rows(FIELDS, [(task, position, "key", trail) for task, position, trail in arrivals]))
    sink.close()


def arrivals_of(dataflow: Dataflow, positions: int) -> list[tuple[int, int, str]]:
    return [(0, position, "".join(f"/{task}" for task in trail)) for position in range(positions)
            for trail in dataflow.trails()]


@pytest.mark.parametrize("dataflow", ALL, ids=by_name)
def test_every_event_once_by_every_path_is_exact(dataflow: Dataflow, tmp_path: Path) -> None:
    write(tmp_path, arrivals_of(dataflow, 20))
    result = audit_events(tmp_path, dataflow, {0: 20})
    assert result.exact and result.tuples_in == result.tuples_out == 20 * dataflow.arrivals(SINK_NAME)


def test_lost_repeated_wrong_and_late_events_are_told_apart(tmp_path: Path) -> None:
    arrivals = arrivals_of(STAR, 10)
    del arrivals[3], arrivals[20]
    arrivals += [arrivals[0]] * 2 + [(0, 5, "/t1/t3"), (1, 5, arrivals[0][2])] + arrivals_of(STAR, 11)[-4:]
    write(tmp_path, arrivals)
    assert audit_events(tmp_path, STAR, {0: 10}) == AuditResult(40, 46, lost=2, repeated=2, wrong=2, beyond=4)


def test_true_counts_of_tasks() -> None:
    assert true_events(STAR, {0: 10}) == {"t1": 10, "t2": 10, "t3": 20, "t4": 20, "t5": 20}
    counts = true_key_counts(STAR, {0: 10}, keys=4)
    assert counts["t1"] == dict(zip(event_keys(4), [3, 3, 2, 2]))
    assert {task: of_key.total() for task, of_key in counts.items()} == true_events(STAR, {0: 10})
