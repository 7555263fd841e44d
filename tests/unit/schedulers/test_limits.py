"""Limits and objectives that hold for all schedulers that place tasks by their load, on generated situations."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from situations import after, ask

from millrace.model.situation import Situation
from millrace.schedulers.base import Scheduler
from millrace.schedulers.erstream import ErStream
from millrace.schedulers.instances import random_situation
from millrace.schedulers.online import Online
from millrace.schedulers.optimal import Optimal, fits, least_traffic
from millrace.schedulers.problem import MINIMISED, Problem
from millrace.schedulers.tstorm import TStorm
from support.examples import examples

PLANNERS: tuple[tuple[type[Any], dict[str, Any]], ...] = (
    (TStorm, {}), (TStorm, {"improve": True}), (Online, {}), (ErStream, {}), (Optimal, {}))
EPS = 1 + 1e-6


@st.composite
def measured(draw: st.DrawFn, tasks: tuple[int, int] = (2, 8), loops: bool = True) -> Situation:
    """Situations that some placement fits, with sizes of tuples, links, waiting tasks, and spouts that may be fixed."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    situation = random_situation(rng, tasks=tasks, nodes=(2, 3), topologies=(1, 2))
    loads = {}
    for name, load in situation.load.items():
        sizes = {pair: float(sent * rng.uniform(10, 1000)) for pair, sent in load.traffic.items() if rng.random() < 0.9}
        share = 0.9 / sum(len(graph.tasks()) for graph in situation.graphs) if loops else 0.0  # all fit in one loop
        busy = {task: replace(each, busy_seconds=share * rng.random() * load.window_seconds)
                for task, each in load.tasks.items()}
        loads[name] = replace(load, tasks=busy, traffic_bytes=sizes)
    names = [node.name for node in situation.cluster.nodes]
    links = {pair: float(rng.uniform(0.1, 3)) for pair in itertools.combinations(names, 2) if rng.random() < 0.6}
    graphs = situation.graphs
    if draw(st.integers(0, 2)) == 0:
        graphs = tuple(replace(graph, components=(replace(graph.components[0], movable=False), *graph.components[1:]))
                       for graph in graphs)
    return Situation(graphs, replace(situation.cluster, links=links), loads, situation.plan)


def problem_of(situation: Situation, scheduler: Any) -> Problem:
    problem: Problem = scheduler.problem(situation.graphs, situation.cluster, situation.load, situation.plan)
    return problem


def result_of(situation: Situation, scheduler: Scheduler) -> np.ndarray:
    """The assignment after the scheduler's plan is carried out."""
    changed = after(situation, ask(scheduler, situation))
    return Problem.of(changed.graphs, changed.cluster, changed.load, changed.plan).current


objectives = st.tuples(st.sampled_from(MINIMISED), st.sampled_from([0.0, 0.0, 0.3]))


@settings(max_examples=examples(25))
@given(measured(tasks=(2, 5)), objectives)
def test_optimal_is_the_best_of_all_placements(situation: Situation, objective: tuple[str, float]) -> None:
    scheduler = Optimal(minimise=objective[0], between_workers=objective[1])
    problem = problem_of(situation, scheduler)
    choices = [[slot] if pinned else range(len(problem.slot_numbers)) for slot, pinned in zip(problem.current, problem.pinned)]
    if np.prod([len(each) for each in choices]) > 4000:
        return
    every = (np.array(slots) for slots in itertools.product(*choices))
    expected = min((problem.cost(slots) for slots in every if fits(problem, slots)), default=None)
    least = least_traffic(problem)
    if expected is None:
        assert least.assignment is None
        return
    assert least.assignment is not None and fits(problem, least.assignment)
    assert least.value == pytest.approx(expected, rel=1e-5, abs=1e-4) == problem.cost(least.assignment)


@settings(max_examples=examples(25))
@given(measured(), objectives)
def test_no_scheduler_is_cheaper_than_optimal_or_moves_a_pinned_task(situation: Situation,
                                                                     objective: tuple[str, float]) -> None:
    values = {"minimise": objective[0], "between_workers": objective[1]}
    problem = problem_of(situation, Optimal(**values))
    least = least_traffic(problem)
    for planner, parameters in PLANNERS:
        assignment = result_of(situation, planner(**parameters, **values))
        assert (assignment == problem.current)[problem.pinned].all(), planner
        if least.proven and fits(problem, assignment):
            assert problem.cost(assignment) * EPS + 1e-3 >= least.value, planner


@settings(max_examples=examples(40))
@given(measured(tasks=(4, 12)))
def test_nothing_is_overloaded_where_the_plan_in_force_overloads_nothing(situation: Situation) -> None:
    for planner, parameters in PLANNERS:
        scheduler = planner(**parameters)
        problem = problem_of(situation, scheduler)
        if fits(problem, problem.current):
            assert fits(problem, result_of(situation, scheduler)), planner


@settings(max_examples=examples(60))
@given(st.integers(0, 100_000))
def test_nothing_is_overloaded_where_the_optimum_overloads_nothing(seed: int) -> None:
    situation = random_situation(np.random.default_rng(seed))
    for planner, parameters in PLANNERS[:-1]:
        scheduler = planner(**parameters)
        problem = problem_of(situation, scheduler)
        assert fits(problem, result_of(situation, scheduler)), planner
