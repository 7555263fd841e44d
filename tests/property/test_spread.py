"""Workers are spread over hosts, then over the executors of a host, as evenly as the free cores allow."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.spark.cluster.placement import Executor
from millrace.spark.cluster.spread import spread
from support.examples import examples

SIZES = st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 3))  # host, cores, running tasks


@st.composite
def clusters(draw: st.DrawFn) -> list[Executor]:
    return [Executor(str(number), *size) for number, size in enumerate(draw(st.lists(SIZES, max_size=8)))]


@settings(max_examples=examples(200))
@given(clusters(), st.integers(0, 24), st.integers(1, 2))
def test_it_is_as_even_as_the_free_cores_allow(executors: list[Executor], slots: int, cpus: int) -> None:
    places = spread(slots, executors, cpus)
    room = {executor.id: max(0, executor.cores // cpus - executor.busy) for executor in executors}
    hosts = {executor.id: executor.host for executor in executors}
    used = Counter(place.id for place in places if place is not None)
    on_host = Counter({host: 0 for host in hosts.values()}) + Counter(place.host for place in places if place is not None)
    free_on = Counter({host: sum(room[one] - used[one] for one in hosts if hosts[one] == host) for host in set(hosts.values())})
    assert len(places) == slots and sum(used.values()) == min(slots, sum(room.values())), "none waits while a core is free"
    assert all(used[one] <= room[one] for one in room)
    for host in free_on:
        for other in free_on:
            assert on_host[host] - on_host[other] <= 1 or free_on[other] == 0, "a host has two more than one with a free core"
    for one in hosts:
        for other in hosts:
            if hosts[one] == hosts[other]:
                assert used[one] - used[other] <= 1 or used[other] == room[other]


@settings(max_examples=examples(100))
@given(clusters(), st.integers(1, 24))
def test_one_more_worker_moves_no_other(executors: list[Executor], slots: int) -> None:
    assert spread(slots, executors)[:-1] == spread(slots - 1, executors)
