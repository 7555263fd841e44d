"""A measured topology as a network of queues."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.config import KEY_GROUP_COUNT
from millrace.elastic.measured import MeasuredTopology, bounds, measured
from millrace.elastic.selectivities import Selectivities
from millrace.elastic.service_rates import ServiceRates
from millrace.model.graph import TASKS_LIMIT, ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Latency, Load, TaskLoad


def component(name: str, par: int, *inputs: tuple[str, Grouping], own_state: bool = False) -> ComponentDef:
    return ComponentDef(name, "bolt" if inputs else "spout", "m:C", par, {}, (),
                        tuple(Input(source, "default", grouping) for source, grouping in inputs), False,
                        "process" if inputs else "next_tuple", own_state=own_state)


GRAPH = TopologyGraph("t", (component("lines", 1), component("split", 2, ("lines", Grouping.SHUFFLE)),
                            component("count", 2, ("split", Grouping.fields("word")))), {KEY_GROUP_COUNT.key: 16})
LINES, SPLIT0, SPLIT1, COUNT0, COUNT1 = GRAPH.tasks()
SECONDS = 10.0
LOAD = Load(SECONDS, {
    LINES: TaskLoad(emitted=1000, offered=1200, lag=200, acked=1000, busy_seconds=1.0,
                    complete_latency_ms=Latency(20, 90, 30.0)),
    SPLIT0: TaskLoad(executed=600, emitted=1800, busy_seconds=3.0, process_latency_ms=Latency(5, 20, 8.0),
                     execute_latency_ms=Latency(4.0, 9.0, 5.0)),
    SPLIT1: TaskLoad(executed=400, emitted=1200, busy_seconds=2.0, process_latency_ms=Latency(5, 20, 18.0),
                     execute_latency_ms=Latency(4.0, 9.0, 5.0)),
    COUNT0: TaskLoad(executed=3000, busy_seconds=6.0, process_latency_ms=Latency(1, 2, 2.5)),
    COUNT1: TaskLoad(),
}, {(LINES, SPLIT0): 600, (LINES, SPLIT1): 400, (SPLIT0, COUNT0): 1800, (SPLIT1, COUNT0): 1200})


def _measured(graph: TopologyGraph, sample: Load, *before: Load) -> MeasuredTopology:
    """As it is measured in the last window, after others."""
    selectivities, rates = Selectivities(), ServiceRates()
    for load in before:
        selectivities.learn(graph, load)
        rates.learn(graph, load)
    return measured(graph, sample, selectivities.learn(graph, sample), rates.learn(graph, sample))


def test_rates_selectivities_and_times() -> None:
    found = _measured(GRAPH, LOAD)
    network = found.network
    assert network.offered == {"lines": 120.0}, "what the source had, and not what back-pressure let through"
    assert network.edges == {("lines", "split"): 1.0, ("split", "count"): 3.0}
    assert network.rates() == {"lines": 120.0, "split": 120.0, "count": 360.0}
    lines, split, count = network.stations
    assert (split.tasks, split.service_rate, split.least, split.most) == (2, 200.0, 1, TASKS_LIMIT)
    assert (count.tasks, count.service_rate, count.least, count.most) == (2, 500.0, 1, 16)
    assert (lines.least, lines.most, lines.service_rate) == (1, 1, math.inf)
    assert split.service_cv2 == pytest.approx((5 / 4) ** 2 - 1) and count.service_cv2 == 1.0
    assert found.times["split"] == pytest.approx(0.012) and found.times["count"] == pytest.approx(0.0025)
    assert found.times["lines"] == pytest.approx(2.0), "200 tuples wait, and 100 a second leave: Little's law"
    assert found.complete == pytest.approx(0.030) and found.whole == pytest.approx(2.030)
    assert not found.keeps_up and found.missing == "" and found.backlog == {"lines": 200}


def test_rates_are_smoothed_and_what_is_offered_is_that_of_the_window() -> None:
    slower = replace(LOAD, tasks={**LOAD.tasks, LINES: replace(LOAD.tasks[LINES], offered=900),
                                  SPLIT0: replace(LOAD.tasks[SPLIT0], busy_seconds=9.0)})
    network = _measured(GRAPH, LOAD, slower).network
    assert network.stations[1].service_rate == pytest.approx(1500 / 10.5) and network.offered == {"lines": 120.0}


def test_a_component_that_gets_a_tuple_now_and_then_keeps_its_rate() -> None:
    """Ticks in between do not count; a call that lasts for windows does."""
    idle = replace(LOAD, tasks={**LOAD.tasks, COUNT0: TaskLoad(busy_seconds=0.5)},
                   traffic={pair: tuples for pair, tuples in LOAD.traffic.items() if pair[0] == LINES})
    one = replace(LOAD, tasks={**LOAD.tasks, COUNT0: TaskLoad(executed=1, busy_seconds=0.5)},
                  traffic={**idle.traffic, (SPLIT0, COUNT0): 1.0})
    found = _measured(GRAPH, idle, idle, one, *[idle] * 30)
    assert found.missing == "" and found.network.stations[2].service_rate == pytest.approx(2.0)
    called = replace(idle, tasks={**LOAD.tasks, COUNT0: TaskLoad(busy_seconds=SECONDS)})
    again = _measured(GRAPH, one, one, *[called] * 9)
    assert again.network.stations[2].service_rate == pytest.approx(1.5 / (0.25 + 9 * SECONDS + 0.5))


def test_a_spout_that_polls_an_idle_source_is_not_slow() -> None:
    polls = replace(LOAD, tasks={**LOAD.tasks, LINES: TaskLoad(busy_seconds=0.5, lag=0)}, traffic={})
    rates = ServiceRates()
    for load in (LOAD, *[polls] * 500, LOAD):
        found = rates.learn(GRAPH, load)
    assert found["lines"] == pytest.approx(1000.0)


def test_a_tuple_that_was_lost_on_its_way_is_not_waited_for() -> None:
    lost = replace(LOAD, tasks={**LOAD.tasks, COUNT0: TaskLoad()})
    none = replace(lost, traffic={pair: tuples for pair, tuples in LOAD.traffic.items() if pair[0] == LINES})
    assert _measured(GRAPH, none, lost).missing == ""
    waits = replace(none, tasks={**none.tasks, COUNT0: TaskLoad(queue_length=1)})
    assert _measured(GRAPH, waits, lost).missing == "count got tuples and has processed none yet"


def test_without_a_tracked_tuple_tree_the_times_of_bolts_are_added_up() -> None:
    untracked = replace(LOAD, tasks={**LOAD.tasks, LINES: replace(LOAD.tasks[LINES], complete_latency_ms=None, lag=None,
                                                                  offered=1000)})
    found = _measured(GRAPH, untracked)
    assert found.complete == found.whole == pytest.approx(0.012 + 3 * 0.0025) and found.keeps_up
    unknown = replace(untracked, tasks={**untracked.tasks, COUNT0: replace(LOAD.tasks[COUNT0], process_latency_ms=None)})
    assert _measured(GRAPH, unknown).whole is None


@pytest.mark.parametrize(("changes", "keeps_up"), [
    ({}, True), ({"lag": 60}, False), ({"emitted": 1150}, False), ({"blocked_seconds": 1.5}, False)])
def test_nothing_is_learned_while_a_backlog_is_worked_off(changes: dict[str, Any], keeps_up: bool) -> None:
    steady = replace(LOAD.tasks[LINES], **{"offered": 1000, "lag": 1, **changes})
    load = replace(LOAD, tasks={**LOAD.tasks, LINES: steady})
    assert _measured(GRAPH, load).keeps_up == keeps_up


def test_nothing_is_learned_from_a_task_at_its_limit() -> None:
    busy = {LINES: replace(LOAD.tasks[LINES], offered=1000, lag=1), COUNT0: replace(LOAD.tasks[COUNT0], busy_seconds=19.5)}
    load = replace(LOAD, tasks={**LOAD.tasks, **busy})
    assert not _measured(GRAPH, load).keeps_up


def test_nothing_is_learned_from_one_hot_task_with_idle_siblings() -> None:
    """Half of the time on average, but one of two keyed tasks is always busy."""
    busy = {LINES: replace(LOAD.tasks[LINES], offered=1000, lag=1), COUNT0: replace(LOAD.tasks[COUNT0], busy_seconds=9.9)}
    load = replace(LOAD, tasks={**LOAD.tasks, **busy})
    assert not _measured(GRAPH, load).keeps_up
    cooler = replace(load, tasks={**load.tasks, COUNT0: replace(LOAD.tasks[COUNT0], busy_seconds=9.0)})
    assert _measured(GRAPH, cooler).keeps_up


def test_a_source_that_is_only_drained_offers_nothing_and_is_measured_by_what_it_emits() -> None:
    drained = replace(LOAD, tasks={**LOAD.tasks, LINES: replace(LOAD.tasks[LINES], offered=0, complete_latency_ms=None)})
    found = _measured(GRAPH, drained)
    assert found.network.external_rate == 0 and found.carried == {"lines": 100.0} and not found.keeps_up
    assert found.waiting == pytest.approx(2.0) and found.complete == pytest.approx(0.012 + 3 * 0.0025)
    stuck = replace(drained, tasks={**drained.tasks, COUNT0: TaskLoad()})
    assert _measured(GRAPH, stuck).missing == "count got tuples and has processed none yet"


def test_a_bolt_that_got_tuples_and_processed_none_has_no_rate_yet() -> None:
    stuck = replace(LOAD, tasks={**LOAD.tasks, COUNT0: TaskLoad()})
    assert _measured(GRAPH, stuck).missing == "count got tuples and has processed none yet"
    assert _measured(GRAPH, Load(SECONDS)).missing == "", "an idle stream needs few tasks"


def test_a_spout_that_cannot_be_scaled_offers_what_it_can_emit() -> None:
    full = replace(LOAD, tasks={**LOAD.tasks, LINES: replace(LOAD.tasks[LINES], busy_seconds=9.0)})
    assert _measured(GRAPH, full).network.offered == {"lines": pytest.approx(1000 / 9)}


@pytest.mark.parametrize(("made", "expected"), [
    (component("b", 3, ("a", Grouping.GLOBAL)), (3, 3)),
    (component("b", 3, ("a", Grouping.ALL)), (3, 3)),
    (component("b", 3, ("a", Grouping.SHUFFLE), own_state=True), (3, 3)),
    (component("b", 3, ("a", Grouping.SHUFFLE)), (1, TASKS_LIMIT)),
    (component("b", 3, ("a", Grouping.fields("word"))), (1, 128)),
])
def test_bounds_of_components(made: ComponentDef, expected: tuple[int, int]) -> None:
    graph = TopologyGraph("t", (component("a", 1), made), {})
    assert bounds(graph, "b") == expected


def test_traffic_of_ackers_does_not_count() -> None:
    acker = TaskId("__acker", 0)
    with_acker = replace(LOAD, tasks={**LOAD.tasks, acker: TaskLoad(executed=10)},
                         traffic={**LOAD.traffic, (SPLIT0, acker): 5.0})
    assert _measured(GRAPH, with_acker).network == _measured(GRAPH, LOAD).network
