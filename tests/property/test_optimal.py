"""Optimal against all possible placements, on random situations."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange
from millrace.schedulers.instances import random_situation
from millrace.schedulers.optimal import Optimal, fits, least_traffic
from millrace.schedulers.problem import Problem
from support.examples import examples


def problem(situation: Situation) -> Problem:
    return Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Draw a situation; some have equal nodes, some less CPU than needed."""
    situation = random_situation(np.random.default_rng(draw(st.integers(0, 10_000))), tasks=(2, 6), nodes=(1, 3))
    nodes = situation.cluster.nodes
    if draw(st.booleans()):
        mean = sum(node.mhz for node in nodes) / len(nodes)
        nodes = tuple(dataclasses.replace(node, mhz=mean) for node in nodes)
    shrunk = draw(st.sampled_from([1.0, 1.0, 0.8]))
    nodes = tuple(dataclasses.replace(node, mhz=node.mhz * shrunk) for node in nodes)
    return dataclasses.replace(situation, cluster=dataclasses.replace(situation.cluster, nodes=nodes))


def brute_force(instance: Problem) -> float | None:
    first = [int(np.flatnonzero(instance.slot_node == node)[0]) for node in range(instance.nodes)]
    every = (np.array(slots) for slots in itertools.product(first, repeat=instance.count))
    return min((instance.inter_node(slots) for slots in every if fits(instance, slots)), default=None)


@settings(max_examples=examples(60))
@given(situations())
def test_it_equals_the_best_of_all_placements(situation: Situation) -> None:
    seen = problem(situation)
    expected, result = brute_force(seen), least_traffic(seen)
    if expected is None:
        assert result.assignment is None and np.isinf(result.bound)
        return
    assert result.proven and result.assignment is not None and fits(seen, result.assignment)
    assert result.value == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=examples(40))
@given(situations())
def test_asked_again_it_has_nothing_to_change(situation: Situation) -> None:
    """Or once more, where the first plan only relieved an overload."""
    result = Optimal().schedule(situation.graphs, situation.cluster, situation.load, situation.plan)
    assert not isinstance(result, CannotPlace)
    for _ in range(2):
        if isinstance(result, NewPlan):
            result = Optimal().schedule(situation.graphs, situation.cluster, situation.load, result.plans)
    assert isinstance(result, NoChange), result
