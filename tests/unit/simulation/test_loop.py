"""The closed loop: what a scheduler's plans make of the world, and what the world makes of its plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from millrace.control.scheduling.load_smoothing import EstimatorParameters, Last, TrimmedMean
from millrace.control.scheduling.schedule_generator import Policy
from millrace.errors import SchedulerFailed
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import NoChange, Scheduler, SchedulingResult
from millrace.schedulers.even import Even
from millrace.schedulers.instances import random_situation, simulated_situation
from millrace.schedulers.otd import Otd
from millrace.schedulers.problem import Problem
from millrace.schedulers.registry import make_scheduler
from millrace.simulation.absences import Absence, away, failures
from millrace.simulation.demand import Patterned, Walk
from millrace.simulation.figures import Run
from millrace.simulation.loop import Conditions, first_plans, simulated_run
from millrace.simulation.measuring import Noise
from millrace.simulation.moving import MoveModel
from millrace.simulation.placement_rule import PlacementRule
from millrace.simulation.world import World

CASE = random_situation(np.random.default_rng(3), tasks=(10, 10), nodes=(3, 3), slack=(3.0, 3.0))
QUIET = Noise(0.0, 0.0)
STEADY = Walk()
KEYS = ["scheduler", "nodes", "tasks", "hours", "inter_node_mean", "moves", "plans", "overload_s", "p50_ms", "p99_ms",
        "nodes_used_mean", "seconds"]


class Flat:
    """A constant load, relative to that of the situation."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def due_by(self, seconds: float) -> float:
        return self.factor * seconds


def run(scheduler: Scheduler, case: Situation = CASE, factor: float = 1.0, walk: Walk = STEADY, **changes: Any) -> Run:
    conditions = replace(Conditions(hours=0.5, noise=QUIET), **changes)
    demands = Patterned(World.of(case), Flat(factor), walk, np.random.default_rng(1))
    return simulated_run("tested", scheduler, case, demands, conditions, np.random.default_rng(2))


@dataclass(frozen=True)
class Gather:
    """Puts every task on the first slot that is alive."""

    WEIGHS_ITSELF: ClassVar[bool] = True

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        return problem.answer(np.zeros(problem.count, dtype=np.int64), "together")


def test_a_scheduler_that_changes_nothing_leaves_the_traffic_as_it_is() -> None:
    problem = Problem.of(CASE.graphs, CASE.cluster, CASE.load, CASE.plan)
    seen = run(Even(), factor=0.1)
    row = seen.to_json(1.5)
    assert list(row) == KEYS
    assert row["inter_node_mean"] == pytest.approx(0.1 * problem.inter_node(problem.current))
    assert (row["plans"], row["moves"], row["overload_s"], row["hours"], row["seconds"]) == (0, 0, 0, 0.5, 1.5)
    assert len(seen.windows) == 90 and row["nodes_used_mean"] == 3.0 and 0 < row["p50_ms"] <= row["p99_ms"]


def test_a_plan_takes_effect_after_the_switch() -> None:
    before = run(Even(), factor=0.01).windows[0].inter_node
    seen = run(Gather(), factor=0.01, moves=MoveModel(switch_seconds=5.0, state_share=0.0))
    assert seen.plans == 1 and sum(window.moves for window in seen.windows) == seen.windows[1].moves > 0
    assert [window.inter_node for window in seen.windows[:3]] == pytest.approx([before, before * 5 / 20, 0.0])
    assert seen.windows[2].nodes_used == 1


def test_too_much_on_one_worker_is_an_overload_and_makes_tuples_wait() -> None:
    gathered, spread = run(Gather(), factor=2.0), run(Even(), factor=0.3)
    assert all(window.overloaded_seconds == 20.0 for window in gathered.windows[2:])
    assert not any(window.overloaded_seconds for window in spread.windows)
    assert gathered.latency_ms(99) > 1000 > spread.latency_ms(99)


def test_latency_percentiles_are_over_the_tuples_offered() -> None:
    seen = run(Even(), factor=0.1)
    first = seen.windows[0]
    slow = replace(first, latency_ms=first.latency_ms * 0 + 500.0)
    fast = replace(first, latency_ms=first.latency_ms * 0 + 2.0)
    mixed = Run("x", 1, 1, [fast] * 97 + [slow] * 3)
    assert (mixed.latency_ms(50), mixed.latency_ms(99)) == (2.0, 500.0)
    idle = Run("x", 1, 1, [replace(first, offered=first.offered * 0)])
    assert idle.latency_ms(50) == 0.0


def test_the_estimator_is_the_schedulers_unless_another_is_named() -> None:
    @dataclass
    class Listens:
        heard: list[float]
        ESTIMATOR: ClassVar[str] = "trimmed-mean"
        PERIOD_SECONDS: ClassVar[float] = 20.0

        def schedule(self, graphs: Any, cluster: Any, load: Mapping[str, Load], plan: Any) -> SchedulingResult:
            self.heard.append(sum(row.cpu_mhz for each in load.values() for row in each.tasks.values()))
            return NoChange("as it is")

    def heard(estimator: EstimatorParameters | None) -> list[float]:
        listens = Listens([])
        run(listens, factor=0.1, noise=Noise(), estimator=estimator)
        return listens.heard

    assert heard(None) == heard(TrimmedMean()) != heard(Last())
    assert np.std(heard(None)[5:]) < np.std(heard(Last())[5:])


def test_equal_seeds_give_equal_runs() -> None:
    one, other = (run(make_scheduler("tstorm"), walk=Walk(0.1, 0.3), noise=Noise()).to_json(0.0) for _ in range(2))
    assert one == other and one["plans"] > 0


def test_the_load_walks_the_same_for_every_scheduler() -> None:
    one, other = (run(scheduler, factor=0.2, walk=Walk(0.2, 0.3)) for scheduler in (Even(), Gather()))
    assert [window.offered.tolist() for window in one.windows] == [window.offered.tolist() for window in other.windows]


def test_windows_are_no_longer_than_the_period_of_the_scheduler() -> None:
    seen = run(Otd(), factor=0.1)
    assert {window.seconds for window in seen.windows} == {5.0} and seen.seconds == 1800


def test_tasks_of_a_node_that_fails_go_elsewhere_and_tuples_wait_until_then() -> None:
    absence = Absence("n0", 100.0, 500.0)
    seen = run(Even(), factor=0.05, absences=(absence,))
    used = [window.nodes_used for window in seen.windows]
    assert used[0] == 3 and 2 in used and seen.lost > 0
    struck = seen.windows[5]
    assert struck.latency_ms.max() > 100 * seen.windows[4].latency_ms.max(), "two seconds without the lost tasks"
    assert struck.moves == 0, "a loss is no move"


def test_without_any_node_everything_waits_and_goes_on_afterwards() -> None:
    absences = tuple(Absence(name, 100.0, 300.0) for name in ("n0", "n1", "n2"))
    seen = run(Even(), factor=0.05, absences=absences)
    assert [window.nodes_used for window in seen.windows[5:14]] == [0] * 9
    assert seen.windows[-1].nodes_used > 0 and seen.windows[-1].latency_ms.max() < 1000


def test_a_scheduler_that_fails_is_reported_and_changes_nothing() -> None:
    @dataclass(frozen=True)
    class Broken:
        def schedule(self, graphs: Any, cluster: Any, load: Any, plan: Any) -> SchedulingResult:
            raise ZeroDivisionError("oops")

    seen = run(Broken(), factor=0.1)
    assert seen.error == "ZeroDivisionError: oops" and seen.plans == 0


def test_a_plan_against_the_rules_is_a_failure() -> None:
    @dataclass(frozen=True)
    class Elsewhere:
        def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Any,
                     plan: Mapping[str, Plan]) -> SchedulingResult:
            wrong = Gather().schedule(graphs, replace(cluster, slots=tuple(slot._replace(number=slot.number + 100)
                                                                           for slot in cluster.slots)), load, {})
            return wrong

    assert "SchedulerFailed" in run(Elsewhere(), factor=0.1).error


def test_tasks_are_placed_at_the_start_by_the_rule_of_the_scheduler() -> None:
    case = simulated_situation(40, 5, np.random.default_rng(1))
    used = {name: [len(set(plan.placement.values()))
                   for plan in first_plans(PlacementRule(name, make_scheduler(name)), case).values()]
            for name in ("tstorm", "slstream")}
    assert used == {"tstorm": [5] * 4, "slstream": [10] * 4}, "one worker on each node; evenly, as it has no rule of its own"
    assert first_plans(PlacementRule("tested", Gather()), CASE) == CASE.plan, "what runs already goes on"
    with pytest.raises(SchedulerFailed, match="cannot be placed on 0 slots"):
        first_plans(PlacementRule("even", Even()), replace(CASE, cluster=Cluster((), ())))


def test_a_loss_is_placed_by_the_rule_of_the_scheduler() -> None:
    """`even` leaves equally many tasks on each slot. The engine's own rule would put them where their traffic is."""
    tasks = tuple(TaskId("a", index) for index in range(12))
    sent = {(tasks[0], task): 100.0 * task.index for task in tasks[1:]}
    graph = TopologyGraph("t", (ComponentDef("a", "spout", "m:C", 12, {}, (), (), False, "next_tuple"),), {})
    nodes = tuple(Node(f"n{number}", 1, 1e6, 1000) for number in range(4))
    case = Situation((graph,), Cluster(nodes, tuple(Slot(f"n{number}", "e", number) for number in range(4))),
                     {"t": Load(1.0, {task: TaskLoad(cpu_mhz=1.0) for task in tasks}, sent)},
                     {"t": Plan(1, {task: task.index % 4 for task in tasks})})
    after = replace(case, cluster=replace(case.cluster, slots=case.cluster.slots[:3]))

    def sizes(name: str) -> list[int]:
        placed = PlacementRule(name, make_scheduler(name)).complete(after)["t"].placement
        return sorted(list(placed.values()).count(slot) for slot in range(3))

    assert sizes("even") == [4, 4, 4] != sizes("slstream")


def test_tasks_for_which_no_node_has_the_memory_wait_until_one_has() -> None:
    """`resource-aware` places a task only where its memory is; others of its topology are not planned meanwhile."""
    memory = sum(row.memory_mb for load in CASE.load.values() for row in load.tasks.values())
    nodes = tuple(replace(node, memory_mb=math.ceil(0.45 * memory)) for node in CASE.cluster.nodes)
    tight = replace(CASE, cluster=replace(CASE.cluster, nodes=nodes))
    absences = (Absence("n0", 400.0, 800.0), Absence("n1", 400.0, 800.0))
    seen = run(make_scheduler("resource-aware"), tight, factor=0.05, absences=absences)
    assert seen.error == "" and seen.lost > 0
    assert max(window.latency_ms.max() for window in seen.windows[21:39]) > 1000, "its tuples wait"
    assert seen.windows[-1].latency_ms.max() < 1000 and seen.windows[-1].nodes_used >= 2


def test_a_topology_that_falls_behind_its_sources_asks_the_scheduler() -> None:
    """No node or worker counts as overloaded here: the tuples that wait at the sources show it."""
    @dataclass
    class Asked:
        times: int = 0

        def schedule(self, graphs: Any, cluster: Any, load: Any, plan: Any) -> SchedulingResult:
            self.times += 1
            return NoChange("as it is")

    calm, pressed = Asked(), Asked()
    run(calm, factor=0.1, policy=Policy(overload=5.0))
    run(pressed, factor=4.0, policy=Policy(overload=5.0))
    assert calm.times < pressed.times


def test_failures_come_at_their_rate() -> None:
    drawn = failures(["a", "b", "c"], 2.0, 500.0, np.random.default_rng(4))
    assert len(drawn) == pytest.approx(1000, rel=0.1) and {each.node for each in drawn} == {"a", "b", "c"}
    assert np.mean([each.end - each.begin for each in drawn]) == pytest.approx(600, rel=0.2)
    assert failures(["a"], 0.0, 24.0, np.random.default_rng(4)) == ()


@pytest.mark.parametrize(("begin", "end", "gone"), [(0, 20, set()), (80, 100, set()), (90, 111, {"a"}), (120, 140, {"a"}),
                                                    (185, 205, {"a"}), (195, 215, set())])
def test_a_node_is_away_in_the_windows_whose_middle_it_misses(begin: float, end: float, gone: set[str]) -> None:
    assert away((Absence("a", 100.0, 200.0),), begin, end) == gone
