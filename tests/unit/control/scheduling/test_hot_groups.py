"""Key groups that are hotter than a task can carry."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.control.scheduling.hot_groups import COOL, HOT, WINDOWS, HotGroup, HotGroups, interval, pressure
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import SAMPLED, HeavyKey, Load, TaskLoad
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


def hot_groups(*windows: Load) -> list[HotGroup]:
    """The groups that are hot after these windows."""
    watch = HotGroups()
    for window in windows:
        watch.observe({"t": GRAPH}, {"t": window}, {"t": PLAN})
    return watch.hot


def test_a_group_that_fills_a_task_is_hot_with_its_key() -> None:
    assert hot_groups(load(1000, 900, 7900, 100)) == []
    (hot,) = hot_groups(load(1000, 900, 8000, 100))
    assert (hot.topology, hot.task, hot.group, hot.key) == ("t", C1, 2, "'the'")
    assert (hot.share, hot.key_share) == (pytest.approx(0.8), pytest.approx(0.75))
    assert hot.describe().startswith("key group 2 of count, in count[1], needs about 80% of a task's time")
    assert ("The key 'the' has about 75% of its tuples. Declare a `merge` in the bolt, or a `combine` in its grouping, so"
            in hot.describe())


def test_a_group_of_many_keys_asks_for_more_groups() -> None:
    (hot,) = hot_groups(load(100, 100, 9000, 100, keys=(HeavyKey("'the'", 2, 900.0),)))
    assert "'the', has only about 10% of its tuples" in hot.describe() and "a larger topology.key.groups" in hot.describe()
    (hot,) = hot_groups(load(100, 100, 9000, 100, keys=()))
    assert hot.key == "" and hot.describe().endswith("Make the bolt faster, or give it fewer tuples of these keys")


def test_what_back_pressure_keeps_at_the_source_counts() -> None:
    slowed = load(1000, 900, 5000, 100, emitted=1000, offered=1700, lag=9999)
    assert pressure(GRAPH, slowed, "count") == 1.7
    assert [hot.share for hot in hot_groups(slowed)] == [pytest.approx(0.85)]
    catching_up = load(1000, 900, 5000, 100, emitted=1000, offered=0, lag=5)
    assert pressure(GRAPH, catching_up, "count") == 1.0 and hot_groups(catching_up) == []


def test_only_the_sources_of_a_component_count() -> None:
    other = load(1000, 900, 5000, 100)
    other = replace(other, tasks={**other.tasks, TaskId("b", 0): TaskLoad(emitted=10, offered=1000)})
    assert pressure(GRAPH, other, "count") == 1.0


@pytest.mark.parametrize("measured", [
    Load(), Load(10.0), load(0, 0, SAMPLED, 0, busy=0.15), replace(load(0, 0, 9999, 0), tasks={}),
    replace(load(0, 0, 9999, 0), key_groups={"count": (9999.0,)}), replace(load(0, 0, 9999, 0), window_seconds=0.0)])
def test_without_enough_figures_nothing_is_hot(measured: Load) -> None:
    assert hot_groups(measured) == []


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
    """Of a fast stream, each window is judged for itself."""
    watch, warned = HotGroups(), False
    for share in shares:
        measured = load(10_000, 0, share * 100_000, 0, busy=0.0001)
        before, warned = warned, share >= HOT or (warned and share >= COOL)
        new = watch.observe({"t": GRAPH}, {"t": measured}, {"t": PLAN})
        assert bool(watch.warnings()) == warned and len(new) == (warned and not before)


# -- few tuples --------------------------------------------------------------------------------------------------------


def sampled(share: float, part: float, window: int, random: Random) -> Load:
    """A window of a slow stream, with a group that needs this share of a task's time and has this part of all tuples: `window`
    of the group, of which the sample has a few."""
    total = round(window / part)
    picks = [random.random() < part for _ in range(total) if random.random() < 1 / SAMPLED]
    found = SAMPLED * sum(picks)
    tasks = {C0: TaskLoad(executed=total - window, busy_seconds=(total - window) * share * 10.0 / window),
             C1: TaskLoad(executed=window, busy_seconds=share * 10.0)}
    return Load(10.0, {A: TaskLoad(emitted=total, offered=total), **tasks},
                key_groups={"count": (SAMPLED * len(picks) - found, 0.0, found, 0.0)})


@pytest.mark.parametrize(("part", "window"), [(0.9, 300), (0.5, 400), (0.9, 100), (0.3, 1000)])
def test_a_hot_group_of_a_slow_stream_is_found_after_several_windows(part: float, window: int) -> None:
    """Each has too few tuples in a window to be judged by that alone."""
    for seed in range(20):
        random, watch, said = Random(seed), HotGroups(), 0
        for number in range(WINDOWS):
            new = watch.observe({"t": GRAPH}, {"t": sampled(0.98, part, window, random)}, {"t": PLAN})
            said += sum(message.tasks == (C1,) for message in new)
            assert number or not said, "one window is not enough"
        assert said and 2 in [group.group for group in watch.hot]


@pytest.mark.parametrize(("part", "window"), [(0.9, 300), (0.5, 400), (0.1, 50), (0.3, 1000), (0.5, 6000)])
def test_chance_makes_no_group_hot(part: float, window: int) -> None:
    """By the counts of single windows, many would be."""
    false_alarms = 0
    for seed in range(50):
        random, watch = Random(seed), HotGroups()
        windows = [sampled(0.4, part, window, random) for _ in range(WINDOWS)]
        false_alarms += any(said.tasks == (C1,) for each in windows
                            for said in watch.observe({"t": GRAPH}, {"t": each}, {"t": PLAN}))
    assert false_alarms == 0


def test_a_window_without_tuples_in_the_sample_changes_nothing() -> None:
    quiet = replace(load(0, 0, 8600, 0), key_groups={"count": (0.0, 0.0, 0.0, 0.0)})
    assert [group.group for group in hot_groups(load(0, 0, 9000, 0), quiet)] == [2]
    assert [group.group for group in hot_groups(load(0, 0, 9000, 0), replace(quiet, key_groups={}))] == [2]
    idle = Load(10.0, {}, key_groups={"count": (0.0, 0.0, 0.0, 0.0)})
    assert hot_groups(load(0, 0, 9000, 0), idle) == [], "nothing was processed"


def test_a_hot_group_that_moves_is_shown_with_its_new_task() -> None:
    watch, moved = HotGroups(), replace(PLAN, key_groups={"count": (0, 0, 0, 1)})
    watch.observe({"t": GRAPH}, {"t": load(0, 0, 9000, 0)}, {"t": PLAN})
    assert watch.observe({"t": GRAPH}, {"t": replace(load(0, 0, 9000, 0), key_groups={})}, {"t": moved}) == []
    assert [group.task for group in watch.hot] == [C0]


@given(st.integers(1, 500), st.floats(0, 1))
def test_the_interval_holds_the_part_and_narrows_with_the_sample(sample: int, part: float) -> None:
    low, high = interval(part * sample, sample)
    narrow_low, narrow_high = interval(part * sample * 100, sample * 100)
    bounds = [0.0, low, narrow_low, part, narrow_high, high, 1.0]
    assert all(one <= other + 1e-9 for one, other in pairwise(bounds))
