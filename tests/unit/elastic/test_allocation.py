"""Er-Stream's Algorithm 1: the paper's allocations, refusals, and the greedy choice against all possible ones."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.elastic.allocation import Allocation, Infeasible, Limits, allocate, fewest_tasks, missed_goal
from millrace.elastic.network import Network, Station
from support.examples import examples


def line(offered: float, *stations: tuple[str, int, float], **more: float) -> Network:
    """Components in a line: (name, tasks, ms per tuple), and `more`: selectivity into a component, 1 by default."""
    made = tuple(Station(name, tasks, 1000 / ms) for name, tasks, ms in stations)
    names = [station.name for station in made]
    return Network(made, {(source, target): more.get(target, 1.0) for source, target in pairwise(names)},
                   {names[0]: offered})


def test_word_count_with_15_instances_as_in_the_paper() -> None:
    """(3, 4, 8) becomes (3, 7, 5) at 200 lines of 5 words a second, which lowers the latency by more than a quarter."""
    network = line(200, ("spout", 3, 5.0), ("split", 4, 16.0), ("count", 8, 2.0), count=5.0)
    found = allocate(network, Limits(c_max=15))
    assert isinstance(found, Allocation)
    assert found.par == {"spout": 3, "split": 7, "count": 5} and found.instances == 15
    assert found.predicted_ms == pytest.approx(network.latency(found.par) * 1000)
    assert found.predicted_ms / (network.latency(network.present) * 1000) == pytest.approx(0.73, abs=0.01)
    assert found.reason == "least latency with 15 of 15 instances"


def test_word_count_with_20_ms_as_in_the_paper() -> None:
    """(2, 7, 6) becomes (2, 5, 4), 26.6 % fewer instances, from (2, 3, 1), the fewest that keep up. Its spout is not scaled."""
    network = Network((Station("spout", 2, 440.0, least=2, most=2), Station("split", 7, 85.85), Station("count", 6, 898.0)),
                      {("spout", "split"): 1.0, ("split", "count"): 5.0}, {"spout": 176.0})
    rates = network.rates()
    assert [fewest_tasks(station, rates[station.name]) for station in network.stations] == [2, 3, 1]
    found = allocate(network, Limits(t_max_ms=20))
    assert isinstance(found, Allocation) and found.par == {"spout": 2, "split": 5, "count": 4}
    assert 1 - found.instances / sum(network.present.values()) == pytest.approx(0.266, abs=0.001)
    assert found.predicted_ms is not None and found.predicted_ms <= 20
    assert found.reason == "11 instances are the fewest for 20 ms"


def test_too_few_instances_are_refused_with_the_number_needed() -> None:
    network = line(200, ("spout", 3, 8.0), ("split", 4, 16.0), ("count", 8, 4.0))
    found = allocate(network, Limits(c_max=6))
    assert isinstance(found, Infeasible) and found.nearest == {"c_max": 7}
    assert found.reason == ("7 instances are the fewest that keep up with 200.0 tuples/s (spout=2, split=4, count=1), and "
                            "c_max is 6")
    assert isinstance(allocate(network, Limits(c_max=7)), Allocation)


def test_a_latency_that_is_not_possible_is_refused_with_the_bound() -> None:
    network = line(200, ("spout", 3, 8.0), ("split", 4, 16.0))
    found = allocate(network, Limits(t_max_ms=23))
    assert isinstance(found, Infeasible)
    assert found.nearest["t_max_ms"] == pytest.approx(24, abs=0.002)  # 8 + 16 ms of service
    assert "t_max_ms = 23 is below the least possible latency of 24" in found.reason
    assert isinstance(allocate(network, Limits(t_max_ms=found.nearest["t_max_ms"])), Allocation)


def test_a_latency_within_a_number_of_instances() -> None:
    network = line(200, ("spout", 3, 8.0), ("split", 4, 16.0))
    found = allocate(network, Limits(t_max_ms=24.5))
    assert isinstance(found, Allocation)
    assert allocate(network, Limits(t_max_ms=24.5, c_max=found.instances)) == found
    refused = allocate(network, Limits(t_max_ms=24.5, c_max=found.instances - 1))
    assert isinstance(refused, Infeasible) and refused.nearest["c_max"] == found.instances
    with_one_fewer = allocate(network, Limits(c_max=found.instances - 1))
    assert isinstance(with_one_fewer, Allocation) and with_one_fewer.predicted_ms is not None
    assert refused.nearest["t_max_ms"] == pytest.approx(with_one_fewer.predicted_ms, abs=0.002)
    assert isinstance(allocate(network, Limits(int(refused.nearest["c_max"]), 24.5)), Allocation)


@pytest.mark.parametrize(("station", "words"), [
    (Station("b", 2, 10.0, least=2, most=2), "'b' cannot be scaled and has 2 tasks, and 6 are the fewest that keep up with its "
                                             "50.0 tuples/s: one task processes 10.0, so that it carries less than 20.0, and "
                                             "the topology less than 10.0"),
    (Station("b", 2, 10.0, most=5), "'b' can have at most 5 tasks, and 6 are the fewest that keep up with its 50.0 tuples/s: "
                                    "one task processes 10.0, so that it carries less than 50.0, and the topology less than "
                                    "25.0")])
def test_a_component_with_too_few_possible_tasks_is_named(station: Station, words: str) -> None:
    found = allocate(Network((Station("a", 1), station), {("a", "b"): 2.0}, {"a": 25.0}), Limits(c_max=50))
    assert found == Infeasible(words)


def test_bounds_are_kept() -> None:
    network = Network((Station("a", 3, least=3, most=3), Station("b", 1, 10.0, most=6), Station("c", 1, 10.0)),
                      {("a", "b"): 1.0, ("b", "c"): 1.0}, {"a": 50.0})
    found = allocate(network, Limits(c_max=1000))
    assert isinstance(found, Allocation) and found.par["a"] == 3 and found.par["b"] == 6
    assert found.instances < 1000, "a further task of c gains nothing"


def test_a_goal_that_is_missed_is_said_in_words() -> None:
    network = line(200, ("spout", 3, 8.0), ("split", 3, 16.0))
    assert missed_goal(network, network.present, Limits(c_max=9)) == "split cannot keep up with 200.0 tuples/s"
    assert missed_goal(network, {"spout": 9, "split": 9}, Limits(c_max=17)) == "there are 18 instances, above 17"
    assert missed_goal(network, {"spout": 2, "split": 4}, Limits(t_max_ms=30)) == (
        "the latency with spout=2, split=4 is predicted to be 50.2 ms, above 30")
    assert missed_goal(network, {"spout": 9, "split": 9}, Limits(t_max_ms=30)) == ""


stations = st.lists(st.tuples(st.floats(0.5, 40.0), st.floats(0.2, 3.0), st.integers(0, 3)), min_size=1, max_size=3)


def network_of(made: list[tuple[float, float, int]], offered: float) -> Network:
    """From ms per tuple, selectivity, and a bound of one to three tasks more than needed; 0: none."""
    names = [f"c{number}" for number in range(len(made))]
    plain = Network(tuple(Station(name, 1, 1000 / ms) for name, (ms, _, _) in zip(names, made)),
                    {(source, target): made[number + 1][1] for number, (source, target) in enumerate(pairwise(names))},
                    {names[0]: offered})
    rates = plain.rates()
    bounded = tuple(Station(station.name, 1, station.service_rate, most=fewest_tasks(station, rates[station.name]) + bound)
                    if bound else station for station, (_, _, bound) in zip(plain.stations, made))
    return Network(bounded, plain.edges, plain.offered)


def all_allocations(network: Network, further: int) -> list[dict[str, int]]:
    """All numbers of tasks with at most so many more than the fewest."""
    rates = network.rates()
    fewest = {station.name: fewest_tasks(station, rates[station.name]) for station in network.stations}
    found = []
    for more in product(range(further + 1), repeat=len(fewest)):
        par = {name: tasks + extra for (name, tasks), extra in zip(fewest.items(), more)}
        if sum(more) <= further and all(par[station.name] <= station.most for station in network.stations):
            found.append(par)
    return found


@settings(max_examples=examples(60))
@given(stations, st.floats(1.0, 200.0), st.integers(0, 6))
def test_no_other_allocation_of_as_many_instances_is_faster(made: list[tuple[float, float, int]], offered: float,
                                                            further: int) -> None:
    network = network_of(made, offered)
    rates = network.rates()
    fewest = sum(fewest_tasks(station, rates[station.name]) for station in network.stations)
    found = allocate(network, Limits(c_max=fewest + further))
    assert isinstance(found, Allocation) and found.instances <= fewest + further
    best = min(network.latency(par) for par in all_allocations(network, further))
    assert network.latency(found.par) == pytest.approx(best, rel=1e-6)
    assert all(fewest_tasks(station, rates[station.name]) <= found.par[station.name] <= station.most
               for station in network.stations)


@settings(max_examples=examples(60))
@given(stations, st.floats(1.0, 200.0), st.floats(1.0, 3.0))
def test_no_fewer_instances_reach_the_latency(made: list[tuple[float, float, int]], offered: float, slack: float) -> None:
    network = network_of(made, offered)
    bound = allocate(network, Limits(t_max_ms=1e-6))
    assert isinstance(bound, Infeasible)
    t_max = bound.nearest["t_max_ms"] * slack
    found = allocate(network, Limits(t_max_ms=t_max))
    assert isinstance(found, Allocation) and network.latency(found.par) * 1000 <= t_max * (1 + 1e-9)
    rates = network.rates()
    further = found.instances - sum(fewest_tasks(station, rates[station.name]) for station in network.stations)
    if 0 < further <= 6:
        assert all(network.latency(par) * 1000 > t_max * (1 - 1e-6) for par in all_allocations(network, further - 1))


@given(stations, st.floats(1.0, 100.0), st.floats(1.0, 3.0), st.floats(1.2, 3.0))
def test_more_load_never_needs_fewer_instances(made: list[tuple[float, float, int]], offered: float, growth: float,
                                               slack: float) -> None:
    network = network_of([(ms, selectivity, 0) for ms, selectivity, _ in made], offered)
    bound = allocate(network.scaled(growth), Limits(t_max_ms=1e-6))
    assert isinstance(bound, Infeasible)
    limits = Limits(t_max_ms=bound.nearest["t_max_ms"] * slack)
    less, more = allocate(network, limits), allocate(network.scaled(growth), limits)
    assert isinstance(less, Allocation) and isinstance(more, Allocation) and less.instances <= more.instances


def test_thousands_of_instances() -> None:
    network = line(1_000_000, ("spout", 1, 0.5), ("split", 1, 1.0), ("count", 1, 4.0))
    found = allocate(network, Limits(t_max_ms=5.51))
    assert isinstance(found, Allocation) and 5500 < found.instances < 6000
