"""A topology as a network of queues: rates along the edges, and E[T] against a simulation of the whole network."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import simpy

from millrace.elastic.network import Network, Station


def test_rates_follow_the_edges() -> None:
    """Two spouts, a bolt that reads both, and one that reads the bolt on two streams and a spout."""
    network = Network(tuple(Station(name, 1, 100.0) for name in ("a", "b", "both", "end")),
                      {("a", "both"): 1.0, ("b", "both"): 0.5, ("both", "end"): 3.0, ("b", "end"): 1.0}, {"a": 10.0, "b": 20.0})
    assert network.rates() == {"a": 10.0, "b": 20.0, "both": 20.0, "end": 80.0}
    assert network.external_rate == 30.0
    assert network.scaled(2).rates() == {"a": 20.0, "b": 40.0, "both": 40.0, "end": 160.0}


def test_a_station_that_cannot_keep_up_takes_forever() -> None:
    network = Network((Station("a", 1, 100.0), Station("b", 2, 5.0)), {("a", "b"): 1.0}, {"a": 10.0})
    assert network.times(network.present)["b"] == math.inf == network.latency(network.present)
    assert network.latency({"a": 1, "b": 3}) < math.inf


def test_a_station_that_gets_nothing_counts_nothing() -> None:
    network = Network((Station("a", 1), Station("b", 1, 5.0)), {("a", "b"): 0.0}, {"a": 10.0})
    assert network.latency(network.present) == 0.0
    assert network.under({}).latency(network.present) == 0.0


def test_corrections_change_the_waiting_time_only() -> None:
    station = Station("a", 1, 10.0)
    wait = station.wait(5.0, 1)
    assert station.corrected(wait) == pytest.approx(1 / 10 + wait)
    assert Station("a", 1, 10.0, overhead=0.5, factor=2.0).corrected(wait) == pytest.approx(1 / 10 + 0.5 + 2 * wait)


def test_a_simulated_network_takes_as_long() -> None:
    """A line of three stations, the second of which emits two tuples for each. E[T] adds up the times of all tuples that come
    of an offered one."""
    chance, environment = random.Random(3), simpy.Environment()
    network = Network((Station("a", 2, 8.0), Station("b", 3, 5.0), Station("c", 6, 4.5)),
                      {("a", "b"): 1.0, ("b", "c"): 2.0}, {"a": 10.0})
    resources = {station.name: simpy.Resource(environment, station.tasks) for station in network.stations}
    spent, offered = [0.0], 40_000

    def visit(name: str) -> Iterator[object]:
        came = environment.now
        with resources[name].request() as turn:
            yield turn
            yield environment.timeout(chance.expovariate(next(each.service_rate for each in network.stations
                                                              if each.name == name)))
        spent[0] += environment.now - came
        for (source, target), copies in network.edges.items():
            if source == name:
                for _ in range(int(copies)):
                    environment.process(visit(target))

    def arrivals() -> Iterator[object]:
        for _ in range(offered):
            yield environment.timeout(chance.expovariate(10.0))
            environment.process(visit("a"))

    environment.process(arrivals())
    environment.run()
    assert network.latency(network.present) == pytest.approx(spent[0] / offered, rel=0.15)  # c gets its tuples in pairs


def test_tasks_that_are_chosen_by_key_have_a_queue_each() -> None:
    """M/M/1 with a share of the tuples: ρ/(μ − λ/c)."""
    own, shared = (Station("b", 1, 40.0, shared_queue=shared_queue) for shared_queue in (False, True))
    for tasks in (5, 6, 9):
        each = 180.0 / tasks
        assert own.wait(180.0, tasks) == pytest.approx(each / 40.0 / (40.0 - each))
        assert own.wait(180.0, tasks) > shared.wait(180.0, tasks)
    assert own.wait(180.0, 4) == math.inf and own.wait(0.0, 1) == 0.0
    assert own.wait(30.0, 1) == pytest.approx(shared.wait(30.0, 1))
