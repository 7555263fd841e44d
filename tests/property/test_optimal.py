"""Optimal against all placements that there are, on situations made at random."""

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


def problem(given: Situation) -> Problem:
    return Problem.of(given.graphs, given.cluster, given.load, given.plan)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Some on equal nodes, some with less CPU than is needed."""
    found = random_situation(np.random.default_rng(draw(st.integers(0, 10_000))), tasks=(2, 6), nodes=(1, 3))
    nodes = found.cluster.nodes
    if draw(st.booleans()):
        mean = sum(node.mhz for node in nodes) / len(nodes)
        nodes = tuple(dataclasses.replace(node, mhz=mean) for node in nodes)
    shrunk = draw(st.sampled_from([1.0, 1.0, 0.8]))
    nodes = tuple(dataclasses.replace(node, mhz=node.mhz * shrunk) for node in nodes)
    return dataclasses.replace(found, cluster=dataclasses.replace(found.cluster, nodes=nodes))


def brute_force(given: Problem) -> float | None:
    first = [int(np.flatnonzero(given.slot_node == node)[0]) for node in range(given.nodes)]
    every = (np.array(slots) for slots in itertools.product(first, repeat=given.count))
    return min((given.inter_node(slots) for slots in every if fits(given, slots)), default=None)


@settings(max_examples=examples(60))
@given(situations())
def test_it_equals_the_best_of_all_placements(given: Situation) -> None:
    seen = problem(given)
    expected, found = brute_force(seen), least_traffic(seen)
    if expected is None:
        assert found.assignment is None and np.isinf(found.bound)
        return
    assert found.proven and found.assignment is not None and fits(seen, found.assignment)
    assert found.value == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=examples(40))
@given(situations())
def test_asked_again_it_has_nothing_to_change(given: Situation) -> None:
    result = Optimal().schedule(given.graphs, given.cluster, given.load, given.plan)
    assert not isinstance(result, CannotPlace)
    if isinstance(result, NewPlan):
        again = Optimal().schedule(given.graphs, given.cluster, given.load, result.plans)
        assert isinstance(again, NoChange), again
