"""The comparison: what counts for a scheduler, what against it, and what is left out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.optimal import Least, least_traffic
from millrace.schedulers.otd import Otd
from millrace.schedulers.problem import Figures, Problem
from millrace.schedulers.tstorm import TStorm
from millrace.simulation.compare import MOST_STEPS, Outcome, best_of, details, in_common, outcome, summary, units_of

TASKS = tuple(TaskId("a", index) for index in range(4))
SITUATION = Situation(  # two tasks fit a node; 100 tuples/s between nodes as it runs, 20 at least
    (TopologyGraph("t", (ComponentDef("a", "spout", "m:C", 4, {}, (), (), False, "next_tuple"),), {}),),
    Cluster((Node("n0", 1, 200.0, 1000), Node("n1", 1, 200.0, 1000)), (Slot("n0", "e0", 0), Slot("n1", "e1", 1))),
    {"t": Load(1.0, {task: TaskLoad(cpu_mhz=100.0) for task in TASKS},
               {(TASKS[0], TASKS[1]): 50.0, (TASKS[2], TASKS[3]): 50.0, (TASKS[0], TASKS[2]): 10.0,
                (TASKS[1], TASKS[3]): 10.0})},
    {"t": Plan(1, dict(zip(TASKS, (0, 1, 0, 1))))},
)
LEAST = least_traffic(Problem.of(SITUATION.graphs, SITUATION.cluster, SITUATION.load, SITUATION.plan))


@dataclass(frozen=True)
class Fixed:
    """Always the same answer."""

    answer: SchedulingResult | Exception

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def placed(*slots: int) -> NewPlan:
    return NewPlan({"t": Plan(2, dict(zip(TASKS, slots)))}, "because")


def found(answer: SchedulingResult | Exception, least: Least | None = LEAST) -> Outcome:
    ticks = itertools.count(10.0, 0.25)
    return outcome(Fixed(answer), SITUATION, lambda: next(ticks), least)


def test_a_new_plan_is_measured_before_and_after() -> None:
    seen = found(placed(0, 0, 1, 1))
    assert seen.after is not None
    assert (seen.before.inter_node, seen.before.moved) == (100.0, 0)
    assert (seen.after.inter_node, seen.after.nodes_used, seen.after.largest_load, seen.after.moved) == (20.0, 2, 1.0, 2)
    assert (seen.ratio, seen.overloaded, seen.seconds, seen.reason, seen.error) == (1.0, False, 0.25, "because", None)


def test_no_change_keeps_what_runs() -> None:
    seen = found(NoChange("fine as it is"))
    assert seen.after == seen.before and seen.ratio == 5.0 and seen.reason == "fine as it is"


def test_an_overloaded_plan_has_no_ratio() -> None:
    seen = found(placed(0, 0, 0, 0))
    assert seen.overloaded and seen.ratio is None and seen.after is not None and seen.after.inter_node == 0


@pytest.mark.parametrize(("answer", "error"), [
    (ValueError("oops"), "ValueError: oops"),
    (CannotPlace({"t": TASKS}, "no room"), "no room"),
    (placed(0, 0, 1, 9), "1 tasks have no live slot: because"),
])
def test_a_failure_is_an_outcome_too(answer: SchedulingResult | Exception, error: str) -> None:
    seen = found(answer)
    assert seen.after is None and seen.ratio is None and seen.error == error
    assert details(seen)["inter_node"] is None


def test_there_is_no_ratio_without_a_proven_optimum() -> None:
    assert found(placed(0, 0, 1, 1), None).ratio is None
    assert found(placed(0, 0, 1, 1), Least(np.zeros(4), 20.0, 10.0)).ratio is None


def test_an_optimum_of_zero_is_counted_apart() -> None:
    nothing = Least(np.zeros(4), 0.0, 0.0)
    none = replace(found(placed(0, 0, 1, 1), nothing), after=Figures(0.0, 0.0, 2, 1.0, 2))
    some = found(placed(0, 0, 1, 1), nothing)
    assert none.ratio is None and none.solved_zero and some.ratio is None and not some.solved_zero


def test_summary() -> None:
    row = summary([found(placed(0, 0, 1, 1)), found(NoChange("stays")), found(placed(0, 0, 0, 0)), found(ValueError("oops"))])
    assert row == {"mean_ratio": 3.0, "worst_ratio": 5.0, "compared": 2, "zero_solved": 0, "overloaded": 1, "failed": 1,
                   "nodes_used": pytest.approx(5 / 3), "moved": pytest.approx(4 / 3), "plan_ms": 250.0,
                   "error": "ValueError: oops", "common_ratio": None, "ratio_of_sums": 3.0, "inter_node": 40.0,
                   "inter_process": 0.0, "largest_load": pytest.approx(4 / 3), "enacted": 1, "enacted_ratio": 4.0,
                   "enacted_overloaded": 0, "steps": 0.5, "best_ratio": None,
                   "enacted_best_ratio": None, "bytes": None, "cost": None}


def test_plans_are_measured_in_the_units_that_a_scheduler_minimises() -> None:
    load = SITUATION.load["t"]
    sizes = {pair: tuples * (1 if pair == (TASKS[0], TASKS[1]) else 100) for pair, tuples in load.traffic.items()}
    nodes = tuple(replace(node, mhz=400.0) for node in SITUATION.cluster.nodes)
    case = replace(SITUATION, load={"t": replace(load, traffic_bytes=sizes)},
                   cluster=replace(SITUATION.cluster, nodes=nodes, links={("n0", "n1"): 3.0}))
    assert units_of([Otd(), TStorm(minimise="cost"), TStorm(minimise="bytes")]) == ("bytes", "cost") and not units_of([Otd()])
    seen = outcome(Fixed(placed(0, 0, 1, 1)), case, lambda: 0.0, None, ("bytes", "cost"))
    assert seen.weights == {"bytes": 2000.0, "cost": 6000.0}
    stays = outcome(Fixed(NoChange("stays")), case, lambda: 0.0, None, ("bytes", "cost"))
    assert stays.weights == {"bytes": 50.0 + 5000.0, "cost": 3 * (50.0 + 5000.0)}
    failed = outcome(Fixed(ValueError("oops")), case, lambda: 0.0, None, ("bytes",))
    row = summary([seen, stays, failed])
    assert (row["bytes"], row["cost"]) == (3525.0, 10575.0) and details(failed)["bytes"] is None
    assert details(seen)["bytes"] == 2000.0 and details(found(NoChange("stays")))["bytes"] is None


def test_the_common_ratio_is_over_the_situations_that_all_have_one_in() -> None:
    good, bad, none = found(placed(0, 0, 1, 1)), found(NoChange("stays")), found(placed(0, 0, 0, 0))  # 1, 5, overloaded
    outcomes = {"one": [good, bad, good], "other": [bad, good, none]}
    assert in_common(outcomes) == {0, 1}
    assert [summary(each, in_common(outcomes))["common_ratio"] for each in outcomes.values()] == [3.0, 3.0]
    assert [summary(each)["mean_ratio"] for each in outcomes.values()] == [pytest.approx(7 / 3), 3.0]


@dataclass(frozen=True)
class OneByOne:
    """Swaps two tasks in two steps, and has no third."""

    WEIGHS_ITSELF: ClassVar[bool] = True

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        slots = [plan["t"].placement[task] for task in TASKS]
        steps = {(0, 1, 0, 1): (0, 0, 0, 1), (0, 0, 0, 1): (0, 0, 1, 1)}
        if tuple(slots) not in steps:
            return NoChange("done")
        return NewPlan({"t": Plan(plan["t"].version + 1, dict(zip(TASKS, steps[tuple(slots)])))}, "one more")


def test_a_scheduler_is_asked_until_it_has_no_more_plans() -> None:
    nodes = (Node("n0", 1, 400.0, 1000), Node("n1", 1, 400.0, 1000))
    roomy = replace(SITUATION, cluster=Cluster(nodes, SITUATION.cluster.slots))
    seen = outcome(OneByOne(), roomy, lambda: 0.0, LEAST)
    assert seen.after is not None and (seen.steps, seen.after.inter_node, seen.after.moved) == (2, 20.0, 2)
    assert seen.enacted == seen.after and seen.ratio == seen.enacted_ratio == 1.0


def test_one_that_goes_round_in_circles_is_refused() -> None:
    @dataclass(frozen=True)
    class Circle:
        WEIGHS_ITSELF: ClassVar[bool] = True

        def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                     plan: Mapping[str, Plan]) -> SchedulingResult:
            slots = [1 - plan["t"].placement[task] for task in TASKS]
            return NewPlan({"t": Plan(plan["t"].version + 1, dict(zip(TASKS, slots)))}, "round")

    assert outcome(Circle(), SITUATION, lambda: 0.0).steps == 1 < MOST_STEPS


def test_a_plan_that_the_live_engine_refuses_counts_for_the_scheduler_and_is_not_enacted() -> None:
    nodes = (Node("n0", 1, 400.0, 1000), Node("n1", 1, 400.0, 1000))
    roomy = replace(SITUATION, cluster=replace(SITUATION.cluster, nodes=nodes))
    seen = outcome(Fixed(placed(0, 0, 0, 0)), roomy, lambda: 0.0)  # it would fill the node, from half of it
    assert seen.after is not None and seen.enacted is not None and not seen.overloaded
    assert (seen.after.inter_node, seen.enacted.inter_node, seen.steps) == (0.0, 100.0, 1)
    assert details(seen)["enacted"] is False and details(seen)["enacted_inter_node"] == 100.0
    seen = outcome(Fixed(placed(0, 0, 1, 1)), roomy, lambda: 0.0)
    assert seen.enacted == seen.after and details(seen)["enacted"] is True


def test_a_worker_that_cannot_use_its_whole_node_can_be_overloaded() -> None:
    nodes = (Node("n0", 4, 100.0, 1000), Node("n1", 4, 100.0, 1000))
    cores = replace(SITUATION, cluster=replace(SITUATION.cluster, nodes=nodes))
    assert outcome(Fixed(placed(0, 0, 1, 1)), cores, lambda: 0.0).overloaded


def test_the_best_of_all_takes_the_place_of_the_optimum() -> None:
    outcomes = {"one": [found(placed(0, 0, 1, 1), None), found(placed(0, 0, 0, 0), None)],
                "other": [found(NoChange("stays"), None), found(placed(0, 0, 0, 0), None)]}
    assert best_of(outcomes) == [20.0, None]
    assert [summary(each, None, best_of(outcomes))["best_ratio"] for each in outcomes.values()] == [1.0, 5.0]


def test_what_is_in_force_is_compared_with_the_best_too() -> None:
    """The second plan is wanted and refused, so the traffic stays as it was."""
    wanted = found(placed(0, 0, 1, 1), None)
    refused = replace(wanted, enacted=wanted.before)
    assert [summary([each], None, [20.0])["enacted_best_ratio"] for each in (wanted, refused)] == [1.0, 5.0]
    assert [summary([each], None, [20.0])["best_ratio"] for each in (wanted, refused)] == [1.0, 1.0]


def test_summary_of_nothing() -> None:
    row = summary([])
    assert row["mean_ratio"] is None and row["worst_ratio"] is None and row["plan_ms"] is None
