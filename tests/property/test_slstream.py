"""The rules that Sl-Stream keeps, on random situations."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.instances import random_situation
from millrace.schedulers.partition import Cost, Cutting
from millrace.schedulers.problem import Ints, Problem
from millrace.schedulers.slstream import SlStream
from support.examples import examples

ALMOST = 1e-9


def problem(situation: Situation) -> Problem:
    return Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)


def ask(scheduler: SlStream, situation: Situation) -> SchedulingResult:
    return scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Draw a situation; some have a dead slot, some less CPU than needed."""
    situation = random_situation(np.random.default_rng(draw(st.integers(0, 10_000))), tasks=(2, 14), nodes=(1, 5))
    cluster = situation.cluster
    if len(cluster.slots) > 1 and draw(st.booleans()):
        cluster = dataclasses.replace(cluster, slots=cluster.slots[1:])
    shrunk = draw(st.sampled_from([1.0, 1.0, 0.8]))
    nodes = tuple(dataclasses.replace(node, mhz=node.mhz * shrunk) for node in cluster.nodes)
    return dataclasses.replace(situation, cluster=dataclasses.replace(cluster, nodes=nodes))


schedulers = st.builds(SlStream, xi=st.sampled_from([0.5, 0.7, 1.0]), k=st.none() | st.integers(1, 3),
                       rho=st.sampled_from([0.0, 1.0, 500.0]), particles=st.sampled_from([1, 8]),
                       iterations=st.sampled_from([0, 8]), seed=st.integers(0, 3))


def cost(scheduler: SlStream, situation: Situation, slots: Ints) -> Cost:
    """Return the cost of a placement, with one subgraph per node."""
    seen = problem(situation)
    whole = scheduler.cutting(seen, seen.nodes)
    label_of = np.argsort(whole.places)
    return whole.cost(label_of[seen.nodes_of(slots)])


def resulting(situation: Situation, result: SchedulingResult) -> Ints:
    assert not isinstance(result, CannotPlace)
    plans = result.plans if isinstance(result, NewPlan) else situation.plan
    return problem(dataclasses.replace(situation, plan=plans)).current


def not_worse(candidate: Cost, other: Cost) -> bool:
    if abs(candidate.overload - other.overload) > ALMOST:
        return candidate.overload < other.overload
    return candidate.p <= other.p + ALMOST * max(other.p, 1.0)


@settings(max_examples=examples(30))
@given(schedulers, situations())
def test_every_task_has_a_slot_and_equal_seeds_give_equal_results(scheduler: SlStream, situation: Situation) -> None:
    result = ask(scheduler, situation)
    assert (resulting(situation, result) >= 0).all()
    assert ask(scheduler, situation) == result


@settings(max_examples=examples(30))
@given(schedulers, situations())
def test_never_worse_than_what_runs(scheduler: SlStream, situation: Situation) -> None:
    running = problem(situation).current
    if (running < 0).any():
        return
    result = ask(scheduler, situation)
    assert not_worse(cost(scheduler, situation, resulting(situation, result)), cost(scheduler, situation, running))


@settings(max_examples=examples(30))
@given(schedulers, situations())
def test_the_partition_is_never_worse_than_the_greedy_one(scheduler: SlStream, situation: Situation) -> None:
    seen = problem(situation)
    cutting: Cutting = scheduler.cutting(seen, min(scheduler.k or seen.nodes, seen.nodes))
    kept = np.where(seen.current < 0, 0, seen.current)
    assert not_worse(cutting.cost(scheduler.partition(cutting, kept)), cutting.cost(cutting.greedy()))


@settings(max_examples=examples(25))
@given(situations())
def test_a_plan_that_is_worth_it_overloads_no_node(situation: Situation) -> None:
    result = ask(SlStream(), situation)
    moved = problem(situation).figures(resulting(situation, result)).moved
    if moved:
        assert isinstance(result, NewPlan)
        assert not [each for each in result.overload if each.where.startswith("node")]


@settings(max_examples=examples(25))
@given(situations())
def test_what_is_placed_well_stays(situation: Situation) -> None:
    """Repeat until nothing changes, which is soon: every change gains at least a tenth."""
    scheduler = SlStream(xi=0.9, particles=8, iterations=8)
    for _ in range(12):
        result = ask(scheduler, situation)
        if isinstance(result, NoChange):
            return
        assert isinstance(result, NewPlan)
        situation = dataclasses.replace(situation, plan=result.plans)
    raise AssertionError(f"still moving tasks: {result.reason}")
