"""Key groups that are hotter than a task can carry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.control.scheduling.hot_groups import COOL, HOT, HotGroups, hot_groups, pressure
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import HeavyKey, Load, TaskLoad
from millrace.model.plan import Plan

GRAPH = TopologyGraph("t", (
    ComponentDef("a", "spout", "m:A", 1, {}, (), (), False, "next_tuple"),
    ComponentDef("split", "bolt", "m:B", 1, {}, (), (Input("a", "default", Grouping.SHUFFLE),), False, "process"),
    ComponentDef("count", "bolt", "m:C", 2, {}, (), (Input("split", "default", Grouping.fields("x")),), False, "process"),
    ComponentDef("b", "spout", "m:A", 1, {}, (), (), False, "next_tuple"),
), {"topology.key.groups": 4})
A, C0, C1 = TaskId("a", 0), TaskId("count", 0), TaskId("count", 1)
PLAN = Plan(3, {A: 0, TaskId("split", 0): 0, C0: 0, C1: 1, TaskId("b", 0): 0}, {"count": (0, 0, 1, 1)})
KEYS = (HeavyKey("'the'", 2, 6000.0), HeavyKey("'of'", 2, 1500.0), HeavyKey("'a'", 0, 900.0))


def load(*counts: float, busy: float = 0.001, keys: tuple[HeavyKey, ...] = KEYS, **spout: int) -> Load:
    """In a window of 10 s; `busy`: seconds for a tuple."""
    of_task = [int(counts[0] + counts[1]), int(counts[2] + counts[3])]
    return Load(10.0, {A: TaskLoad(emitted=1000, offered=1000, **spout) if not spout else TaskLoad(**spout),
                       C0: TaskLoad(executed=of_task[0], busy_seconds=of_task[0] * busy),
                       C1: TaskLoad(executed=of_task[1], busy_seconds=of_task[1] * busy)},
                key_groups={"count": counts}, heavy_keys={"count": keys})


def test_a_group_that_fills_a_task_is_hot_with_its_key() -> None:
    assert hot_groups(GRAPH, load(1000, 900, 7900, 100), PLAN) == []
    (hot,) = hot_groups(GRAPH, load(1000, 900, 8000, 100), PLAN)
    assert (hot.topology, hot.task, hot.group, hot.key) == ("t", C1, 2, "'the'")
    assert (hot.share, hot.key_share) == (pytest.approx(0.8), pytest.approx(0.75))
    assert hot.describe().startswith("key group 2 of count, in count[1], needs about 80% of a task's time")
    assert "The key 'the' has about 75% of its tuples. Declare a `merge` in the bolt" in hot.describe()


def test_a_group_of_many_keys_asks_for_more_groups() -> None:
    (hot,) = hot_groups(GRAPH, load(100, 100, 9000, 100, keys=(HeavyKey("'the'", 2, 900.0),)), PLAN)
    assert "'the', has only about 10% of its tuples" in hot.describe() and "a larger topology.key.groups" in hot.describe()
    (hot,) = hot_groups(GRAPH, load(100, 100, 9000, 100, keys=()), PLAN)
    assert hot.key == "" and hot.describe().endswith("Make the bolt faster, or give it fewer tuples of these keys")


def test_what_back_pressure_keeps_at_the_source_counts() -> None:
    slowed = load(1000, 900, 5000, 100, emitted=1000, offered=1700, lag=9999)
    assert pressure(GRAPH, slowed, "count") == 1.7
    assert [hot.share for hot in hot_groups(GRAPH, slowed, PLAN)] == [pytest.approx(0.85)]
    catching_up = load(1000, 900, 5000, 100, emitted=1000, offered=0, lag=5)
    assert pressure(GRAPH, catching_up, "count") == 1.0 and hot_groups(GRAPH, catching_up, PLAN) == []


def test_only_the_sources_of_a_component_count() -> None:
    other = load(1000, 900, 5000, 100)
    other = replace(other, tasks={**other.tasks, TaskId("b", 0): TaskLoad(emitted=10, offered=1000)})
    assert pressure(GRAPH, other, "count") == 1.0


@pytest.mark.parametrize("measured", [Load(), Load(10.0), load(0, 0, 999, 0, busy=1.0), replace(load(0, 0, 9999, 0), tasks={}),
                                      replace(load(0, 0, 9999, 0), key_groups={"count": (9999.0,)}),
                                      replace(load(0, 0, 9999, 0), window_seconds=0.0)])
def test_without_enough_figures_nothing_is_hot(measured: Load) -> None:
    assert hot_groups(GRAPH, measured, PLAN) == []


def test_a_group_is_reported_once_until_it_has_cooled_down() -> None:
    watch = HotGroups()

    def window(tuples: int) -> int:
        return len(watch.observe({"t": GRAPH}, {"t": load(1000, 900, tuples, 100)}, {"t": PLAN}))

    assert [window(tuples) for tuples in (7000, 8500, 9000, 7000, 8500)] == [0, 1, 0, 0, 0]
    assert len(watch.warnings()) == 1 and watch.warnings()[0].startswith("t: key group 2 of count")
    assert [window(tuples) for tuples in (5000, 7000, 8500)] == [0, 0, 1]
    (said,) = HotGroups().observe({"t": GRAPH}, {"t": load(1000, 900, 8500, 100)}, {"t": PLAN})
    assert (said.topology, said.level, said.tasks) == ("t", "warning", (C1,))
    assert watch.observe({}, {}, {}) == [] and watch.warnings() == [], "the topology has ended"


@given(st.lists(st.floats(0.0, 1.5), max_size=30))
def test_warnings_follow_the_load_with_hysteresis(shares: list[float]) -> None:
    watch, warned, said = HotGroups(), False, 0
    for share in shares:
        measured = load(1000, 0, share * 10_000, 0)
        share = next((hot.share for hot in hot_groups(GRAPH, measured, PLAN, 1e-9) if hot.group == 2), 0.0)
        before, warned = warned, share >= HOT or (warned and share >= COOL)
        new = watch.observe({"t": GRAPH}, {"t": measured}, {"t": PLAN})
        said += len(new)
        assert bool(watch.warnings()) == warned and len(new) == (warned and not before)
