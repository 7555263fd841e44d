"""Rates, limits, backlog and latency of a placement, on cases that can be computed by hand, and against the queueing model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.elastic.network import Network, Station
from millrace.errors import BadSituation
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ACKER, ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.instances import SHAPES, random_situation
from millrace.schedulers.problem import Problem
from millrace.simulation.demand import Demand, Patterned, Walk
from millrace.simulation.flow import LinkModel, WindowFlow, flow
from millrace.simulation.world import Machines, World

SPOUT, LEFT, RIGHT = TaskId("s", 0), TaskId("b", 0), TaskId("b", 1)
NO_HOPS = LinkModel(0.0, 0.0)


def situation(busy: float = 0.0, mhz: float = 1000.0, acker: bool = False) -> Situation:
    """A spout that sends 100 tuples/s, 60 to one bolt and 40 to the other, which use 2 MHz for a tuple per second."""
    components = (ComponentDef("s", "spout", "m:C", 1, {}, (), (), False, "next_tuple"),
                  ComponentDef("b", "bolt", "m:C", 2, {}, (), (Input("s", "default", Grouping.fields("k")),), False, "process"))
    acks = {(LEFT, TaskId(ACKER, 0)): 600.0, (TaskId(ACKER, 0), SPOUT): 600.0} if acker else {}
    return Situation(
        (TopologyGraph("t", components, {}, int(acker)),),
        Cluster((Node("n0", 2, mhz, 1000), Node("n1", 2, mhz, 1000)),
                (Slot("n0", "e", 0), Slot("n0", "e", 1), Slot("n1", "e", 2))),
        {"t": Load(10.0, {SPOUT: TaskLoad(emitted=1000, offered=1000), LEFT: TaskLoad(cpu_mhz=120.0, busy_seconds=busy * 10),
                          RIGHT: TaskLoad(cpu_mhz=80.0, busy_seconds=busy * 10)},
                   {(SPOUT, LEFT): 600.0, (SPOUT, RIGHT): 400.0, **acks})},
        {"t": Plan(1, {SPOUT: 0, LEFT: 0, RIGHT: 0})})


def flowing(case: Situation, slots: list[int], factor: float = 1.0, waiting: float = 0.0, seconds: float = 10.0,
            links: LinkModel = NO_HOPS) -> WindowFlow:
    world = World.of(case)
    rate = world.rates(world.base_rate * factor, world.selectivity)
    return flow(world, Machines.of(case.cluster), links, Demand(rate, rate[world.source] * world.selectivity),
                np.array(slots), np.array([waiting]), seconds)


def test_traffic_and_loads_of_a_placement() -> None:
    seen = flowing(situation(), [0, 1, 2])
    assert (seen.inter_node, seen.inter_process, seen.nodes_used) == (40.0, 60.0, 2)
    assert seen.slot_cpu.tolist() == [0.0, 120.0, 80.0] and seen.node_cpu.tolist() == [120.0, 80.0]
    assert seen.share.tolist() == [1.0] and seen.waiting.tolist() == [0.0] and not seen.overloaded


def test_nodes_with_the_same_cores_are_at_their_limit_together() -> None:
    """n0 and n1 ask for 120 and 80 MHz of a machine with 110, or 220."""
    case = situation()
    for part, used in ((0.055, [66.0, 44.0]), (0.11, [120.0, 80.0])):
        nodes = tuple(replace(node, cores=part, machine="host") for node in case.cluster.nodes)
        seen = flowing(replace(case, cluster=replace(case.cluster, nodes=nodes)), [0, 0, 2])
        assert seen.node_cpu.tolist() == pytest.approx(used)


def test_a_full_worker_slows_its_topology_down_and_tuples_wait_at_the_source() -> None:
    seen = flowing(situation(), [0, 1, 2], factor=20.0)  # the worker of b[0] is asked for 2,400 of 1,000 MHz
    assert seen.overloaded and seen.share[0] == pytest.approx(1000 / 2400)
    assert seen.slot_cpu[1] == pytest.approx(1000.0) and seen.full.tolist() == [False, True, False]
    assert seen.waiting[0] == pytest.approx((1 - 1000 / 2400) * 2000 * 10)


def test_a_loop_is_full_although_its_cpu_is_idle() -> None:
    seen = flowing(situation(busy=0.6), [0, 1, 1])
    assert seen.overloaded and seen.share[0] == pytest.approx(1 / 1.2) and seen.slot_cpu[1] < 200


def test_the_cores_of_a_node_are_shared_by_its_workers() -> None:
    crowded = situation()
    crowded = replace(crowded, cluster=replace(crowded.cluster, nodes=(Node("n0", 1, 150.0, 1000), Node("n1", 1, 150.0, 1000))))
    assert flowing(crowded, [0, 0, 1]).share[0] == pytest.approx(150 / 200)


def test_a_link_is_a_limit_too() -> None:
    """100 tuples/s of 100 bytes, as they count if their size is not known, or of 40."""
    assert flowing(situation(), [0, 2, 2], links=LinkModel(0.0, 0.0, 5000.0)).share[0] == pytest.approx(0.5)
    sized = situation()
    load = replace(sized.load["t"], traffic_bytes={pair: 40.0 * tuples for pair, tuples in sized.load["t"].traffic.items()})
    seen = flowing(replace(sized, load={"t": load}), [0, 2, 2], links=LinkModel(0.0, 0.0, 1000.0))
    assert seen.share[0] == pytest.approx(0.25)
    assert not flowing(situation(), [0, 0, 1], links=LinkModel(0.0, 0.0, 50.0)).overloaded


def test_a_backlog_is_worked_off_as_fast_as_the_workers_can() -> None:
    seen = flowing(situation(), [0, 1, 2], waiting=500.0)
    assert seen.share[0] == pytest.approx(1.5) and seen.waiting[0] == pytest.approx(0.0) and not seen.overloaded
    long = flowing(situation(), [0, 1, 2], waiting=1e6)
    assert long.slot_cpu[1] == pytest.approx(1000.0) and 0 < long.waiting[0] < 1e6


def test_a_topology_with_a_task_that_is_nowhere_stands_still() -> None:
    seen = flowing(situation(), [0, -1, 2])
    assert seen.share.tolist() == [0.0] and seen.waiting[0] == pytest.approx(1000.0)
    assert seen.latency[0] == pytest.approx(5.0), "the tuples of ten seconds wait for five on average"


def test_acks_are_traffic_and_make_no_tuples() -> None:
    seen = flowing(situation(acker=True), [0, 1, 1, 2])
    assert seen.rate.tolist() == [100.0, 60.0, 40.0, 60.0] and seen.inter_node == 60.0 + 60.0


def test_hops_and_the_wait_at_the_source_are_part_of_the_latency() -> None:
    without, hops = (flowing(situation(), [0, 1, 2], links=links).latency[0] for links in (NO_HOPS, LinkModel(1.0, 10.0)))
    assert hops - without == pytest.approx(0.6 * 0.001 + 0.4 * 0.010)
    linked = situation()
    linked = replace(linked, cluster=replace(linked.cluster, links={("n0", "n1"): 3.0}))
    dear = flowing(linked, [0, 1, 2], links=LinkModel(1.0, 10.0)).latency[0]
    assert dear - without == pytest.approx(0.6 * 0.001 + 0.4 * 0.030)
    assert flowing(situation(), [0, 1, 2], waiting=1e6).latency[0] > 100


@given(st.floats(0.05, 0.95), st.integers(1, 4))
def test_latency_is_that_of_the_queueing_model(busy: float, tasks: int) -> None:
    """Tasks that have a worker each are stations of M/M/1, as the elastic model has them for keyed components."""
    names = [TaskId("b", index) for index in range(tasks)]
    components = (ComponentDef("s", "spout", "m:C", 1, {}, (), (), False, "next_tuple"),
                  ComponentDef("b", "bolt", "m:C", tasks, {}, (), (Input("s", "default", Grouping.fields("k")),), False,
                               "process"))
    case = Situation((TopologyGraph("t", components, {}),),
                     Cluster((Node("n", 8, 1000.0, 1000),), tuple(Slot("n", "e", number) for number in range(tasks + 1))),
                     {"t": Load(1.0, {SPOUT: TaskLoad(emitted=100 * tasks), **{name: TaskLoad(busy_seconds=busy)
                                                                                 for name in names}},
                                {(SPOUT, name): 100.0 for name in names})})
    network = Network((Station("s", 1), Station("b", tasks, 100 / busy, shared_queue=False)), {("s", "b"): 1.0},
                      {"s": 100.0 * tasks})
    assert flowing(case, list(range(tasks + 1))).latency[0] == pytest.approx(network.latency({"s": 1, "b": tasks}))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_world_repeats_what_was_measured(shape: str) -> None:
    case = random_situation(np.random.default_rng(5), tasks=(8, 20), shape=shape, cores=2)
    world, problem = World.of(case), Problem.of(case.graphs, case.cluster, case.load, case.plan)
    rate = world.rates(world.base_rate, world.selectivity)
    assert rate == pytest.approx(world.base_rate) and (world.cpu_cost * rate)[~world.spout] == pytest.approx(
        problem.cpu[~world.spout])
    machines = Machines.of(case.cluster)
    generous = replace(machines, slot_mhz=machines.slot_mhz * 1e6, machine_capacity=machines.machine_capacity * 1e6)
    world = replace(world, busy_cost=world.busy_cost * 0)
    seen = flow(world, generous, NO_HOPS, Demand(rate, rate[world.source] * world.selectivity),
                world.slots_of(case.plan, machines.position), np.zeros(len(world.graphs)), 1.0)
    assert seen.inter_node == pytest.approx(problem.inter_node(problem.current))
    assert seen.inter_process == pytest.approx(problem.inter_process(problem.current))
    assert seen.node_cpu.sum() == pytest.approx(problem.node_load(problem.current).sum())


@given(st.integers(0, 1000), st.floats(0.1, 30.0))
def test_nothing_is_ever_above_its_capacity(seed: int, factor: float) -> None:
    case = random_situation(np.random.default_rng(seed), cores=2)
    world, machines = World.of(case), Machines.of(case.cluster)
    rate = world.rates(world.base_rate * factor, world.selectivity)
    waiting = np.random.default_rng(seed).uniform(0, 1e5, len(world.graphs))
    seen = flow(world, machines, LinkModel(), Demand(rate, rate[world.source] * world.selectivity),
                world.slots_of(case.plan, machines.position), waiting, 20.0)
    assert (seen.slot_cpu <= machines.slot_mhz * (1 + 1e-9)).all() and (seen.slot_busy <= 1 + 1e-9).all()
    assert (seen.node_cpu <= machines.machine_capacity * (1 + 1e-9)).all()
    emitted = seen.share * seen.offered * 20.0
    assert emitted + seen.waiting == pytest.approx(waiting + seen.offered * 20.0), "tuples are neither lost nor made"


@given(st.integers(0, 1000))
def test_keys_that_become_frequent_do_not_change_what_a_task_sends(seed: int) -> None:
    world = World.of(random_situation(np.random.default_rng(seed), tasks=(8, 20)))
    popularity = np.random.default_rng(seed).lognormal(0, 1, world.count)
    shares = world.shares(popularity)
    assert np.bincount(world.fan, weights=shares) == pytest.approx(np.bincount(world.fan, weights=world.selectivity))
    assert shares[~world.keyed] == pytest.approx(world.selectivity[~world.keyed])


def test_equal_seeds_walk_alike_and_stay_near_the_pattern() -> None:
    class Flat:
        def due_by(self, seconds: float) -> float:
            return 2.0 * seconds

    world = World.of(random_situation(np.random.default_rng(1)))
    one, other = (Patterned(world, Flat(), Walk(0.2, 0.3), np.random.default_rng(7)) for _ in range(2))
    spouts = []
    for window in range(500):
        first, second = (each.between(window * 600.0, window * 600.0 + 600) for each in (one, other))
        assert (first.rate == second.rate).all()
        spouts.append(first.rate[world.spout].sum())
    assert np.mean(spouts) == pytest.approx(2 * world.base_rate[world.spout].sum(), rel=0.1)
    steady = Patterned(world, Flat(), Walk(), np.random.default_rng(7)).between(0.0, 10.0)
    assert steady.rate == pytest.approx(2 * world.base_rate)


def test_a_situation_without_traffic_is_refused() -> None:
    with pytest.raises(BadSituation, match="no traffic between tasks"):
        World.of(replace(situation(), load={}))
