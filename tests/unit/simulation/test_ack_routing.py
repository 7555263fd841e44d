"""Acks go to an acker on the spout's worker if there is one, and to all in turn if not."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.api.grouping import Grouping
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ACKER, ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.simulation.acks import AckRouting
from millrace.simulation.demand import Demand
from millrace.simulation.world import Machines, World

SPOUTS = tuple(TaskId("s", index) for index in range(2))
BOLT = TaskId("b", 0)
ACKERS = tuple(TaskId(ACKER, index) for index in range(3))
COMPONENTS = (ComponentDef("s", "spout", "m:C", 2, {}, (), (), False, "next_tuple"),
              ComponentDef("b", "bolt", "m:C", 1, {}, (), (Input("s", "default", Grouping.SHUFFLE),), False, "process"))


def situation() -> Situation:
    """The first spout sends 30 tuples/s and uses the first acker; the other sends 10 and uses the second. The third is idle."""
    traffic = {(SPOUTS[0], BOLT): 30.0, (SPOUTS[1], BOLT): 10.0, (BOLT, ACKERS[0]): 30.0, (BOLT, ACKERS[1]): 10.0,
               (SPOUTS[0], ACKERS[0]): 30.0, (SPOUTS[1], ACKERS[1]): 10.0,
               (ACKERS[0], SPOUTS[0]): 30.0, (ACKERS[1], SPOUTS[1]): 10.0}
    tasks = {BOLT: TaskLoad(cpu_mhz=40.0),
             **{task: TaskLoad(emitted=sent, offered=sent) for task, sent in zip(SPOUTS, (30, 10))},
             **{task: TaskLoad(cpu_mhz=mhz) for task, mhz in zip(ACKERS, (60.0, 20.0, 0.0))}}
    slots = tuple(Slot(f"n{number}", "e", number) for number in range(4))
    return Situation((TopologyGraph("t", COMPONENTS, {}, 3),),
                     Cluster(tuple(Node(f"n{number}", 1, 1000.0, 1000) for number in range(4)), slots),
                     {"t": Load(1.0, tasks, traffic, traffic_bytes={pair: 7 * sent for pair, sent in traffic.items()})},
                     {"t": Plan(1, dict.fromkeys((*SPOUTS, BOLT, *ACKERS), 0))})


def routed(*slots: int) -> tuple[dict[tuple[TaskId, TaskId], float], dict[TaskId, float]]:
    """Tuples per second of every pair with some, and what each task processes, with the tasks on these slots: spouts, bolt,
    ackers."""
    case = situation()
    world = World.of(case)
    order = [(*SPOUTS, BOLT, *ACKERS).index(task) for _, task in world.tasks]
    demand = Demand(world.base_rate, world.base_rate[world.source] * world.selectivity)
    seen = AckRouting(world).routed(demand, np.array(slots)[order])
    pairs = {(world.tasks[one][1], world.tasks[other][1]): rate for one, other, rate in
             zip(world.source.tolist(), world.target.tolist(), seen.edge_rate.tolist()) if rate > 1e-9}
    return pairs, {task: rate for (_, task), rate in zip(world.tasks, seen.rate.tolist())}


def test_every_spout_uses_the_acker_on_its_worker() -> None:
    pairs, rates = routed(0, 1, 2, 0, 1, 2)
    assert pairs == pytest.approx(dict(situation().load["t"].traffic)) and rates[ACKERS[2]] == 0.0


def test_acks_follow_the_spouts() -> None:
    pairs, rates = routed(2, 2, 0, 0, 1, 2)
    assert {pair[1] for pair in pairs if pair[1] in ACKERS} == {ACKERS[2]}
    assert (pairs[BOLT, ACKERS[2]], pairs[ACKERS[2], SPOUTS[0]], pairs[ACKERS[2], SPOUTS[1]]) == (40.0, 30.0, 10.0)
    assert rates[ACKERS[2]] == 80.0 and rates[ACKERS[0]] == 0.0


def test_of_several_ackers_on_a_worker_the_first_is_used() -> None:
    assert {pair[1] for pair in routed(1, 1, 0, 0, 1, 1)[0] if pair[1] in ACKERS} == {ACKERS[1]}


def test_a_spout_without_an_acker_on_its_worker_uses_all_in_turn() -> None:
    pairs, rates = routed(0, 3, 2, 0, 1, 2)
    assert [pairs[SPOUTS[1], acker] for acker in ACKERS] == pytest.approx([10 / 3] * 3)
    assert [pairs[BOLT, acker] for acker in ACKERS] == pytest.approx([30 + 10 / 3, 10 / 3, 10 / 3])
    assert sum(rates[acker] for acker in ACKERS) == pytest.approx(80.0)


def test_an_acker_that_was_idle_costs_as_much_as_the_others() -> None:
    world = World.of(situation())
    ackers = np.array([task.component == ACKER for _, task in world.tasks])
    assert world.cpu_cost[ackers].tolist() == pytest.approx([1.0] * 3)
    assert world.tuple_bytes.tolist() == pytest.approx([7.0] * len(world.tuple_bytes)), "on edges that were idle, too"


def test_without_ackers_nothing_changes() -> None:
    case = situation()
    plain = Situation((TopologyGraph("t", COMPONENTS, {}),), case.cluster, case.load, case.plan)
    world = World.of(plain)
    demand = Demand(world.base_rate, world.base_rate[world.source] * world.selectivity)
    assert AckRouting(world).routed(demand, world.slots_of(plain.plan, Machines.of(plain.cluster).position)) is demand
