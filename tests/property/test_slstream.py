"""The rules that Sl-Stream keeps, on situations made at random."""

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


def problem(given: Situation) -> Problem:
    return Problem.of(given.graphs, given.cluster, given.load, given.plan)


def ask(scheduler: SlStream, given: Situation) -> SchedulingResult:
    return scheduler.schedule(given.graphs, given.cluster, given.load, given.plan)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Some with a slot that has died, some with less CPU than is needed."""
    found = random_situation(np.random.default_rng(draw(st.integers(0, 10_000))), tasks=(2, 14), nodes=(1, 5))
    cluster = found.cluster
    if len(cluster.slots) > 1 and draw(st.booleans()):
        cluster = dataclasses.replace(cluster, slots=cluster.slots[1:])
    shrunk = draw(st.sampled_from([1.0, 1.0, 0.8]))
    nodes = tuple(dataclasses.replace(node, mhz=node.mhz * shrunk) for node in cluster.nodes)
    return dataclasses.replace(found, cluster=dataclasses.replace(cluster, nodes=nodes))


schedulers = st.builds(SlStream, xi=st.sampled_from([0.5, 0.7, 1.0]), k=st.none() | st.integers(1, 3),
                       rho=st.sampled_from([0.0, 1.0, 500.0]), particles=st.sampled_from([1, 8]),
                       iterations=st.sampled_from([0, 8]), seed=st.integers(0, 3))


def cost(scheduler: SlStream, given: Situation, slots: Ints) -> Cost:
    """Of a placement, every node a place."""
    seen = problem(given)
    whole = scheduler.cutting(seen, seen.nodes)
    label_of = np.argsort(whole.places)
    return whole.cost(label_of[seen.nodes_of(slots)])


def resulting(given: Situation, result: SchedulingResult) -> Ints:
    assert not isinstance(result, CannotPlace)
    plans = result.plans if isinstance(result, NewPlan) else given.plan
    return problem(dataclasses.replace(given, plan=plans)).current


def not_worse(one: Cost, other: Cost) -> bool:
    if abs(one.overload - other.overload) > ALMOST:
        return one.overload < other.overload
    return one.p <= other.p + ALMOST * max(other.p, 1.0)


@settings(max_examples=examples(30))
@given(schedulers, situations())
def test_every_task_has_a_slot_and_equal_seeds_give_equal_results(scheduler: SlStream, given: Situation) -> None:
    result = ask(scheduler, given)
    assert (resulting(given, result) >= 0).all()
    assert ask(scheduler, given) == result


@settings(max_examples=examples(30))
@given(schedulers, situations())
def test_never_worse_than_what_runs(scheduler: SlStream, given: Situation) -> None:
    running = problem(given).current
    if (running < 0).any():
        return
    result = ask(scheduler, given)
    assert not_worse(cost(scheduler, given, resulting(given, result)), cost(scheduler, given, running))


@settings(max_examples=examples(30))
@given(schedulers, situations())
def test_the_partition_is_never_worse_than_the_greedy_one(scheduler: SlStream, given: Situation) -> None:
    seen = problem(given)
    cutting: Cutting = scheduler.cutting(seen, min(scheduler.k or seen.nodes, seen.nodes))
    kept = np.where(seen.current < 0, 0, seen.current)
    assert not_worse(cutting.cost(scheduler.partition(cutting, kept)), cutting.cost(cutting.greedy()))


@settings(max_examples=examples(25))
@given(situations())
def test_a_plan_that_is_worth_it_overloads_no_node(given: Situation) -> None:
    result = ask(SlStream(), given)
    moved = problem(given).figures(resulting(given, result)).moved
    if moved:
        assert isinstance(result, NewPlan)
        assert not [each for each in result.overload if each.where.startswith("node")]


@settings(max_examples=examples(25))
@given(situations())
def test_what_is_placed_well_stays(given: Situation) -> None:
    """Asked again until nothing changes, which is soon: every change is at least a tenth better."""
    scheduler = SlStream(xi=0.9, particles=8, iterations=8)
    for _ in range(12):
        result = ask(scheduler, given)
        if isinstance(result, NoChange):
            return
        assert isinstance(result, NewPlan)
        given = dataclasses.replace(given, plan=result.plans)
    raise AssertionError(f"still moving tasks: {result.reason}")
