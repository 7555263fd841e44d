"""OTD, by hand: the four cases and ASC. A worker can use 1,000 MHz, so 900 MHz are 90 % of its core."""

from __future__ import annotations

from by_hand import cluster, graph, load, one_core, plan, task

from millrace.model.plan import Plan
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


# -- beyond the paper: nodes, and overloads that no single move relieves -------------------------------------------------


CROWDED = one_core(n1=[0, 1], n2=[2])


def test_a_task_leaves_an_overloaded_node_although_none_of_its_workers_is() -> None:
    # n1 has one core of 1,000 MHz for 500 + 450 = 95 %, above 85 %; its workers use 50 and 45 %. a0 gains 5 on n2, a1 nothing.
    question = [graph(a=2, b=1)], CROWDED, {"t": load({"a0 b0": 5.0}, a0=500, a1=450, b0=100)}, {"t": plan(a=[0, 1], b=[2])}
    result = Otd(threshold=9.0).schedule(*question)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[2, 1], b=[2])}
    assert result.reason.startswith("a[0] of 't' goes from worker 0 to 2, which makes 5.0 tuples/s more local: an overload is "
                                    "relieved: 95% of a node")
    assert isinstance(Otd(threshold=9.0, nodes=False).schedule(*question), NoChange), "as in the paper"


def test_of_the_moves_that_relieve_a_node_one_is_made_at_a_time() -> None:
    # 2,000 MHz on n1 of four tasks: three have to leave before it has no more than 85 %, and each relieves something.
    nodes, busy = one_core(n1=[0, 1], n2=[2], n3=[3], n4=[4]), {"t": load(a0=500, a1=500, a2=500, a3=500)}
    current, moved = plan(a=[0, 0, 1, 1]), []
    while isinstance(result := Otd().schedule([graph(a=4)], nodes, busy, {"t": current}), NewPlan):
        moved.append(len(Plan.diff(current, result.plans["t"]).moved))
        current = result.plans["t"]
    assert moved == [1, 1, 1] and sorted(current.placement.values()) in ([0, 2, 3, 4], [1, 2, 3, 4])


def test_two_tasks_change_places_where_no_single_move_relieves_anything() -> None:
    # n1 has 600 + 500 = 110 %, n2 450 + 350 = 80 %: whichever task goes, n2 has too much then.
    question = ([graph(a=2, b=2)], one_core(n1=[0], n2=[1]), {"t": load(a0=600, a1=500, b0=450, b1=350)},
                {"t": plan(a=[0, 0], b=[1, 1])})
    result = Otd().schedule(*question)
    assert isinstance(result, NewPlan) and not result.overload
    assert len(Plan.diff(plan(a=[0, 0], b=[1, 1]), result.plans["t"]).moved) == 2
    assert isinstance(Otd(nodes=False).schedule(*question), NoChange), "as in the paper"


def test_a_node_waits_for_the_effect_of_a_task_that_was_moved_just_now() -> None:
    settling = load(settling=("a0",), a0=500, a1=450)
    assert isinstance(Otd().schedule([graph(a=2)], CROWDED, {"t": settling}, {"t": plan(a=[0, 1])}), NoChange)


def test_a_move_for_the_traffic_fills_no_node_beyond_high() -> None:
    # Nodes of one core. The best move would fill n2 to 90 %, which is refused as an overload; as in the paper it is made.
    question = ([graph(a=1, b=1, c=1)], one_core(n1=[0], n2=[1, 2]),
                {"t": load({"a0 b0": 100.0, "b0 c0": 10.0}, a0=400, b0=300, c0=200)}, {"t": plan(a=[0], b=[1], c=[2])})
    result, paper = Otd().schedule(*question), Otd(nodes=False).schedule(*question)
    assert isinstance(result, NewPlan) and result.plans == {"t": plan(2, a=[0], b=[0], c=[2])}
    assert isinstance(paper, NewPlan) and paper.plans["t"].placement[task("a0")] in (1, 2)
