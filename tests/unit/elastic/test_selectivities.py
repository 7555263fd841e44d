"""Selectivities: true in every window, whatever becomes of the numbers of tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.control.scheduling.load_smoothing import Ewma
from millrace.elastic.measured import measured
from millrace.elastic.selectivities import Selectivities
from millrace.elastic.service_rates import ServiceRates
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad

SECONDS = 5.0
EDGE = ("s", "c")


def graph(tasks: int) -> TopologyGraph:
    return TopologyGraph("t", (
        ComponentDef("s", "spout", "m:C", 1, {}, (), (), False, "next_tuple"),
        ComponentDef("c", "bolt", "m:C", tasks, {}, (), (Input("s", "default", Grouping.SHUFFLE),), False, "process"),
    ), {})


def window(tasks: int, new: range = range(0), selectivity: float = 1.0, emitted: int = 1000) -> Load:
    each = emitted * selectivity / tasks
    bolts = {TaskId("c", index): TaskLoad(executed=round(each), busy_seconds=each * 0.004) for index in range(tasks)}
    return Load(SECONDS, {TaskId("s", 0): TaskLoad(emitted=emitted, offered=emitted, busy_seconds=1.0), **bolts},
                {(TaskId("s", 0), task): each for task in bolts}, tuple(TaskId("c", index) for index in new))


@given(st.lists(st.integers(1, 20), min_size=2, max_size=6))
def test_rates_stay_true_when_the_numbers_of_tasks_change(numbers: list[int]) -> None:
    """The smoothed load has other sums then: the window's own load and the estimate differ."""
    known, smoothed, before, differ = Selectivities(), Ewma().fresh(), numbers[0], False
    for tasks in numbers:
        for begins in (True, False, False):
            sample = window(tasks, range(before, tasks) if begins else range(0))
            estimate = smoothed.add(sample)
            differ = differ or sum(estimate.traffic.values()) != pytest.approx(1000)
            edges = known.learn(graph(tasks), sample)
            rates = measured(graph(tasks), sample, edges, ServiceRates().learn(graph(tasks), sample)).network.rates()
            assert rates["c"] == pytest.approx(200)
        before = tasks
    assert differ or len(set(numbers)) == 1


def test_a_selectivity_that_changes_is_approached() -> None:
    known = Selectivities()
    known.learn(graph(2), window(2, selectivity=1.0))
    found = [known.learn(graph(2), window(2, selectivity=3.0))[EDGE] for _ in range(8)]
    assert found == sorted(found) and found[0] == pytest.approx(1 + 2 / 1.5) and found[-1] == pytest.approx(3, abs=0.01)


def test_windows_without_tuples_change_nothing() -> None:
    known, idle = Selectivities(), window(2, emitted=0)
    assert known.learn(graph(2), idle) == {EDGE: 0.0}
    known.learn(graph(2), window(2, selectivity=2.0))
    assert [known.learn(graph(2), idle)[EDGE] for _ in range(2000)][-1] == pytest.approx(2.0)


@pytest.mark.parametrize("every", [2, 12, 40])
def test_bursts_are_smoothed_over_many_windows(every: int) -> None:
    """A bolt that emits the results of several windows at once: what arrives in the long run does not change with each."""
    known, found = Selectivities(), []
    for number in range(20 * every):
        burst = number % every == every - 1
        found.append(known.learn(graph(2), window(2, selectivity=float(every if burst else 0)))[EDGE])
    after = found[10 * every:]
    assert min(after) > 0.75 and max(after) < 1.35, (min(after), max(after))


def test_a_stream_that_begins_is_believed_at_once() -> None:
    known = Selectivities()
    for _ in range(500):
        known.learn(graph(2), window(2, selectivity=0.0))
    found = [known.learn(graph(2), window(2, selectivity=2.0))[EDGE] for _ in range(6)]
    assert found[0] > 0.9 and found[-1] > 1.9
