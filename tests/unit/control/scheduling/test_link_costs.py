"""Costs of links by measurements, and which node measures which."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.scheduling import link_costs
from millrace.control.scheduling.link_costs import (
    HIGHEST,
    SHORTEST,
    SIMILAR,
    STEADY,
    TRIPS_KEPT,
    LinkCosts,
    LinkValues,
    MeasuredLink,
    _costs,
)

MS = 1e-3


def measured(*links: tuple[str, str, float, float]) -> LinkCosts:
    costs = LinkCosts()
    for one, other, round_trip, bandwidth in links:
        costs.add(one, other, MeasuredLink(round_trip, bandwidth))
    return costs


def costs(links: LinkCosts) -> dict[tuple[str, str], float]:
    links.update()
    return dict(links.costs)


def test_a_cost_is_how_much_farther_a_node_is_than_the_nearest() -> None:
    links = measured(("a", "b", 0.2 * MS, 0), ("a", "c", 0.3 * MS, 0), ("c", "b", 2 * MS, 0), ("d", "a", 500 * MS, 0))
    assert costs(links) == pytest.approx({("b", "c"): 10.0, ("a", "d"): HIGHEST}), "1 is the cost of all others"


def test_round_trips_shorter_than_the_sockets_take_are_equal() -> None:
    assert not costs(measured(("a", "b", SHORTEST / 20, 0), ("a", "c", SHORTEST, 0)))


def test_a_narrow_link_costs_more() -> None:
    links = measured(("a", "b", MS, 1e9), ("a", "c", MS, 1e8), ("b", "c", MS, 0))
    assert costs(links) == {("a", "c"): 10.0}


def test_the_shortest_of_the_last_round_trips_counts() -> None:
    links = measured(("a", "b", MS, 0))
    for _ in range(TRIPS_KEPT):
        links.add("a", "c", MeasuredLink(9 * MS))
    assert costs(links)["a", "c"] == 9.0
    links.add("c", "a", MeasuredLink(MS))
    assert not costs(links)
    for _ in range(TRIPS_KEPT):
        links.add("a", "c", MeasuredLink(5 * MS))
    assert costs(links)["a", "c"] == 5.0, "the way has become longer"


@given(st.lists(st.floats(1 - STEADY / 2, 1 + STEADY / 2), min_size=1, max_size=20))
def test_a_cost_does_not_follow_noise(noise: list[float]) -> None:
    links = measured(("a", "b", MS, 0), ("a", "c", 10 * MS, 0))
    first = costs(links)["a", "c"]
    for factor in noise:
        for _ in range(TRIPS_KEPT):
            links.add("a", "c", MeasuredLink(10 * MS * factor))
        assert costs(links)["a", "c"] == first


def test_nodes_that_are_gone_are_forgotten() -> None:
    links = measured(("a", "b", MS, 1e9), ("a", "c", 10 * MS, 1e9))
    assert costs(links) == {("a", "c"): 10.0}
    links.keep(["a", "c"])
    assert set(links.links) == {("a", "c")} and not costs(links), "the only link left is the best"


class Recount:
    """Costs by their definition, found anew for all links each time."""

    def __init__(self) -> None:
        self.trips: dict[tuple[str, str], list[float]] = {}
        self.bandwidths: dict[tuple[str, str], float] = {}
        self.costs: dict[tuple[str, str], float] = {}

    def update(self) -> None:
        best = {pair: max(min(trips[-TRIPS_KEPT:]), SHORTEST) for pair, trips in self.trips.items()}
        found = {}
        for pair, trip in best.items():
            wide = self.bandwidths.get(pair)
            worse = max(trip / min(best.values()), max(self.bandwidths.values()) / wide if wide else 1.0)
            cost, before = 1.0 if worse < SIMILAR else min(worse, HIGHEST), self.costs.get(pair)
            found[pair] = before if before is not None and abs(cost - before) <= STEADY * before else cost
        self.costs = found


@given(st.integers(0, 2**32))
def test_only_what_has_changed_is_found_anew(seed: int) -> None:
    rng = random.Random(seed)
    links, recount, nodes = LinkCosts(), Recount(), set("abcde")
    for _ in range(rng.randint(1, 40)):
        for _ in range(rng.choice([0, 1, 1, 5])):
            one, other = sorted(rng.sample("abcde", 2))
            trip, bandwidth = rng.choice([0.05, 0.3, 0.3, 0.5, 1, 4, 90]) * MS, rng.choice([0, 0, 1e7, 1e8, 1e9])
            links.add(one, other, MeasuredLink(trip, bandwidth))
            recount.trips.setdefault((one, other), []).append(trip)
            recount.bandwidths.update({(one, other): bandwidth} if bandwidth else {})
        if rng.random() < 0.1:
            nodes = set(rng.sample("abcde", 3))
            links.keep(nodes)
            for known in (recount.trips, recount.bandwidths, recount.costs):
                for pair in [pair for pair in known if not nodes.issuperset(pair)]:
                    del known[pair]
        before = dict(links.costs)
        changed = links.update()
        recount.update()
        assert links.costs == {pair: cost for pair, cost in recount.costs.items() if cost != 1.0}
        assert changed == (links.costs != before)


def test_links_that_were_not_measured_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    links = measured(*(("hub", f"n{number}", MS * (1 + number), 0) for number in range(20)))
    assert links.update()
    rated: list[list[float]] = []

    def noted(round_trips: LinkValues, *others: Any) -> LinkValues:
        rated.append(round_trips.tolist())
        return _costs(round_trips, *others)

    monkeypatch.setattr(link_costs, "_costs", noted)
    links.update()
    links.add("n9", "hub", MeasuredLink(2 * MS))
    links.update()
    links.add("n9", "hub", MeasuredLink(MS / 2))
    links.update()
    assert rated[:2] == [[], [2 * MS]] and len(rated[2]) == 20, "all of them once the best link has changed"


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=2, max_size=12))
def test_every_node_measures_all_others_in_turn(names: set[str]) -> None:
    links, nodes = LinkCosts(), tuple(sorted(names))
    for node in nodes:
        assert {links.next_target(node, nodes) for _ in range(len(nodes) - 1)} == names - {node}


def test_who_has_nobody_to_measure() -> None:
    links = LinkCosts()
    assert links.next_target("a", ("a",)) is None and links.next_target("a", ("b", "c")) is None
    assert links.next_target("a", ()) is None
