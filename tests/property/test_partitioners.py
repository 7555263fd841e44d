"""The rules that Sl-Stream and the multilevel scheduler keep, on random situations."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from situations import ask, with_pinned_spouts

from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.instances import random_situation
from millrace.schedulers.multilevel import Multilevel
from millrace.schedulers.overload import FillLimits, threshold
from millrace.schedulers.partitioning.partition import Cost, Cutting
from millrace.schedulers.partitioning.relief import relieved
from millrace.schedulers.partitioning.room import weighed_excess
from millrace.schedulers.problem import Ints, Problem
from millrace.schedulers.slstream import SlStream
from support.examples import examples

ALMOST = 1e-9


def problem(situation: Situation) -> Problem:
    return Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Draw a situation; some have a dead slot, some less CPU than needed."""
    situation = random_situation(np.random.default_rng(draw(st.integers(0, 10_000))), tasks=(2, 14), nodes=(1, 5))
    cluster = situation.cluster
    if len(cluster.slots) > 1 and draw(st.booleans()):
        cluster = dataclasses.replace(cluster, slots=cluster.slots[1:])
    shrunk = draw(st.sampled_from([1.0, 1.0, 0.8]))
    nodes = tuple(dataclasses.replace(node, mhz=node.mhz * shrunk) for node in cluster.nodes)
    situation = dataclasses.replace(situation, cluster=dataclasses.replace(cluster, nodes=nodes))
    return with_pinned_spouts(situation) if draw(st.booleans()) else situation


schedulers = st.builds(SlStream, xi=st.sampled_from([0.5, 0.7, 1.0]), k=st.none() | st.integers(1, 3),
                       rho=st.sampled_from([0.0, 1.0, 500.0]), particles=st.sampled_from([1, 8]),
                       iterations=st.sampled_from([0, 8]), seed=st.integers(0, 3))


def cost(scheduler: SlStream, situation: Situation, slots: Ints) -> Cost:
    """Return the cost of a placement as it is enacted."""
    return scheduler.rated(problem(situation), slots)


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


@settings(max_examples=examples(40))
@given(schedulers, situations())
def test_a_plan_keeps_its_promise_with_all_pinned_tasks_in_place(scheduler: SlStream, situation: Situation) -> None:
    seen, result = problem(situation), ask(scheduler, situation)
    slots = resulting(situation, result)
    assert (slots[seen.pinned] == seen.current[seen.pinned]).all()
    promised = re.search(r"p [\d,.]+ -> ([\d,.]+)", result.reason)
    if promised:
        assert float(promised[1].replace(",", "").rstrip(".")) == pytest.approx(cost(scheduler, situation, slots).p, abs=0.051)


@settings(max_examples=examples(25))
@given(situations())
def test_as_published_it_is_never_worse_than_what_runs_either(situation: Situation) -> None:
    scheduler, running = SlStream(published=True, particles=8, iterations=8), problem(situation).current
    if (running < 0).any():
        return
    result = ask(scheduler, situation)
    assert not_worse(cost(scheduler, situation, resulting(situation, result)), cost(scheduler, situation, running))


@settings(max_examples=examples(25))
@given(situations())
def test_a_plan_that_is_worth_it_overloads_no_node(situation: Situation) -> None:
    """Only where no task is pinned: a node may have more of those than it has room for."""
    result = ask(SlStream(), situation)
    moved = problem(situation).figures(resulting(situation, result)).moved
    if moved and not problem(situation).pinned.any():
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


# ---- multilevel


@st.composite
def clusters_of_workers(draw: st.DrawFn, tasks: tuple[int, int] = (2, 20), nodes: tuple[int, int] = (1, 5)) -> Situation:
    """Draw a situation; some have spouts that cannot be moved, some a dead slot, some workers with less than a node's CPU."""
    situation = random_situation(np.random.default_rng(draw(st.integers(0, 10_000))), tasks=tasks, nodes=nodes)
    cluster = situation.cluster
    if len(cluster.slots) > 1 and draw(st.booleans()):
        cluster = dataclasses.replace(cluster, slots=cluster.slots[1:])
    cores = draw(st.sampled_from([1, 1, 2]))
    machines = tuple(dataclasses.replace(node, cores=cores, mhz=node.mhz / cores * 1.2) for node in cluster.nodes)
    situation = dataclasses.replace(situation, cluster=dataclasses.replace(cluster, nodes=machines))
    return with_pinned_spouts(situation) if draw(st.booleans()) else situation


multilevels = st.builds(Multilevel, capacity=st.sampled_from([0.8, 0.9, 1.0]), move_cost=st.sampled_from([0.0, 1.0, 50.0]),
                        seed=st.integers(0, 3))


@settings(max_examples=examples(40))
@given(multilevels, clusters_of_workers())
def test_multilevel_places_every_task_pinned_ones_where_they_are(scheduler: Multilevel, situation: Situation) -> None:
    seen, result = problem(situation), ask(scheduler, situation)
    slots = resulting(situation, result)
    assert (slots >= 0).all() and (slots[seen.pinned] == seen.current[seen.pinned]).all()
    assert ask(scheduler, situation) == result


@settings(max_examples=examples(40))
@given(multilevels, clusters_of_workers())
def test_multilevel_moves_only_what_is_worth_its_cost(scheduler: Multilevel, situation: Situation) -> None:
    """It is never worse than the running plan."""
    seen = problem(situation)
    if (seen.current < 0).any():
        return
    slots = resulting(situation, ask(scheduler, situation))
    share = threshold(scheduler.capacity)
    before, after = weighed_excess(seen, seen.current, share), weighed_excess(seen, slots, share)
    assert after <= before + ALMOST
    if after >= before - ALMOST:
        saved = seen.cost(seen.current) - seen.cost(slots)
        assert saved >= scheduler.move_cost * seen.figures(slots).moved - ALMOST * max(saved, 1.0)


@settings(max_examples=examples(40))
@given(multilevels, clusters_of_workers())
def test_multilevel_keeps_its_promise(scheduler: Multilevel, situation: Situation) -> None:
    seen, result = problem(situation), ask(scheduler, situation)
    if isinstance(result, NewPlan):
        slots = resulting(situation, result)
        assert result.reason.startswith(seen.in_words(seen.cost(slots)))
        assert f"{seen.figures(slots).moved} tasks move" in result.reason
        assert result.overload == seen.overload(slots)


@settings(max_examples=examples(40))
@given(multilevels, clusters_of_workers())
def test_multilevel_comes_to_rest(scheduler: Multilevel, situation: Situation) -> None:
    """Repeat until nothing changes, which is soon: every change has less overload or less traffic."""
    for _ in range(12):
        result = ask(scheduler, situation)
        if not isinstance(result, NewPlan):
            return
        situation = dataclasses.replace(situation, plan=result.plans)
    raise AssertionError(f"still moving tasks: {result.reason}")


def some_placement_fits(seen: Problem) -> bool:
    """Try every placement, with pinned tasks where they are."""
    places = [[int(seen.current[task])] if seen.pinned[task] else range(len(seen.slot_numbers)) for task in range(seen.count)]
    return any(seen.excess(np.array(slots, dtype=np.int64)) == 0 for slots in itertools.product(*places))


@settings(max_examples=examples(30))
@given(clusters_of_workers(tasks=(2, 5), nodes=(1, 3)))
def test_multilevel_overloads_nothing_if_some_placement_fits(situation: Situation) -> None:
    seen = problem(situation)
    if len(seen.slot_numbers) > 5:
        return
    slots = resulting(situation, ask(Multilevel(), situation))
    assert seen.excess(slots) == 0 or not some_placement_fits(seen)


@settings(max_examples=examples(60))
@given(clusters_of_workers(), st.integers(0, 1000))
def test_relief_never_adds_overload_and_moves_nothing_if_all_fits(situation: Situation, seed: int) -> None:
    seen = problem(situation)
    start = np.random.default_rng(seed).integers(0, len(seen.slot_numbers), seen.count)
    start = np.where(seen.pinned, seen.current, start)
    slots = relieved(seen, start, FillLimits.of(0.9))
    assert seen.excess(slots) <= seen.excess(start) + ALMOST
    assert (slots[seen.pinned] == start[seen.pinned]).all()
    if weighed_excess(seen, start, threshold(0.9)) == 0:
        assert (slots == start).all()
