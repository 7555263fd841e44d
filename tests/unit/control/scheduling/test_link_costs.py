"""Costs of links by measurements, and which node measures which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.scheduling.link_costs import HIGHEST, SHORTEST, STEADY, TRIPS_KEPT, LinkCosts, MeasuredLink

MS = 1e-3


def measured(*links: tuple[str, str, float, float]) -> LinkCosts:
    costs = LinkCosts()
    for one, other, round_trip, bandwidth in links:
        costs.add(one, other, MeasuredLink(round_trip, bandwidth))
    return costs


def test_a_cost_is_how_much_farther_a_node_is_than_the_nearest() -> None:
    links = measured(("a", "b", 0.2 * MS, 0), ("a", "c", 0.3 * MS, 0), ("c", "b", 2 * MS, 0), ("d", "a", 500 * MS, 0))
    assert links.costs() == pytest.approx({("a", "b"): 1.0, ("a", "c"): 1.0, ("b", "c"): 10.0, ("a", "d"): HIGHEST})


def test_round_trips_shorter_than_the_sockets_take_are_equal() -> None:
    assert measured(("a", "b", SHORTEST / 20, 0), ("a", "c", SHORTEST, 0)).costs() == {("a", "b"): 1.0, ("a", "c"): 1.0}


def test_a_narrow_link_costs_more() -> None:
    links = measured(("a", "b", MS, 1e9), ("a", "c", MS, 1e8), ("b", "c", MS, 0))
    assert links.costs() == {("a", "b"): 1.0, ("a", "c"): 10.0, ("b", "c"): 1.0}


def test_the_shortest_of_the_last_round_trips_counts() -> None:
    links = measured(("a", "b", MS, 0))
    for _ in range(TRIPS_KEPT):
        links.add("a", "c", MeasuredLink(9 * MS))
    assert links.costs()["a", "c"] == 9.0
    links.add("c", "a", MeasuredLink(MS))
    assert links.costs()["a", "c"] == 1.0
    for _ in range(TRIPS_KEPT):
        links.add("a", "c", MeasuredLink(5 * MS))
    assert links.costs()["a", "c"] == 5.0, "the way has become longer"


@given(st.lists(st.floats(1 - STEADY / 2, 1 + STEADY / 2), min_size=1, max_size=20))
def test_a_cost_does_not_follow_noise(noise: list[float]) -> None:
    links = measured(("a", "b", MS, 0), ("a", "c", 10 * MS, 0))
    first = links.costs()["a", "c"]
    for factor in noise:
        for _ in range(TRIPS_KEPT):
            links.add("a", "c", MeasuredLink(10 * MS * factor))
        assert links.costs()["a", "c"] == first


def test_nodes_that_are_gone_are_forgotten() -> None:
    links = measured(("a", "b", MS, 1e9), ("a", "c", 10 * MS, 1e9))
    links.costs()
    links.keep(["a", "c"])
    assert set(links.links) == set(links.costs()) == {("a", "c")}


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=2, max_size=12))
def test_every_node_measures_all_others_in_turn(names: set[str]) -> None:
    links, nodes = LinkCosts(), tuple(sorted(names))
    for node in nodes:
        assert {links.next_target(node, nodes) for _ in range(len(nodes) - 1)} == names - {node}


def test_who_has_nobody_to_measure() -> None:
    links = LinkCosts()
    assert links.next_target("a", ("a",)) is None and links.next_target("a", ("b", "c")) is None
    assert links.next_target("a", ()) is None
