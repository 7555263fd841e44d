"""Behaviour common to all schedulers: versions, and key-group owners in the next plan."""

from __future__ import annotations

from millrace.api.grouping import Grouping
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.schedulers.base import key_groups_for, next_plan

OWNERS = (1, 0, 1, 0, 0, 0)  # uneven, as a scheduler that looks at the load may want it


def keyed(par: int, groups: int = 6) -> TopologyGraph:
    def bolt(name: str, par: int, grouping: Grouping) -> ComponentDef:
        return ComponentDef(name, "bolt", "m:C", par, {}, (), (Input("x", "default", grouping),), False, "process")

    return TopologyGraph("t", (bolt("count", par, Grouping.fields("k")), bolt("sink", 2, Grouping.SHUFFLE)),
                         {"topology.key.groups": groups})


def placed(graph: TopologyGraph) -> dict[TaskId, int]:
    return {task: 0 for task in graph.tasks()}


OLD = Plan(4, placed(keyed(2)), {"count": OWNERS})


def test_at_first_keyed_components_get_even_ranges_and_others_nothing() -> None:
    assert key_groups_for(keyed(2), None) == {"count": (0, 0, 0, 1, 1, 1)}


def test_owners_stay_while_the_parallelism_does() -> None:
    assert key_groups_for(keyed(2), OLD) == {"count": OWNERS}


def test_owners_are_shared_out_anew_when_the_parallelism_changes() -> None:
    assert key_groups_for(keyed(3), OLD) == {"count": (1, 0, 1, 0, 2, 2)}
    assert key_groups_for(keyed(1), OLD) == {"count": (0,) * 6}


def test_the_number_of_key_groups_stays_what_it_was_when_the_topology_started() -> None:
    assert key_groups_for(keyed(2, groups=60), OLD) == {"count": OWNERS}


def test_the_next_plan_is_one_version_on_or_the_old_one_itself() -> None:
    graph = keyed(2)
    assert next_plan(graph, None, placed(graph)) == Plan(1, placed(graph), {"count": (0, 0, 0, 1, 1, 1)})
    assert next_plan(graph, OLD, placed(graph)) is OLD
    assert next_plan(graph, OLD, {**placed(graph), TaskId("sink", 0): 1}).version == 5


def test_a_component_that_has_become_keyed_gets_key_groups_though_no_task_moves() -> None:
    graph = keyed(2)
    new = next_plan(graph, Plan(4, placed(graph)), placed(graph))
    assert (new.version, new.key_groups) == (5, {"count": (0, 0, 0, 1, 1, 1)})
