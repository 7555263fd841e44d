"""Overload that lasts, told apart from noise around the packing limit."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from millrace.control.scheduling.overload import LASTING, OverloadWatch, lasts, overloads, place_loads, places_of_nodes
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad

CLUSTER = Cluster((Node("n0", 4, 1000.0, 4096),), (Slot("n0", "e", 0), Slot("n0", "e", 1)))


def sample(worker: float = 0.0, busy: float = 0.0, node: float = 0.0) -> WindowSample:
    return WindowSample(0.0, 1.0, {}, {}, {0: WorkerLoad("n0", worker, busy=busy)}, {"n0": NodeLoad(node)})


def test_a_worker_that_waits_is_as_full_as_one_that_computes() -> None:
    for seen in (sample(worker=960.0), sample(worker=5.0, busy=0.96)):
        shares = {place.where: place.share for place in place_loads(seen, CLUSTER)}
        assert shares == {"node n0": 0.0, "memory of node n0": 0.0, "worker 0": 0.96, "worker 1": 0.0}


def test_an_overload_is_described() -> None:
    assert list(overloads(sample(1200.0, node=4000.0), CLUSTER, 0.9)) == [
        "node n0 uses 4,000 of 4,000 MHz", "worker 0 uses 1,200 of the 1,000 MHz of a core"]
    assert list(overloads(sample(100.0, 0.95), CLUSTER, 0.9)) == ["the loop of worker 0 was busy for 95% of the time"]
    assert not list(overloads(sample(), Cluster((Node("n0", 4, 0.0, 1),), (Slot("n0", "e", 0),)), 0.0))


def test_nodes_with_the_same_cores_are_overloaded_only_together() -> None:
    """Two cores, divided among four executors that count as nodes."""
    nodes = tuple(Node(f"n{number}", 0.5, 1000.0, 4096, machine="host" if number < 4 else "") for number in range(5))
    shared = Cluster(nodes, tuple(Slot(node.name, "e", number) for number, node in enumerate(nodes)))

    def loads(*mhz: float) -> dict[str, float]:
        seen = WindowSample(0.0, 1.0, {}, {}, {}, {f"n{number}": NodeLoad(used) for number, used in enumerate(mhz)})
        return {place.where: place.share for place in place_loads(seen, shared) if place.where.startswith("node")}

    assert loads(830.0, 100.0, 0.0, 70.0, 480.0) == {"node n0 with n1 with n2 with n3": 0.5, "node n4": 0.96}
    assert list(overloads(WindowSample(0.0, 1.0, {}, {}, {}, {"n1": NodeLoad(2000.0)}), shared, 0.9)) == [
        "node n0 with n1 with n2 with n3 uses 2,000 of 2,000 MHz"]
    assert next(place_loads(sample(), shared)).slots == (0, 1, 2, 3)
    assert places_of_nodes(shared) == {**{f"n{number}": "node n0 with n1 with n2 with n3" for number in range(4)},
                                       "n4": "node n4"}


def test_overload_counts_once_it_lasts_and_until_it_is_over() -> None:
    watch = OverloadWatch()
    for number in range(LASTING):
        assert not watch.lasting(0.95), f"after {number} windows"
        watch.add(sample(busy=0.99), CLUSTER)
    assert [place.where for place in watch.lasting(0.95)] == ["worker 0"]
    watch.add(sample(busy=0.5), CLUSTER)
    assert not watch.lasting(0.95)


def test_a_sudden_overload_counts_as_soon_as_one_from_the_start() -> None:
    assert not lasts([0.3] * 7 + [1.0] * 2, 0.95)
    assert lasts([0.3] * 7 + [1.0] * 3, 0.95)
    assert not lasts([1.0] * 7 + [0.3], 0.95), "it is over"


def test_a_place_filled_to_its_packing_limit_is_not_overloaded_by_noise() -> None:
    rng = random.Random(3)
    for _ in range(300):
        assert not lasts([rng.gauss(0.9, 0.09) for _ in range(10)], 0.95)


def test_a_full_place_is_overloaded_although_noise_has_no_room_above_it() -> None:
    noisy = [1.0, 0.93, 1.0, 0.91, 1.0, 0.94, 1.0, 0.92, 1.0, 0.95]
    assert not lasts(noisy, 0.95), "half of the windows are not full"
    full = [1.0, 0.93, 1.0, 1.0, 0.92, 1.0, 1.0, 0.9, 1.0, 0.95]
    assert lasts(full, 0.95) and not lasts(full[1:], 0.95), "it has lasted for all windows"
    assert not lasts([min(share, 0.98) for share in full], 0.95)
    assert lasts([1.0] * 10, 1.0), "a threshold of a whole core can be reached"


@given(st.lists(st.floats(0, 0.949), max_size=10))
def test_a_load_below_the_threshold_is_no_overload(shares: list[float]) -> None:
    assert not lasts(shares, 0.95)


@given(st.lists(st.floats(0.98, 0.99), min_size=2 * LASTING, max_size=10))
def test_a_steady_load_above_it_is_one(shares: list[float]) -> None:
    assert lasts(shares, 0.95)
