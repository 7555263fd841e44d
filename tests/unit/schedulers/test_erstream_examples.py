"""Er-Stream's reconfiguration, by hand. A worker takes tasks up to u = 0.9 of its 1,000 MHz."""

from __future__ import annotations

import pytest
from by_hand import cluster, graph, load, plan

from millrace.errors import BadParameter
from millrace.schedulers.base import NewPlan, NoChange
from millrace.schedulers.erstream import ErStream

TWO = cluster(n1=[0], n2=[1])
TALK = {"a0 a1": 100.0, "b0 b1": 90.0, "a1 b0": 80.0, "a0 b0": 70.0}
LOAD = load(TALK, a0=300, a1=300, b0=300, b1=300)
RUNNING = {"t": plan(a=[0, 1], b=[0, 1])}  # 100 + 90 + 80 = 270 between the nodes


def test_pairs_in_order_of_their_traffic() -> None:
    # a0 a1: both to worker 0. b0 b1: both to worker 1, with the lowest CPU. The other two pairs are placed: 80 + 70 = 150.
    # Change: (270 - 150) / 270 = 44.4 %.
    result = ErStream(u=0.9, tr_improve=0.4).schedule([graph(a=2, b=2)], TWO, {"t": LOAD}, RUNNING)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 0], b=[1, 1])}
    assert result.reason == "270 tuples/s between nodes could become 150 (44.4% less): 2 tasks move"


def test_one_that_is_new_goes_where_it_adds_least() -> None:
    # a0 b0 (100): worker 0. c0 d0 (90): worker 1. Then e0 with c0 (80): on worker 1 it adds 10, on worker 0 80.
    talk = {"a0 b0": 100.0, "c0 d0": 90.0, "c0 e0": 80.0, "a0 e0": 10.0}
    light = load(talk, a0=100, b0=100, c0=100, d0=100, e0=100)
    result = ErStream(u=0.9).schedule([graph(a=1, b=1, c=1, d=1, e=1)], TWO, {"t": light},
                                      {"t": plan(a=[0], b=[1], c=[0], d=[1], e=[0])})
    assert isinstance(result, NewPlan)
    # The two nodes are alike: with their parts exchanged three tasks stay where they are, instead of two.
    assert result.plans == {"t": plan(2, a=[1], b=[1], c=[0], d=[0], e=[0])}


def test_over_u_the_next_best_with_room_is_taken() -> None:
    # As before, but worker 1 would get to 950 MHz with e0, over u: worker 0 is next.
    talk = {"a0 b0": 100.0, "c0 d0": 90.0, "c0 e0": 80.0, "a0 e0": 10.0}
    heavy = load(talk, a0=100, b0=100, c0=400, d0=400, e0=150)
    result = ErStream(u=0.9, tr_improve=0.1).schedule([graph(a=1, b=1, c=1, d=1, e=1)], TWO, {"t": heavy},
                                                      {"t": plan(a=[0], b=[1], c=[0], d=[1], e=[1])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[1], b=[1], c=[0], d=[0], e=[1])}  # exchanged: b0, c0 and e0 stay


def test_tasks_in_no_pair_go_last_to_the_least_loaded() -> None:
    # a0 b0 on worker 0 (200 MHz); c0 and c1 talk to nobody: both to worker 1 (0, then 50 MHz).
    result = ErStream(u=0.9).schedule([graph(a=1, b=1, c=2)], TWO, {"t": load({"a0 b0": 9.0}, a0=100, b0=100, c0=50, c1=50)},
                                      {"t": plan(a=[0], b=[1], c=[0, 0])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[1], b=[1], c=[0, 0])}  # exchanged: only a0 has to move


def test_workers_that_talk_go_to_one_node_while_it_has_room() -> None:
    # Workers of 600 MHz each with 150 between them: n1 has 4,000 MHz and two slots, so both go there.
    result = ErStream(u=0.9).schedule([graph(a=2, b=2)], cluster(n1=[0, 1], n2=[2, 3]),
                                      {"t": load(TALK, a0=450, a1=450, b0=450, b1=450)}, {"t": plan(a=[0, 2], b=[0, 2])})
    assert isinstance(result, NewPlan)
    assert set(result.plans["t"].placement.values()) == {0, 1}


def test_at_the_border_of_tr_improve() -> None:
    # 400 MHz each: two fit a worker. Tr_old = 50 + 50, Tr_new = 50: (100 - 50) / 100 = 0.5.
    question = ([graph(a=2, b=1)], TWO, {"t": load({"a0 b0": 50.0, "a1 b0": 50.0}, a0=400, a1=400, b0=400)},
                {"t": plan(a=[0, 0], b=[1])})
    result = ErStream(u=0.9, tr_improve=0.5).schedule(*question)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[1, 0], b=[1])} or result.plans == {"t": plan(2, a=[0, 1], b=[0])}
    assert ErStream(u=0.9, tr_improve=0.51).schedule(*question) == NoChange(
        "100 tuples/s between nodes could become 50 (50.0% less): at least 51.0% is required")


def test_no_improvement_is_never_enough() -> None:
    together = {"t": plan(a=[0, 0], b=[1, 1])}  # its own choice
    assert isinstance(ErStream(u=0.9, tr_improve=0.0).schedule([graph(a=2, b=2)], TWO, {"t": LOAD}, together), NoChange)


def test_tasks_without_a_worker_are_placed_though_nothing_else_moves() -> None:
    result = ErStream(u=0.9, tr_improve=1.0).schedule([graph(a=2, b=2)], TWO, {"t": LOAD}, {"t": plan(a=[0, 1], b=[0, 9])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 1], b=[0, 0])}  # to b0, which it talks to: 900 MHz on worker 0
    assert "1 tasks that had no worker are placed" in result.reason


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(BadParameter, match=r"tr_improve = 1\.5 is out of range: it must be from 0 to 1"):
        ErStream(tr_improve=1.5)
