"""OTD, by hand: the four cases and ASC. A worker can use 1,000 MHz, so 900 MHz are 90 % of its core."""

from __future__ import annotations

from by_hand import cluster, graph, load, plan

from millrace.schedulers.base import NewPlan, NoChange
from millrace.schedulers.otd import Otd

NODES = cluster(n1=[0, 1], n2=[2, 3])
GRAPH = graph(a=2, b=1)
RUNNING = {"t": plan(a=[0, 0], b=[2])}
TALK = {"a1 b0": 40.0, "b0 a1": 10.0, "a0 a1": 20.0}


def test_case_1_high_and_low_the_task_with_the_largest_asc_moves() -> None:
    # Worker 0: 90 %, high. Low: 1 (0 %), 2 (30 %), 3 (0 %); the least loaded of each node: 1 and 3.
    # ASC(a0 -> n2) = 0 - 20 = -20; ASC(a1 -> n2) = (40 + 10) - 20 = 30; to worker 1, on the same node: 0.
    result = Otd().schedule([GRAPH], NODES, {"t": load(TALK, a0=500, a1=400, b0=300)}, RUNNING)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 3], b=[2])}
    assert result.reason == ("a[1] of 't' goes from worker 0 to 3, which makes 30.0 tuples/s more local: worker 0 used 90% of "
                             "a core")


def test_case_1_a_move_inside_the_node_has_asc_0() -> None:
    # Without b0 on n2 every move there loses 20; to worker 1 it is 0. Of a0 and a1 the one that leaves worker 1 with less.
    result = Otd().schedule([graph(a=2)], NODES, {"t": load({"a0 a1": 20.0}, a0=500, a1=400)}, {"t": plan(a=[0, 0])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 1])}


def test_case_1_the_target_must_not_become_high() -> None:
    # Whoever takes 900 MHz is as bad as the source.
    result = Otd().schedule([graph(a=1)], NODES, {"t": load(a0=900)}, {"t": plan(a=[0])})
    assert isinstance(result, NoChange)
    assert "resources are insufficient: worker 0 is overloaded, and no task there can move" in result.reason


def test_case_1_if_the_most_loaded_worker_cannot_be_helped_the_next_one_is() -> None:
    # Worker 0 has one task of 95 %. Worker 2 has 50 + 40 = 90 %: its 40 go to worker 1 or 3, both idle and without traffic.
    result = Otd().schedule([graph(a=1, b=2)], NODES, {"t": load(a0=950, b0=500, b1=400)}, {"t": plan(a=[0], b=[2, 2])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0], b=[2, 1])}


def test_case_1_queues_that_stay_long_make_a_worker_high() -> None:
    # 30 % CPU, but 20,000 tuples waited at the ends of both windows. 10 % after the move is below the 30 % before.
    busy = load(a0=200, a1=100, queue={"a0": 20_000})
    result = Otd().schedule([graph(a=2)], cluster(n1=[0], n2=[1]), {"t": busy}, {"t": plan(a=[0, 0])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 1])}


def test_case_2_only_high_a_warning() -> None:
    result = Otd().schedule([graph(a=2)], cluster(n1=[0], n2=[1]), {"t": load(a0=900, a1=800)}, {"t": plan(a=[0, 1])})
    assert result == NoChange("resources are insufficient: workers 0, 1 are overloaded and no worker has a low load. Add "
                              "workers, or lower the input")


def test_case_3_only_low_a_task_goes_where_its_traffic_is_if_that_gains_enough() -> None:
    # a0 -> n2: 20 + 10 - 0 = 30, and so is b0 -> n1; the first task wins. It goes to worker 3, the least loaded of n2.
    question = ([graph(a=1, b=1)], NODES, {"t": load({"a0 b0": 20.0, "b0 a0": 10.0}, a0=100, b0=100)},
                {"t": plan(a=[0], b=[2])})
    result = Otd(threshold=29.0).schedule(*question)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[3], b=[2])}
    assert Otd(threshold=30.0).schedule(*question) == NoChange(
        "no worker is overloaded; the best move makes 30.0 tuples/s local, and 30.0 are required")


def test_case_4_neither_nothing() -> None:
    result = Otd().schedule([graph(a=2)], cluster(n1=[0], n2=[1]), {"t": load({"a0 a1": 99.0}, a0=600, a1=700)},
                            {"t": plan(a=[0, 1])})
    assert result == NoChange("no worker is overloaded, and none has a low load")


def test_what_settles_is_left_alone_and_so_is_its_worker() -> None:
    settling = load(TALK, settling=("a0",), a0=500, a1=400, b0=300)
    result = Otd().schedule([GRAPH], NODES, {"t": settling}, RUNNING)
    assert result == NoChange("worker 0 is overloaded; waiting for the effect of a task that was started or moved just now")
    # As a target too: with b0 settling on worker 3, worker 2 is the one to go to on n2.
    near = load(TALK, settling=("b0",), a0=500, a1=400, b0=300)
    result = Otd().schedule([GRAPH], NODES, {"t": near}, {"t": plan(a=[0, 0], b=[3])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 2], b=[3])}


def test_tasks_without_a_worker_are_placed_first() -> None:
    result = Otd().schedule([GRAPH], NODES, {"t": load(TALK, a0=500, a1=400, b0=300)}, {"t": plan(a=[0, 0], b=[9])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 0], b=[1])}  # n1, where a1 is; worker 1, as worker 0 has no room
    assert result.reason == "1 tasks that had no worker are placed"
