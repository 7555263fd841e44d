"""Tasks that cannot move, workers that are full by waiting, and other objectives than tuples, for the schedulers that place
tasks by their load."""

from __future__ import annotations

import re

import pytest
from by_hand import cluster, graph, load, plan

from millrace.schedulers.base import NewPlan, NoChange, Scheduler
from millrace.schedulers.erstream import ErStream
from millrace.schedulers.online import Online
from millrace.schedulers.optimal import Optimal
from millrace.schedulers.otd import Otd
from millrace.schedulers.problem import Problem
from millrace.schedulers.tstorm import TStorm

PAIR = cluster(n1=[0], n2=[1])
FROM_SCRATCH = [TStorm(gamma=6.0), TStorm(gamma=6.0, improve=True), Online(), ErStream(), Optimal()]


def name_of(scheduler: Scheduler) -> str:
    return type(scheduler).__name__ + ("-improved" if getattr(scheduler, "improve", False) else "")


def test_otd_moves_the_bolt_to_a_spout_that_cannot_move() -> None:
    # Either move makes 30 tuples/s local, and that of the spout comes first by number; it is not possible.
    running = {"t": plan(a=[0], b=[1])}
    question = [graph(pinned="a", a=1, b=1)], PAIR, {"t": load({"a0 b0": 30.0}, a0=100, b0=100)}
    result = Otd().schedule(*question, running)
    assert isinstance(result, NewPlan) and result.plans == {"t": plan(2, a=[0], b=[0])}
    assert isinstance(Otd().schedule(*question, result.plans), NoChange)


def test_optimal_does_not_promise_what_fixed_spouts_make_impossible() -> None:
    # The spouts are on different nodes: b0 can be with one of them only, and the other's 2,000 tuples/s remain.
    result = Optimal().schedule([graph(pinned="a", a=2, b=1)], PAIR, {"t": load({"a0 b0": 3000.0, "a1 b0": 2000.0}, b0=1)},
                                {"t": plan(a=[0, 1], b=[1])})
    assert isinstance(result, NewPlan) and result.plans == {"t": plan(2, a=[0, 1], b=[0])}
    assert result.reason == "2,000.0 tuples/s between nodes, the least possible"


@pytest.mark.parametrize("scheduler", FROM_SCRATCH, ids=name_of)
def test_bolts_go_to_a_spout_that_cannot_move(scheduler: Scheduler) -> None:
    measured = load({"a0 b0": 500.0, "a0 b1": 400.0}, a0=10, b0=10, b1=10)
    graphs, running = [graph(pinned="a", a=1, b=2)], {"t": plan(a=[1], b=[0, 0])}
    result = scheduler.schedule(graphs, PAIR, {"t": measured}, running)
    assert isinstance(result, NewPlan) and result.plans == {"t": plan(2, a=[1], b=[1, 1])}
    claimed = re.search(r"become ([\d,]+)", result.reason) or re.match(r"([\d,.]+) tuples", result.reason)
    assert claimed is not None and float(claimed[1].replace(",", "")) == 0.0


@pytest.mark.parametrize("measured", [load(a0=700, a1=700), load(busy={"a0": 0.7, "a1": 0.7})], ids=["cpu", "waiting"])
@pytest.mark.parametrize("scheduler", [*FROM_SCRATCH, Otd()], ids=name_of)
def test_an_overloaded_worker_is_relieved_although_there_is_no_traffic(scheduler: Scheduler, measured: object) -> None:
    result = scheduler.schedule([graph(a=2)], PAIR, {"t": measured}, {"t": plan(a=[0, 0])})  # type: ignore[dict-item]
    assert isinstance(result, NewPlan), result
    assert set(result.plans["t"].placement.values()) == {0, 1}
    assert result.overload == ()


@pytest.mark.parametrize("scheduler", [Online(), ErStream()], ids=name_of)
def test_an_overload_that_cannot_be_relieved_moves_nothing(scheduler: Scheduler) -> None:
    result = scheduler.schedule([graph(a=2)], PAIR, {"t": load(a0=1000, a1=1000)}, {"t": plan(a=[0, 1])})
    assert isinstance(result, NoChange)


@pytest.mark.parametrize("scheduler", [TStorm(gamma=6.0), TStorm(gamma=6.0, improve=True), Optimal()], ids=name_of)
def test_workers_are_not_filled_beyond_their_loop(scheduler: Scheduler) -> None:
    # All would share a node by their traffic, and one worker by their CPU. Three of 0.5 need two loops.
    nodes = cluster(n1=[0, 1], n2=[2, 3])
    waiting = load({"a0 a1": 50.0, "a1 a2": 50.0}, a0=1, a1=1, a2=1, busy={"a0": 0.4, "a1": 0.4, "a2": 0.4})
    result = scheduler.schedule([graph(a=3)], nodes, {"t": waiting}, {})
    assert isinstance(result, NewPlan)
    problem = Problem.of([graph(a=3)], nodes, {"t": waiting}, result.plans)
    figures = problem.figures(problem.current)
    assert figures.largest_worker_time <= 1.0 and result.overload == ()


def test_a_second_worker_of_a_node_is_used_before_a_worker_is_overloaded() -> None:
    # 4 tasks of 600 MHz on nodes of 4 cores: two on each node by gamma, and a worker has one core.
    heavy = load({"a0 a1": 9.0, "a2 a3": 8.0}, a0=600, a1=600, a2=600, a3=600)
    result = TStorm(gamma=1.0).schedule([graph(a=4)], cluster(n1=[0, 1], n2=[2, 3]), {"t": heavy}, {})
    assert isinstance(result, NewPlan)
    assert sorted(result.plans["t"].placement.values()) == [0, 1, 2, 3] and result.overload == ()
    assert "need a further worker on a node" in result.reason


FEW_LARGE = load({"a0 b0": 10.0, "a1 b0": 50.0}, size={"a0 b0": 9000.0, "a1 b0": 500.0}, a0=400, a1=400, b0=400)


@pytest.mark.parametrize(("minimise", "partner"), [("tuples", 1), ("bytes", 0)])
@pytest.mark.parametrize("make", [TStorm, Online, ErStream, Optimal, Otd])
def test_bytes_can_be_minimised_instead_of_tuples(make: type, minimise: str, partner: int) -> None:
    # A worker has room for two of the three: b0 is with the task that it exchanges most with, a1 by tuples, a0 by bytes.
    extra = {"low": 0.7, "high": 0.95} if make is Otd else {"u": 0.9} if make is ErStream else {}
    result = make(minimise=minimise, **extra).schedule([graph(a=2, b=1)], PAIR, {"t": FEW_LARGE},
                                                       {"t": plan(a=[0, 1], b=[1 - partner])})
    assert isinstance(result, NewPlan), result
    placement = {str(task): slot for task, slot in result.plans["t"].placement.items()}
    assert placement[f"a[{partner}]"] == placement["b[0]"] != placement[f"a[{1 - partner}]"]


@pytest.mark.parametrize("make", [TStorm, ErStream, Optimal])
def test_tasks_that_must_be_apart_use_a_cheap_link(make: type) -> None:
    # The spout is on n1 and fills it: b0 goes to n3, which is near n1, and not to n2, which comes first.
    nodes = cluster(n1=[0], n2=[1], n3=[2], links={"n1 n3": 0.1})
    measured = load({"a0 b0": 100.0}, a0=800, b0=700)
    result = make(minimise="cost").schedule([graph(pinned="a", a=1, b=1)], nodes, {"t": measured}, {"t": plan(a=[0], b=[1])})
    assert isinstance(result, NewPlan) and result.plans == {"t": plan(2, a=[0], b=[2])}


def test_traffic_between_workers_of_a_node_has_its_weight() -> None:
    question = ([graph(a=1, b=1)], cluster(n1=[0, 1]), {"t": load({"a0 b0": 100.0}, a0=10, b0=10)}, {"t": plan(a=[0], b=[1])})
    assert isinstance(Optimal().schedule(*question), NoChange)
    result = Optimal(between_workers=0.2).schedule(*question)
    assert isinstance(result, NewPlan) and len(set(result.plans["t"].placement.values())) == 1
    moved = Otd(between_workers=0.2).schedule(*question)
    assert isinstance(moved, NewPlan) and len(set(moved.plans["t"].placement.values())) == 1
    assert "saves 20.0 tuples/s" in moved.reason
