"""The elastic loop: when it changes the numbers of tasks, when it waits, and what it learns from its decisions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.elastic.allocation import Limits
from millrace.elastic.elastic_decision import (
    ADVISED_ONLY,
    GROWTH,
    INFEASIBLE,
    REARRANGE,
    REFUSED,
    SCALES,
    SHRINK,
    SUPERSEDED,
    ElasticDecision,
)
from millrace.elastic.elastic_loop import ElasticChoice, ElasticLoop
from millrace.elastic.elastic_policy import ElasticPolicy
from millrace.elastic.elastic_window import ElasticWindow
from millrace.elastic.models import make_model
from millrace.elastic.network import Network, Station
from support.examples import examples

WINDOW = 5.0
SERVICE = 100.0  # tuples/s of one task of b
T_MAX = Limits(t_max_ms=20.0)


def network(offered: float, tasks: int, **more: Any) -> Network:
    return Network((Station("a", 1, least=1, most=1), Station("b", tasks, SERVICE, **more)), {("a", "b"): 1.0}, {"a": offered})


def loop(name: str = "erstream", limits: Limits = T_MAX, parameters: dict[str, Any] | None = None,
         **policy: Any) -> ElasticLoop:
    return ElasticLoop("t", ElasticChoice(name, parameters or {}, limits, make_model(name, parameters or {}, limits)),
                       ElasticPolicy(**policy))


stream = network


class Topology:
    """A topology with one bolt under the loop: windows of five seconds, and scaling that takes one of them."""

    def __init__(self, loop: ElasticLoop, tasks: int, measured: float | None = None) -> None:
        self.loop, self.tasks, self.now, self.settling = loop, tasks, 0.0, False
        self.measured = measured  # None: as the model says, and 500 ms if tasks cannot keep up
        self.made: list[ElasticDecision] = []

    def window(self, offered: float, network: Network | None = None, **more: Any) -> list[ElasticDecision]:
        self.now += WINDOW
        now = network if network is not None else stream(offered, self.tasks)
        latency = self.measured if self.measured is not None else min(now.latency(now.present) * 1000, 500.0)
        made = {"settling": self.settling, "measured_ms": latency, **more}
        window = ElasticWindow(1e9 + self.now, WINDOW, now, **made)
        self.settling = False
        found = self.loop.end_window(self.now, window)
        for decision in found:
            if decision.outcome == SCALES and decision.helped is None:
                self.loop.enacted(decision, self.now)
                self.tasks, self.settling = decision.par["b"], True
                self.made.append(decision)
        return found

    def run(self, rates: Iterable[float]) -> list[int]:
        """The numbers of tasks after each window."""
        numbers = []
        for offered in rates:
            self.window(offered)
            numbers.append(self.tasks)
        return numbers


# -- growing -----------------------------------------------------------------------------------------------------------

def test_a_step_of_the_load_is_answered_by_one_decision() -> None:
    topology = Topology(loop(), 4)
    assert topology.run([200] * 5) == [4] * 5
    assert topology.run([600] * 40) == [4, *[8] * 39], "in the second window of the new load, and then nothing"
    [decision] = topology.made
    assert (decision.direction, decision.before, decision.par) == (GROWTH, {"a": 1, "b": 4}, {"a": 1, "b": 8})
    assert decision.reason.startswith("b cannot keep up with 600.0 tuples/s: 9 instances are the fewest for 20 ms")
    assert decision.expected_ms is not None and decision.expected_ms <= 20
    known = topology.loop.decisions[-1]
    assert known.helped is True and known.measured_ms == pytest.approx(decision.expected_ms)
    assert topology.loop.standing == "a=1, b=8 meet the goal"


def test_growth_is_not_for_a_single_window() -> None:
    topology = Topology(loop(), 4)
    assert topology.run([200, 600, 200, 600, 200, 200, 600]) == [4] * 7
    assert topology.loop.standing.startswith("grow to a=1, b=8 wanted for 1 of 2 windows")


def test_a_load_that_changes_wildly_is_waited_for_unless_tasks_cannot_keep_up() -> None:
    topology = Topology(loop(limits=Limits(t_max_ms=10.5), settle_windows=3), 5)
    topology.run([300, 420, 490, 380])  # too slow for 10.5 ms each time, but stable
    assert topology.tasks == 5
    assert topology.loop.standing == "the offered rate changes between 380.0 and 490.0 tuples/s"
    steep = Topology(loop(settle_windows=3), 3)
    steep.run([310, 420, 700])  # b cannot keep up in any of them
    assert steep.tasks == 9


def test_nothing_happens_while_something_is_under_way() -> None:
    topology = Topology(loop(), 3)
    for _ in range(6):
        assert topology.window(900, busy="a migration is under way") == []
        assert topology.loop.standing == "a migration is under way"
    assert topology.window(900, settling=True) == [] and topology.tasks == 3
    assert topology.run([900, 900]) == [3, 11], "two windows that count are needed from then on"


def test_the_next_change_waits_for_the_cool_down() -> None:
    topology = Topology(loop(cool_down=60), 3)
    topology.run([500] * 3)
    assert topology.run([900] * 9)[-1] == topology.made[0].par["b"]
    assert topology.loop.standing == "cooling down for 10 s"
    topology.run([900] * 4)
    assert len(topology.made) == 2


def test_a_dry_run_reports_and_changes_nothing() -> None:
    topology = Topology(loop(dry_run=True), 3)
    topology.run([500] * 2)
    assert [decision.outcome for decision in topology.loop.decisions] == [ADVISED_ONLY] and topology.tasks == 3


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_windows_are_the_loops_own_however_short_load_windows_are(parts: int) -> None:
    """Those of another topology may be shorter: two windows of five seconds are needed all the same."""
    decider, seconds, at = loop(), WINDOW / parts, []
    for number in range(1, 3 * parts + 1):
        now = number * seconds
        if decider.end_window(now, ElasticWindow(now, seconds, network(600, 4), 500.0)):
            at.append(now)
    assert at[0] == 10.0


# -- shrinking and rearranging -----------------------------------------------------------------------------------------

def test_tasks_that_are_not_needed_end_patiently() -> None:
    topology = Topology(loop(patience=6), 8)
    assert topology.run([600] * 20) == [8] * 20
    assert topology.run([450] * 20) == [8] * 5 + [6] * 15, "with 10 % of room, in the sixth window"
    assert [decision.direction for decision in topology.made] == [SHRINK]
    assert topology.made[0].reason == "9 instances are more than needed: 7 instances are the fewest for 20 ms"


def test_no_task_ends_while_the_measured_latency_misses_the_goal() -> None:
    topology = Topology(loop(patience=3), 8, measured=35.0)
    assert topology.run([450] * 20) == [8] * 20
    assert topology.loop.standing.startswith("35.0 ms were measured, above the goal, though 9 instances are more than needed")
    topology.measured = 12.0
    assert topology.run([450] * 3) == [8, 8, 6]


def test_half_of_the_tasks_end_at_once_at_most() -> None:
    topology = Topology(loop(patience=2, cool_down=0), 16)
    numbers = topology.run([50] * 30)
    assert sorted(set(numbers), reverse=True) == [16, 8, 4, 2]


@given(st.floats(20, 2000), st.sampled_from(["erstream", "ds2", "predictive"]))
@settings(max_examples=examples(30))
def test_a_steady_load_never_makes_it_go_to_and_fro(offered: float, name: str) -> None:
    limits = Limits() if name == "ds2" else T_MAX
    topology = Topology(loop(name, limits, patience=3), 10)
    numbers = topology.run([offered] * 80)
    directions = {decision.direction for decision in topology.made}
    assert len(directions) <= 1 and len(set(numbers[40:])) == 1
    now = network(offered, topology.tasks)
    assert topology.loop.choice.model.missed(now, now.present, limits) == ""


@given(st.lists(st.floats(0.97, 1.03), min_size=60, max_size=60), st.floats(100, 1500))
@settings(max_examples=examples(30))
def test_noise_makes_no_oscillation(noise: list[float], offered: float) -> None:
    """3 % up and down around a load: the direction changes at most once."""
    topology = Topology(loop(), 10)
    topology.run(offered * each for each in noise)
    directions = [decision.direction for decision in topology.made]
    assert sum(one != other for one, other in itertools.pairwise(directions)) <= 1


def test_instances_are_distributed_otherwise_if_that_is_faster() -> None:
    """Resource-limited: as in the paper, (3, 4, 8) becomes (3, 7, 5)."""
    decider = loop(limits=Limits(c_max=15), patience=3)
    stations = (Station("spout", 3, 200.0), Station("split", 4, 62.5), Station("count", 8, 500.0))
    now = Network(stations, {("spout", "split"): 1.0, ("split", "count"): 5.0}, {"spout": 200.0})
    made = [decision for number in range(4)
            for decision in decider.end_window(5.0 * number, ElasticWindow(5.0 * number, 5.0, now, 43.0))]
    assert [(decision.direction, decision.par) for decision in made[:1]] == [
        (REARRANGE, {"spout": 3, "split": 7, "count": 5})]
    assert made[0].reason == "43.2 ms could become 31.6 ms: least latency with 15 of 15 instances"
    assert made[0].changes == {"split": 7, "count": 5}


def test_more_instances_than_allowed_shrink() -> None:
    decider = Topology(loop(limits=Limits(c_max=6)), 9)
    decider.run([300] * 3)
    assert decider.tasks == 5 and decider.made[0].direction == SHRINK


def outcomes(topology: Topology) -> list[str]:
    return [decision.outcome for decision in topology.loop.decisions]


# -- goals out of reach ------------------------------------------------------------------------------------------------

def test_a_goal_that_is_not_possible_is_reported_once_with_what_is() -> None:
    topology = Topology(loop(limits=Limits(t_max_ms=5.0)), 4)
    topology.run([200] * 10)
    [decision] = topology.loop.decisions
    assert decision.outcome == INFEASIBLE and topology.tasks == 4
    assert decision.reason == ("t_max_ms = 5 is below the least possible latency of 10.001 ms, however many instances there "
                               "are. Possible: t_max_ms=10.001")
    assert topology.loop.standing == f"{decision.reason}; meanwhile: a=1, b=4 meet the goal"
    topology.run([400, 200, 400])
    assert outcomes(topology) == [INFEASIBLE], "the loop knows it, whatever the load"


def test_a_goal_out_of_reach_is_reported_again_if_it_was_possible_for_long() -> None:
    topology = Topology(loop(limits=Limits(c_max=4), patience=3), 3)
    topology.run([600, 200, 200, 600])
    assert outcomes(topology) == [INFEASIBLE]
    topology.run([200, 200, 200, 600])
    assert outcomes(topology) == [INFEASIBLE, INFEASIBLE]


def test_tasks_keep_up_and_shrink_while_the_latency_is_out_of_reach() -> None:
    """The loop aims at 12.5 ms, a quarter above the least possible latency."""
    topology = Topology(loop(limits=Limits(t_max_ms=5.0)), 4)
    topology.run([600] * 8)
    assert outcomes(topology) == [INFEASIBLE, SCALES] and topology.tasks == 9
    topology.run([300] * 16)
    assert outcomes(topology)[2:] == [SCALES] and topology.tasks == 5
    assert topology.loop.decisions[-1].helped is True


def test_as_much_as_possible_is_carried_with_too_few_instances() -> None:
    topology = Topology(loop(limits=Limits(c_max=4)), 1)
    topology.run([600] * 10)
    assert topology.tasks == 3 and topology.loop.decisions[0].reason.endswith("Possible: c_max=8")


def test_one_component_at_its_limit_leaves_the_others_as_many_tasks_as_they_can_use() -> None:
    """b passes on 300 of 900 tuples/s, so c, which needs a task for 100 of them, gets tasks for these."""
    decider = loop()

    def under(b: int, c: int) -> Network:
        stations = (Station("a", 1, least=1, most=1), Station("b", b, SERVICE, most=3), Station("c", c, SERVICE))
        return Network(stations, {("a", "b"): 1.0, ("b", "c"): 1.0}, {"a": 900.0})

    def decided(b: int, c: int, windows: int, begin: float) -> list[ElasticDecision]:
        return [decision for number in range(windows) for decision in
                decider.end_window(begin + number * WINDOW, ElasticWindow(0.0, WINDOW, under(b, c), 500.0))]

    infeasible, grown = decided(1, 1, 2, 0.0)
    assert infeasible.outcome == INFEASIBLE and "'b' can have at most 3 tasks" in infeasible.reason
    assert dict(grown.par) == {"a": 1, "b": 3, "c": 3}
    decider.enacted(grown, WINDOW)
    shrunk = decided(3, 9, 12, 100.0)[-1]
    assert shrunk.direction == SHRINK and dict(shrunk.par) == {"a": 1, "b": 3, "c": 5}


@pytest.mark.parametrize(("backlog", "tasks"), [(0, 8), (1500, 9), (10**9, 10)])
def test_growth_includes_the_capacity_to_work_off_a_backlog(backlog: int, tasks: int) -> None:
    """650 tuples/s need 8 tasks; 50 more a second work off 1,500 in half a minute; a quarter more is the most."""
    topology = Topology(loop(), 6)
    for _ in range(2):
        topology.window(650, backlog={"a": backlog})
    assert topology.tasks == tasks


def test_a_latency_above_the_goal_that_the_model_does_not_explain_makes_tasks_grow() -> None:
    """Five tasks would do by the model; by what is measured six are needed."""
    topology = Topology(loop(patience=3, cool_down=5), 5)
    topology.measured = 80.0
    topology.run([350] * 5)
    [decision] = topology.made
    assert decision.direction == GROWTH and topology.tasks == 6
    assert decision.reason.startswith("80.0 ms were measured, above the goal, though a=1, b=5 meet the goal: 7 instances")
    topology.measured = 11.0
    topology.run([350] * 20)
    assert topology.tasks == 6 and topology.loop.decisions[-1].helped is True
    topology.run([250] * 20)
    assert topology.tasks < 6, "a lower load needs fewer"


def test_a_latency_that_falls_while_a_backlog_is_worked_off_adds_no_tasks() -> None:
    topology = Topology(loop(patience=3, cool_down=5), 5)
    for topology.measured in (900.0, 800.0, 700.0, 600.0, 500.0, 400.0, 300.0, 200.0, 100.0, 15.0):
        topology.window(350)
    assert topology.tasks == 5


def test_an_idle_stream_shrinks_to_one_task() -> None:
    topology = Topology(loop(patience=2, cool_down=0), 7)
    topology.run([0] * 20)
    assert topology.tasks == 1 and [decision.direction for decision in topology.made] == [SHRINK] * 3


# -- backlogs ----------------------------------------------------------------------------------------------------------

class Drained(Topology):
    """A topology that works off a backlog as fast as its tasks can."""

    def __init__(self, loop: ElasticLoop, tasks: int, backlog: int) -> None:
        super().__init__(loop, tasks)
        self.backlog = backlog

    def drain(self, offered: float, windows: int) -> list[int]:
        """The numbers of tasks after each window."""
        numbers = []
        for _ in range(windows):
            carried = min(0.98 * self.tasks * SERVICE, offered + self.backlog / WINDOW)
            self.backlog = round(max(self.backlog + (offered - carried) * WINDOW, 0))
            self.window(offered, backlog={"a": self.backlog}, carried={"a": carried},
                        measured_ms=1000 * self.backlog / carried if carried else None)
            numbers.append(self.tasks)
        return numbers


MODELS = [("erstream", Limits(t_max_ms=100)), ("erstream", Limits(c_max=13)), ("ds2", Limits()), ("predictive", T_MAX)]


@pytest.mark.parametrize(("name", "limits"), MODELS)
@pytest.mark.parametrize("offered", [0.0, 10.0, 300.0])
def test_no_task_ends_while_a_backlog_waits(name: str, limits: Limits, offered: float) -> None:
    """It stands for long, so tasks are added for it: by a quarter of the load, and no further however long it stands."""
    topology = Drained(loop(name, limits), 8, 10**7)
    numbers = topology.drain(offered, 100)
    assert numbers == sorted(numbers) and 10 <= numbers[-1] <= 13, numbers
    assert len(topology.made) == 1 and "tuples wait at the sources" in topology.made[0].reason
    assert topology.loop.standing.endswith("tuples wait at the sources and are worked off")


@given(st.integers(0, 10**6), st.floats(0, 1500), st.integers(1, 20), st.sampled_from(MODELS))
@settings(max_examples=examples(30))
def test_tasks_end_only_when_no_backlog_is_left(backlog: int, offered: float, tasks: int, model: tuple[str, Limits]) -> None:
    topology = Drained(loop(*model, patience=3, cool_down=0), tasks, backlog)
    for _ in range(60):
        before, decided = topology.tasks, len(topology.made)
        topology.drain(offered, 1)
        forced = model[1].c_max is not None and before + 1 > model[1].c_max
        if len(topology.made) > decided and topology.tasks < before and not forced:
            assert topology.backlog <= 0.5 * max(offered, before * SERVICE)


def test_a_drained_source_is_idle_and_needs_one_task() -> None:
    topology = Drained(loop(patience=2, cool_down=0), 8, 20_000)
    assert topology.drain(0.0, 30)[-1] == 1 and topology.backlog == 0


@pytest.mark.parametrize(("name", "limits"), [("erstream", Limits(c_max=13)), ("ds2", Limits())])
def test_a_backlog_that_stands_makes_tasks_grow_though_the_model_finds_the_goal_met(name: str, limits: Limits) -> None:
    """The source offers as much as is carried: 20,000 tuples wait, and remain. Latency is no goal of these models."""
    topology = Topology(loop(name, limits, {"utilization": 1.0} if name == "ds2" else None), 4)
    for _ in range(8):
        topology.window(390, backlog={"a": 20_000}, carried={"a": 390.0})
    assert topology.tasks > 4


def test_a_backlog_that_no_task_works_on_changes_nothing() -> None:
    """A source that is stopped: more tasks are no use, and fewer would have to be started again."""
    topology = Topology(loop(), 4)
    for _ in range(20):
        topology.window(0, backlog={"a": 20_000}, measured_ms=None)
    assert topology.tasks == 4


def test_more_instances_than_allowed_shrink_to_the_limit_while_a_backlog_waits() -> None:
    topology = Topology(loop(limits=Limits(c_max=6)), 9)
    for _ in range(3):
        topology.window(0, backlog={"a": 10**6}, carried={"a": 880.0})
    assert topology.tasks == 5


def test_only_windows_that_count_must_be_steady() -> None:
    topology = Topology(loop(), 8)
    for offered in (450, 450, 450, 450, 450):
        topology.window(offered)
        topology.window(offered / 3, busy="tasks or key groups are being moved")
    topology.window(450)
    assert topology.tasks == 6


def test_windows_with_moves_do_not_count_and_leave_the_others_their_weight() -> None:
    topology = Topology(loop(), 3)
    topology.window(600)
    topology.window(600, busy="tasks or key groups are being moved")
    topology.window(600, settling=True)
    assert topology.tasks == 3
    topology.window(600)
    assert topology.tasks > 3


# -- what came of it ---------------------------------------------------------------------------------------------------

def test_growth_that_did_not_help_is_not_repeated_under_a_similar_load() -> None:
    topology = Topology(loop(), 6, measured=400.0)  # the bottleneck is elsewhere: the latency stays as it is
    topology.run([600] * 12)
    assert [decision.helped for decision in topology.loop.decisions] == [False] and topology.tasks == 8
    topology.tasks = 6  # as somebody scales it
    topology.run([620] * 12)
    assert topology.tasks == 6
    assert topology.loop.standing == "not repeated: decision 1 did not help under this load"
    topology.run([900] * 12)
    assert topology.tasks == 11, "another load is another situation"


def test_a_backlog_may_take_some_windows_to_be_worked_off() -> None:
    topology = Topology(loop(), 6, measured=400.0)
    topology.run([600] * 6)
    topology.measured = 15.0
    topology.run([600] * 2)
    assert topology.loop.decisions[-1].helped is True


def test_fewer_tasks_that_miss_the_goal_are_not_tried_again() -> None:
    topology = Topology(loop(patience=3, cool_down=5), 8)
    topology.run([450] * 4)
    assert topology.tasks == 6
    topology.measured = 60.0  # the model is wrong: with 6 it takes longer
    topology.run([450] * 5)
    assert topology.loop.decisions[0].helped is False and topology.tasks == 7
    topology.tasks, topology.measured = 8, 12.0
    assert topology.run([450] * 30) == [8] * 30
    assert topology.loop.standing == "as many tasks missed the goal at 450.0 tuples/s, by what was measured"


@pytest.mark.parametrize("bad", range(6))
def test_one_bad_window_does_not_condemn_fewer_tasks(bad: int) -> None:
    topology = Topology(loop(limits=Limits(t_max_ms=100)), 8, measured=20.0)
    topology.run([100] * 6)
    assert topology.tasks == 4
    topology.run([100])  # settling
    for number in range(6):
        topology.measured = 101.0 if number == bad else 20.0
        topology.window(100)
    assert (topology.loop.decisions[0].helped, topology.loop.decisions[0].measured_ms) == (True, 20.0)
    topology.measured = 20.0
    assert topology.run([100] * 20)[-1] == 2


def test_what_did_not_help_is_tried_again_later() -> None:
    """Both memories: of the decision for fewer tasks, and of tasks that were too few by what was measured."""
    topology = Topology(loop(patience=3, cool_down=5, retry_after=600), 8)
    topology.run([450] * 4)
    topology.measured = 60.0
    topology.run([450] * 5)
    assert topology.loop.decisions[0].helped is False and topology.tasks == 7
    topology.tasks, topology.measured = 8, 12.0
    assert topology.run([450] * 100) == [8] * 100
    assert topology.run([450] * 30)[-1] == 6, "ten minutes after"


def test_growth_that_did_not_help_is_tried_again_later() -> None:
    topology = Topology(loop(retry_after=300), 6, measured=400.0)
    topology.run([600] * 12)
    topology.tasks = 6
    assert topology.run([600] * 45) == [6] * 45
    assert topology.run([600] * 10)[-1] == 8


def test_a_decision_after_which_a_person_scales_otherwise_is_not_judged() -> None:
    """It was carried out: nothing says that it was not."""
    decider = loop()
    stations = (Station("a", 1, least=1, most=1), Station("b", 3, SERVICE), Station("c", 9, SERVICE))
    now = Network(stations, {("a", "b"): 1.0, ("a", "c"): 1.0}, {"a": 500.0})
    for number in range(2):
        made = decider.end_window(5.0 * number, ElasticWindow(5.0 * number, WINDOW, now, 500.0))
    decider.enacted(made[-1], 5.0)
    par = {**made[-1].par, "c": 12}
    then = replace(now, stations=tuple(replace(station, tasks=par[station.name]) for station in stations))
    for number in range(2, 4):
        known = decider.end_window(5.0 * number, ElasticWindow(5.0 * number, WINDOW, then, 12.0))
    assert known[0].outcome == SUPERSEDED and known[0].helped is None
    assert known[0].reason.endswith(f"(not judged: there are a=1, b={par['b']}, c=12 by now)")


def test_fewer_tasks_are_a_mistake_if_more_are_needed_at_once() -> None:
    """The correction learns that the goal is missed, before the decision is judged."""
    decider = loop(patience=8, cool_down=0)
    topology = Topology(decider, 8)
    topology.run([450] * 9)
    assert topology.tasks == 6
    slow = replace(network(450, 6), factor=1.9)
    for number in range(2):
        found = decider.end_window(100.0 + number, ElasticWindow(100.0 + number, WINDOW, slow, 25.0))
    assert [(decision.direction, decision.helped) for decision in found] == [(SHRINK, False), (GROWTH, None)]


def test_a_change_that_was_not_carried_out_is_recorded_and_may_be_tried_again() -> None:
    decider = loop(cool_down=20)
    topology = Topology(decider, 3)
    topology.run([500] * 2)
    topology.tasks = 3  # rolled back
    topology.run([500] * 8)
    assert decider.decisions[0].outcome == REFUSED
    assert decider.decisions[0].reason.endswith("(not carried out: there are a=1, b=3)")
    assert len(topology.made) > 1


def test_a_refusal_of_the_master_is_recorded_and_cools_down() -> None:
    decider = loop(cool_down=30)
    for number in range(2):
        made = decider.end_window(5.0 * number, ElasticWindow(0.0, WINDOW, network(900, 3), None))
    refused = decider.refused(made[-1], "no slot has room", 5.0)
    assert refused.outcome == REFUSED and refused.reason.endswith("(no slot has room)") and decider.decisions[-1] is refused
    assert decider.end_window(10.0, ElasticWindow(0.0, WINDOW, network(900, 3), None)) == []
    assert decider.standing == "cooling down for 25 s"


def test_earlier_decisions_are_remembered_and_numbering_continues() -> None:
    before = Topology(loop(), 6, measured=400.0)
    before.run([600] * 12)
    data = json.loads(json.dumps([decision.to_json() for decision in before.loop.decisions]))
    past = [ElasticDecision.from_json(row) for row in data]
    assert past == list(before.loop.decisions)
    after = Topology(ElasticLoop("t", before.loop.choice, ElasticPolicy(), count(past[-1].number + 1)), 6)
    after.loop.remember(past)
    after.run([600] * 3)
    assert [decision.number for decision in after.made] == [2], "a model that was chosen anew may try again"


def test_predictive_grows_before_the_peak() -> None:
    """The load has risen from 200 to 600 twice, every 24 windows; the third time the tasks are there before it."""
    season = [200.0] * 12 + [600.0] * 12
    decider = loop("predictive", parameters={"horizon": 30.0, "season": 120.0}, patience=4)
    topology = Topology(decider, 4)
    numbers = topology.run(season * 3)
    reacted, foreseen = numbers[24:48], numbers[48:72]
    assert reacted[12] < 7 and foreseen[11] >= 7, (reacted, foreseen)


# -- what no steady stream has -----------------------------------------------------------------------------------------

def slow(service: float, tasks: int, offered: float = 500.0) -> Network:
    return Network((Station("a", 1, least=1, most=1), Station("b", tasks, service)), {("a", "b"): 1.0}, {"a": offered})


@pytest.mark.parametrize(("name", "limits"), [("erstream", T_MAX), ("ds2", Limits()), ("predictive", T_MAX)])
def test_a_service_that_times_out_does_not_start_thousands_of_tasks(name: str, limits: Limits) -> None:
    """A call takes 30 s instead of 10 ms, for ten minutes. By the usual rate, 6 tasks would do; by a quarter of it, some 25."""
    topology = Topology(loop(name, limits), 10)
    topology.run([500] * 10)
    before, most = topology.tasks, 0
    for _ in range(120):
        topology.window(500, network=slow(1 / 30, topology.tasks), measured_ms=None, carried={"a": topology.tasks / 30})
        most = max(most, topology.tasks)
    assert before < most <= 60


def test_a_component_gets_at_most_four_times_its_tasks_at_once() -> None:
    topology = Topology(loop(), 1)
    numbers = topology.run([2000] * 40)
    assert sorted(set(numbers)) == [1, 4, 16, numbers[-1]] and numbers[-1] > 20
    assert topology.made[0].reason.endswith("; 5 at first") and topology.made[0].expected_ms is None


def test_growth_that_could_not_yet_be_enough_is_judged_by_what_is_processed() -> None:
    topology = Topology(loop(max_growth=2), 2)
    for _ in range(40):
        carried = min(2000.0, topology.tasks * SERVICE)
        topology.window(2000, carried={"a": carried})
    assert topology.tasks > 20 and all(decision.helped for decision in topology.loop.decisions)
    stuck = Topology(loop(max_growth=2), 2)
    for _ in range(40):
        stuck.window(2000, carried={"a": 150.0})  # something else is the limit
    assert stuck.tasks == 4 and [decision.helped for decision in stuck.loop.decisions] == [False]


def test_ds2_is_judged_by_its_own_goal() -> None:
    """More tasks hardly lower the latency, and that is no goal: the load rises further, and so do they."""
    topology = Topology(loop("ds2", Limits(), patience=3), 40)
    for offered in (3300, 3700, 3900, 4300):
        topology.run([offered] * 12)
        assert topology.tasks * SERVICE * 0.8 >= offered, (offered, topology.loop.standing)
    assert all(decision.helped for decision in topology.loop.decisions)


def test_fewer_tasks_of_ds2_that_are_too_busy_did_not_help() -> None:
    """With fewer tasks, each is slower: they share something."""
    topology = Topology(loop("ds2", Limits(), patience=3, cool_down=5), 10)
    topology.run([450] * 4)
    assert topology.tasks == 7
    for _ in range(6):
        topology.window(450, network=slow(60.0, topology.tasks, 450.0))
    assert topology.made[0].direction == SHRINK and topology.loop.decisions[0].helped is False


def test_nothing_is_said_of_a_decision_as_long_as_nothing_is_measured() -> None:
    topology = Topology(loop(), 4)
    topology.run([600] * 2)
    for _ in range(20):
        topology.window(600, measured_ms=None)
    assert topology.tasks == 8 and topology.loop.decisions[-1].helped is None
    topology.run([600] * 2)
    assert topology.loop.decisions[-1].helped is True


def test_tasks_do_not_come_and_go_for_ever_under_one_load() -> None:
    """The measured rate of one task depends on how many there are: each number of tasks calls for another."""
    topology = Topology(loop("ds2", Limits(), patience=2, cool_down=0, settle_windows=1), 6)
    for _ in range(600):
        busy = slow(100.0 if topology.tasks >= 6 else 70.0, topology.tasks, 400.0)
        topology.window(400, network=busy)
    assert len(topology.made) <= 3, [(decision.direction, dict(decision.par)) for decision in topology.made]


def test_advice_is_given_once() -> None:
    topology = Topology(loop(dry_run=True, cool_down=10), 3)
    topology.run([500] * 60)
    assert outcomes(topology) == [ADVISED_ONLY] and topology.loop.standing == "advised by decision 1"
    topology.run([900, 900, 500, 500] * 60)
    assert outcomes(topology) == [ADVISED_ONLY] * 2, "each of the two once, however often the load changes"


def test_refusals_become_rarer() -> None:
    decider, refused = loop(cool_down=20), []
    for number in range(720):  # an hour
        for decision in decider.end_window(WINDOW * number, ElasticWindow(WINDOW * number, WINDOW, network(900, 3), None)):
            decider.refused(decision, "no slot has room", WINDOW * number)
            refused.append(WINDOW * number)
    waits = [after - before for before, after in itertools.pairwise(refused)]
    assert len(refused) <= 9 and waits == sorted(waits)
