"""Placement of snapshot fragments on workers."""

from __future__ import annotations

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.backup_placement import backup_shape, backups
from millrace.errors import TopologyError
from millrace.model.graph import TaskId, graph_of
from millrace.workloads.wordcount import Count, Lines, Split


class Chain(Topology):
    lines = Lines.spec(par=3)
    split = Split.spec(inputs=[lines], par=3)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)


SLOTS = {TaskId("lines", 0): 0, TaskId("lines", 1): 1, TaskId("lines", 2): 2, TaskId("split", 0): 1, TaskId("split", 1): 2,
         TaskId("split", 2): 3, TaskId("count", 0): 1, TaskId("count", 1): 4}
NODES = {slot: f"n{slot % 3}" for slot in range(5)}


def test_upstream_workers_hold_fragments_and_never_the_task_itself():
    blocks, holders = backups(graph_of(Chain), SLOTS, NODES)
    assert blocks == (3, 1)
    by_task = dict(holders)
    assert set(by_task) == {TaskId("count", 0), TaskId("count", 1)}  # the others have no state
    for task, slots in by_task.items():
        assert SLOTS[task] not in slots and len(set(slots)) == 4
    assert by_task[TaskId("count", 1)][0] in (1, 2, 3)  # where split is


@pytest.mark.parametrize("nodes", [{}, {0: "n"}])
def test_a_single_worker_has_no_holders(nodes):
    assert backups(graph_of(Chain), dict.fromkeys(SLOTS, 0), nodes) == ((0, 0), [])


def test_the_shape_in_the_config_is_used():
    graph = graph_of(Chain, config={"topology.backup.blocks": "7+3"})
    blocks, holders = backups(graph, SLOTS, NODES)
    assert blocks == (7, 3) and all(len(slots) == 10 for _, slots in holders)
    assert backups(graph_of(Chain, config={"topology.backup.blocks": "none"}), SLOTS, NODES) == ((0, 0), [])


@pytest.mark.parametrize("shape", ["7", "7+", "a+b", "0+3", "30+30", "7+-3"])
def test_invalid_shapes_are_refused(shape):
    with pytest.raises(TopologyError, match=r"topology\.backup\.blocks"):
        backup_shape(graph_of(Chain, config={"topology.backup.blocks": shape}))


def test_stateful_components_are_detected_without_running_them():
    class Uses(Bolt):
        def process(self, tup):
            self.state[tup.values[0]] = 1

    class Nested(Bolt):
        def process(self, tup):
            return [self.state for _ in range(1)]

    class Not(Bolt):
        def process(self, tup): ...

    from millrace.api.state_usage import uses_state

    assert [uses_state(kind) for kind in (Uses, Nested, Not, Count, Split)] == [True, True, False, True, False]
