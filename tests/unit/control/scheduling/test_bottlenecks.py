"""Bottlenecks under back-pressure, and the warnings about overload that stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.control.scheduling.bottlenecks import (
    LASTING,
    OVER,
    Bottleneck,
    Bottlenecks,
    behind,
    bottleneck_of,
    changed_topologies,
)
from millrace.control.scheduling.overload import OverloadWatch, place_loads
from millrace.control.scheduling.overload_warnings import OverloadWarnings, Relief
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ACKER, ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad

SECONDS = 10.0
CLUSTER = Cluster((Node("n0", 4, 1000.0, 4096),), tuple(Slot("n0", "e", number) for number in range(4)))
SPOUT, FIRST, SLOW, OTHER = TaskId("lines", 0), TaskId("split", 0), TaskId("count", 0), TaskId("count", 1)
ACKERS = [TaskId(ACKER, 0), TaskId(ACKER, 1)]
PLAN = Plan(1, {SPOUT: 0, FIRST: 1, SLOW: 2, OTHER: 3})


def graph(keyed: bool = False, **count: Any) -> TopologyGraph:
    def bolt(name: str, source: str, grouping: Grouping, tasks: int, **more: Any) -> ComponentDef:
        return ComponentDef(name, "bolt", "m:C", tasks, {}, (), (Input(source, "default", grouping),), False, "process", **more)

    grouping = Grouping.fields("word") if keyed else Grouping.SHUFFLE
    return TopologyGraph("t", (ComponentDef("lines", "spout", "m:C", 1, {}, (), (), False, "next_tuple"),
                               bolt("split", "lines", Grouping.SHUFFLE, 1), bolt("count", "split", grouping, 2, **count)), {})


def task(busy: float = 0.1, blocked: float = 0.0, mhz: float = 0.0, **more: Any) -> TaskLoad:
    return TaskLoad(busy_seconds=busy * SECONDS, blocked_seconds=blocked * SECONDS, cpu_mhz=mhz, **more)


def spout(blocked: float = 0.8, emitted: int = 1000, offered: int = 1000, lag: int | None = None) -> TaskLoad:
    return task(0.1, blocked, emitted=emitted, offered=offered, lag=lag)


def window(tasks: dict[TaskId, TaskLoad], settling: tuple[TaskId, ...] = (), plan: Plan = PLAN) -> WindowSample:
    """A window; a worker is as busy as its tasks."""
    load = Load(SECONDS, tasks, {}, settling)
    busy = {slot.number: sum(load.capacity(task) for task in tasks if plan.placement[task] == slot.number)
            for slot in CLUSTER.slots}
    workers = {slot: WorkerLoad("n0", busy=share) for slot, share in busy.items()}
    return WindowSample(0.0, SECONDS, {"t": load}, {"t": plan}, workers, {"n0": NodeLoad(100.0, 4000.0)})


HELD_UP = {SPOUT: spout(), FIRST: task(0.2, 0.7), SLOW: task(0.95), OTHER: task(0.97)}


# -- where -------------------------------------------------------------------------------------------------------------


def test_a_source_is_held_up_by_its_lag_or_if_that_is_not_known_by_waiting_for_credit() -> None:
    def seen(measured: TaskLoad) -> str:
        return behind(graph(), Load(SECONDS, {SPOUT: measured}))

    assert seen(spout(0.8)) == "lines waits for credit 80% of the time"
    limited = replace(graph(), config={"topology.max.spout.pending": 100})
    assert behind(limited, Load(SECONDS, {SPOUT: spout(0.8)})) == "lines waits for acks or credit 80% of the time"
    assert seen(spout(0.1)) == ""
    assert seen(spout(0.8, 1000, 1500, lag=500)) == "the lag of lines grows by 50 tuples/s"
    assert seen(spout(0.8, 1000, 1000, lag=0)) == "", "it waits now and then, and does not fall behind"
    assert seen(spout(0.8, 1000, 900, lag=500)) == "", "it catches up"


def test_the_bottleneck_is_busy_and_waits_for_nobody() -> None:
    found = bottleneck_of(graph(), window(HELD_UP), CLUSTER)
    assert found is not None and (found.component, found.alone) == ("count", (SLOW, OTHER))
    relaxed = {**HELD_UP, SPOUT: spout(0.1)}
    assert bottleneck_of(graph(), window(relaxed), CLUSTER) is None, "the source is not held up, so it keeps up"
    waiting = {**HELD_UP, SLOW: task(0.3), OTHER: task(0.3)}
    assert bottleneck_of(graph(), window(waiting), CLUSTER) is None, "nothing is busy"


def test_a_task_can_be_held_up_by_the_others_of_its_worker() -> None:
    """No task needs a whole loop, and the loop is full all the same."""
    plan = Plan(1, {SPOUT: 0, FIRST: 2, SLOW: 2, OTHER: 2})
    crowd = {SPOUT: spout(), FIRST: task(0.3), SLOW: task(0.35), OTHER: task(0.33)}
    found = bottleneck_of(graph(), window(crowd, plan=plan), CLUSTER)
    assert found is not None and found.alone == () and found.component == "split", "whose sender waits most"


def test_routing_and_encoding_fill_a_worker_as_user_code_does() -> None:
    """User code takes 76 % of the loop of a worker, and the engine the rest."""
    sample = window({SPOUT: spout(), FIRST: task(0.2, 0.7), SLOW: task(0.76), OTHER: task(0.76)})
    assert bottleneck_of(graph(), sample, CLUSTER) is None
    busy = {slot: replace(worker, busy=0.99 if slot in (2, 3) else worker.busy) for slot, worker in sample.workers.items()}
    full = replace(sample, workers=busy)
    found = bottleneck_of(graph(), full, CLUSTER)
    assert found is not None and (found.component, found.alone) == ("count", (SLOW, OTHER))
    assert found.busy == pytest.approx({SLOW: 0.99, OTHER: 0.99}) and found.needed == pytest.approx(2.2)
    [place, _] = [place for place in place_loads(full, CLUSTER) if place.share > 0.9]
    assert "count[0] of t alone needs 99%, so no other placement helps" in relief(graph(), full).of_place(place)
    on_threads = replace(graph(), components=tuple(replace(part, blocking=True) for part in graph().components))
    found = bottleneck_of(on_threads, full, CLUSTER)
    assert found is not None and not found.alone, "their own time is not that of the loop"


def test_a_spout_that_cannot_keep_up_with_its_source_is_one() -> None:
    slow = {SPOUT: task(0.95, emitted=1000, offered=2000, lag=5000), FIRST: task(0.2), SLOW: task(0.2), OTHER: task(0.2)}
    found = bottleneck_of(graph(), window(slow), CLUSTER)
    assert found is not None and found.component == "lines"
    assert found.needed == pytest.approx(0.95 * 2 / 0.8)


def test_it_counts_when_it_lasts_and_is_over_after_a_while() -> None:
    seen, graphs = Bottlenecks(), {"t": graph()}
    for _ in range(LASTING):
        assert not seen.lasting()
        seen.add(graphs, window(HELD_UP), CLUSTER)
        seen.add(graphs, window(HELD_UP, settling=(SLOW,)), CLUSTER)  # which says nothing
    assert [each.component for each in seen.lasting()] == ["count"]
    for _ in range(OVER):
        assert seen.lasting()
        seen.add(graphs, window({**HELD_UP, SPOUT: spout(0.0)}), CLUSTER)
    assert not seen.lasting()
    for _ in range(LASTING):
        seen.add(graphs, window(HELD_UP), CLUSTER)
    seen.forget("t")
    assert not seen.lasting()


def test_a_single_window_starts_from_zero_again() -> None:
    seen = Bottlenecks()
    for _ in range(3 * LASTING):
        seen.add({"t": graph()}, window(HELD_UP), CLUSTER)
        seen.add({"t": graph()}, window({**HELD_UP, SPOUT: spout(0.0)}), CLUSTER)
    assert not seen.lasting()


# -- what to add -------------------------------------------------------------------------------------------------------


def relief(made: TopologyGraph, sample: WindowSample, tried: str = "Scheduler tstorm does not relieve it: no room") -> Relief:
    return Relief({"t": made}, {"t": sample.plans["t"]}, sample, CLUSTER, tried)


def bottleneck(made: TopologyGraph, sample: WindowSample) -> Bottleneck:
    found = bottleneck_of(made, sample, CLUSTER)
    assert found is not None
    return found


def test_tasks_full_by_themselves_need_more_tasks() -> None:
    sample = window(HELD_UP)
    text = relief(graph(), sample).of_bottleneck(bottleneck(graph(), sample))
    assert text == ("count cannot keep up: lines waits for credit 80% of the time, and 2 of its 2 tasks are busy all the time "
                    "(count[0] 95%, count[1] 97%). No other placement helps: add tasks with `millrace scale count=3`")
    behind_by_far = window({**HELD_UP, SPOUT: spout(0.8, 1000, 3000, lag=10_000)})
    text = relief(graph(), behind_by_far).of_bottleneck(bottleneck(graph(), behind_by_far))
    assert "`millrace scale count=8`" in text and "Add 5 workers with `millrace workers add 5`" in text


def test_tasks_that_cannot_be_added_are_not_advised() -> None:
    made, sample = graph(own_state=True), window(HELD_UP)
    text = relief(made, sample).of_bottleneck(bottleneck(made, sample))
    assert "it cannot have more tasks: 'count' of 't' defines snapshot()" in text and "millrace scale" not in text


def test_uneven_keys_are_told_from_too_few_tasks() -> None:
    made = replace(graph(True), components=tuple(replace(part, par=3) if part.name == "count" else part
                                                 for part in graph(True).components))
    third = TaskId("count", 2)
    sample = window({**HELD_UP, OTHER: task(0.2), third: task(0.2)}, plan=Plan(1, {**PLAN.placement, third: 3}))
    assert "millrace scheduler set balance" in relief(made, sample).of_bottleneck(bottleneck(made, sample))


def test_full_workers_need_workers_or_another_scheduler() -> None:
    plan = Plan(1, dict.fromkeys(PLAN.placement, 2))
    crowd = {SPOUT: spout(), FIRST: task(0.3), SLOW: task(0.35), OTHER: task(0.33)}
    sample = window(crowd, plan=plan)
    text = relief(graph(), sample).of_bottleneck(bottleneck(graph(), sample))
    assert text.endswith("their workers are full. Scheduler tstorm does not relieve it: no room. Other workers have room: "
                         "choose another scheduler, or move tasks with `millrace move`")
    assert "No scheduler is in use" in relief(graph(), sample, "").of_bottleneck(bottleneck(graph(), sample))


def test_a_full_place_is_reported_once_with_what_to_add_and_its_end() -> None:
    watch, warnings = OverloadWatch(), OverloadWarnings()
    sample = window({SPOUT: spout(0.0), FIRST: task(0.99), SLOW: task(0.1), OTHER: task(0.1)})
    for _ in range(3):
        watch.add(sample, CLUSTER)
    [said] = warnings.update([], watch.lasting(0.95), relief(graph(), sample))
    assert said.level == "warning"
    assert said.text == ("the loop of worker 1 was busy for 99% of the time, with 1 task. split[0] of t alone needs 99%, so no "
                         "other placement helps: add tasks with `millrace scale split=2`")
    assert warnings.update([], watch.lasting(0.95), relief(graph(), sample)) == [] and warnings.warnings() == [said.text]
    [over] = warnings.update([], [], relief(graph(), sample))
    assert (over.text, over.level) == ("worker 1 is no longer overloaded", "info") and warnings.warnings() == []


@pytest.mark.parametrize(("fullest", "ackers", "says"), [
    (ACKERS[0], 1, "__acker[0] of t alone needs 99%, so no other placement helps: start the topology with more than 1 acker "
                   "(topology.acker.executors), which share its tuples"),
    (SPOUT, 0, "lines[0] of t alone needs 99%, so no other placement helps, and it cannot have more tasks: 'lines' of 't' is a "
               "spout, and each of its 1 tasks has its own position in the source: their number is fixed")])
def test_a_full_worker_whose_task_cannot_be_multiplied(fullest: TaskId, ackers: int, says: str) -> None:
    made = replace(graph(), ackers=ackers)
    tasks = {SPOUT: spout(0.0), FIRST: task(0.1), SLOW: task(0.1), OTHER: task(0.1),
             **dict.fromkeys(ACKERS[:ackers], task(0.1))}
    plan = Plan(1, {**dict.fromkeys(tasks, 3), fullest: 0})
    sample = window({**tasks, fullest: task(0.99)}, plan=plan)
    [full] = [place for place in place_loads(sample, CLUSTER) if place.share > 0.9]
    assert says in relief(made, sample).of_place(full)


def test_a_bottleneck_explains_its_workers() -> None:
    watch, warnings, sample = OverloadWatch(), OverloadWarnings(), window(HELD_UP)
    for _ in range(3):
        watch.add(sample, CLUSTER)
    found = bottleneck(graph(), sample)
    [said] = warnings.update([found], watch.lasting(0.9), relief(graph(), sample))
    assert (said.topology, said.level) == ("t", "warning") and said.text.startswith("count cannot keep up")
    assert warnings.warnings() == [f"t: {said.text}"]
    [over] = warnings.update([], [], relief(graph(), sample))
    assert over.text == "count keeps up again"


def test_a_topology_is_pressed_though_another_component_seems_the_busiest_in_every_window() -> None:
    """A full worker has tasks of two components, and noise decides which of them is taken for the bottleneck."""
    seen, shared = Bottlenecks(), Plan(1, {**PLAN.placement, FIRST: PLAN.placement[SLOW]})
    for number in range(LASTING):
        assert not seen.pressed()
        busy = (0.5, 0.45) if number % 2 else (0.45, 0.5)
        tasks = {SPOUT: spout(blocked=0.0, offered=1100, lag=100), FIRST: task(busy[0]), SLOW: task(busy[1]), OTHER: task(0.1)}
        seen.add({"t": graph()}, window(tasks, plan=shared), CLUSTER)
    assert not seen.lasting() and seen.pressed()
    seen.forget("t")
    assert not seen.pressed()


def test_a_plan_changes_the_topologies_whose_tasks_or_key_groups_move() -> None:
    running = {"a": PLAN, "b": PLAN, "c": Plan(1, PLAN.placement, {"count": (0, 1)})}
    plans = {"a": Plan(2, dict(PLAN.placement)), "b": Plan(2, {**PLAN.placement, SLOW: 3}),
             "c": Plan(2, PLAN.placement, {"count": (1, 1)}), "d": PLAN}
    assert changed_topologies(running, plans) == ["b", "c", "d"]
