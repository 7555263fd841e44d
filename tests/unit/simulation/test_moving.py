"""The time that simulated moves take, and what a scheduler learns of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from millrace.api.grouping import Grouping
from millrace.control.scheduling.schedule_generator import Policy
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.registry import make_scheduler
from millrace.simulation.demand import Patterned, Walk
from millrace.simulation.loop import Conditions, _Loop
from millrace.simulation.measuring import Noise
from millrace.simulation.moving import MoveModel
from millrace.simulation.world import Machines, World

SPOUT, KEYED, SHUFFLED = TaskId("s", 0), TaskId("k", 0), TaskId("r", 0)
MODEL = MoveModel(switch_seconds=2.0, pause_seconds=0.05, state_share=0.5, bytes_per_second=10e6, again=0.1)


def situation() -> Situation:
    """A spout that cannot move and sends 100 tuples/s to each of two bolts on the other node. Every task uses 80 MB."""
    bolts = [ComponentDef(name, "bolt", "m:C", 1, {}, (), (Input("s", "default", grouping),), False, "process")
             for name, grouping in (("k", Grouping.fields("k")), ("r", Grouping.SHUFFLE))]
    spout = ComponentDef("s", "spout", "m:C", 1, {}, (), (), False, "next_tuple", movable=False)
    load = Load(1.0, {task: TaskLoad(cpu_mhz=10.0, memory_mb=80.0, emitted=100) for task in (SPOUT, KEYED, SHUFFLED)},
                {(SPOUT, KEYED): 100.0, (SPOUT, SHUFFLED): 100.0})
    nodes = Node("n0", 1, 1000.0, 4096), Node("n1", 1, 1000.0, 4096)
    return Situation((TopologyGraph("t", (spout, *bolts), {}),), Cluster(nodes, (Slot("n0", "e", 0), Slot("n1", "e", 1))),
                     {"t": load}, {"t": Plan(1, {SPOUT: 0, KEYED: 1, SHUFFLED: 1})})


class Flat:
    def due_by(self, seconds: float) -> float:
        return seconds


def loop(model: MoveModel) -> _Loop:
    conditions = Conditions(1.0, noise=Noise(0.0, 0.0), policy=Policy(cool_down=0.0), moves=model)
    demands = Patterned(World.of(situation()), Flat(), Walk(), np.random.default_rng(1))
    return _Loop("online", make_scheduler("online"), situation(), demands, conditions, np.random.default_rng(1))


def test_tasks_that_get_their_tuples_by_key_have_state() -> None:
    world = World.of(situation())
    assert dict(zip((task for _, task in world.tasks), MODEL.state(world).tolist())) == {SPOUT: 0.0, KEYED: 40e6, SHUFFLED: 0.0}


def test_state_travels_at_the_rate_of_its_node_and_what_changed_meanwhile_makes_the_pause() -> None:
    world, machines = World.of(situation()), Machines.of(situation().cluster)
    state, before = MODEL.state(world), np.array([0, 1, 1])
    assert MODEL.pauses(state).tolist() == pytest.approx([0.05, 0.45, 0.05])
    moved = np.array([False, True, True])
    assert MODEL.seconds(state, moved, before, np.array([0, 0, 0]), machines) == pytest.approx(2.0 + 4.0)
    assert MODEL.seconds(state, ~moved, before, np.array([1, 1, 1]), machines) == 2.0


def test_a_move_of_much_state_pauses_longer_and_the_next_one_has_its_price() -> None:
    light, heavy = loop(replace(MODEL, state_share=0.0)), loop(MODEL)
    for each in (light, heavy):
        for _ in range(2):
            each.window()
        assert each.run.plans == 1 and each.run.windows[1].moves == 2
    assert heavy.run.windows[1].latency_ms[0] > light.run.windows[1].latency_ms[0]
    apart, together = situation().plan, {"t": Plan(2, {SPOUT: 0, KEYED: 0, SHUFFLED: 0})}
    prices = [each.generator.costs.tuples(together, apart, situation().load, "handover") for each in (light, heavy)]
    assert prices[1] - prices[0] > 40e6 / 100, "a tuple for every 100 bytes"
