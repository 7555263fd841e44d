"""Elasticity in the master: windows, decisions that are carried out or refused, and requests of users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.control.events import ElasticChosen, Event, Rescaled, Say
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import RUNNING, STARTING
from millrace.elastic.elastic_decision import ElasticDecision
from millrace.errors import BadParameter, TopologyError, UnknownName, UnknownTopology
from millrace.master.scheduling.elastic import Elasticity
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph, batched
from millrace.model.load import Latency, Load, TaskLoad
from millrace.model.rescaling import rescaled
from millrace.model.sample import WindowSample

SECONDS = 5.0
SERVICE = 0.01  # seconds per tuple of work


def graph(name: str = "t", tasks: int = 2) -> TopologyGraph:
    return TopologyGraph(name, (
        ComponentDef("lines", "spout", "m:C", 1, {}, (), (), False, "next_tuple"),
        ComponentDef("work", "bolt", "m:C", tasks, {}, (), (Input("lines", "default", Grouping.SHUFFLE),), False, "process"),
    ), {})


def load(graph: TopologyGraph, rate: float, latency_ms: float = 12.0, settling: tuple[TaskId, ...] = ()) -> Load:
    """The load of `rate` tuples a second: the work goes to its tasks in equal shares, up to what they can do."""
    tasks = graph.component("work").par
    done = min(rate, 0.98 * tasks / SERVICE) * SECONDS
    each = TaskLoad(executed=int(done / tasks), busy_seconds=done / tasks * SERVICE,
                    process_latency_ms=Latency(latency_ms, latency_ms, latency_ms))
    spout = TaskLoad(emitted=int(done), offered=int(rate * SECONDS), lag=max(int(rate * SECONDS - done), 0), acked=int(done),
                     busy_seconds=0.1, complete_latency_ms=Latency(latency_ms, latency_ms, latency_ms))
    work = [TaskId("work", index) for index in range(tasks)]
    return Load(SECONDS, {TaskId("lines", 0): spout, **dict.fromkeys(work, each)},
                {(TaskId("lines", 0), task): done / tasks for task in work}, settling)


class FakeMaster:
    """Scales at once, unless it is to refuse."""

    def __init__(self, *graphs: TopologyGraph) -> None:
        self.topologies: dict[str, TopologyState] = {}
        self.said: list[Say] = []
        self.told: list[Event] = []
        self.refuses = ""
        for number, made in enumerate(graphs):
            self.topologies[made.name] = topology = TopologyState(number, made)
            topology.become(STARTING)
            topology.become(RUNNING)

    @property
    def state(self) -> Any:
        return self

    def topology(self, name: str) -> TopologyState:
        if name not in self.topologies:
            raise UnknownTopology(name)
        return self.topologies[name]

    def tell(self, event: Event) -> None:
        if isinstance(event, ElasticChosen):
            self.topologies[event.name].elastic = event.setting
            return
        assert isinstance(event, Rescaled)
        if self.refuses:
            raise TopologyError(self.refuses)
        self.told.append(event)
        self.topologies[event.name].graph = rescaled(self.topologies[event.name].graph, event.par)

    def say(self, message: Say) -> None:
        self.said.append(message)

    def call(self, work: Callable[[], Any]) -> Any:
        return work()


class Run:
    def __init__(self, *graphs: TopologyGraph) -> None:
        self.master, self.now, self.kept = FakeMaster(*(graphs or (graph(),))), 0.0, dict[int, ElasticDecision]()
        self.elastic = Elasticity(self.master, self.keep)

    def keep(self, decision: ElasticDecision) -> None:
        self.kept[decision.number] = decision

    def windows(self, rate: float, count: int, **more: Any) -> None:
        for _ in range(count):
            self.now += SECONDS
            loads = {name: load(topology.graph, rate, **more) for name, topology in self.master.topologies.items()}
            sample = self.elastic.predict(WindowSample(1e9 + self.now, SECONDS, loads))
            self.elastic.end_window(self.now, sample)

    @property
    def tasks(self) -> int:
        return self.master.topologies["t"].graph.component("work").par


def test_a_topology_grows_with_its_load_and_shrinks_again() -> None:
    run = Run()
    run.elastic.choose(None, "erstream", {"t_max_ms": 40, "cool_down": 0})
    run.windows(120, 5)
    assert run.tasks == 2 and run.elastic.settings()["topologies"]["t"]["standing"] == "lines=1, work=2 meet the goal"
    run.windows(480, 3)
    assert run.tasks == 6, "by the offered rate, though two tasks process less than 200 tuples/s"
    [event] = run.master.told
    assert isinstance(event, Rescaled) and event.par == {"work": 6}
    assert str(event.cause).startswith("elastic: erstream, decision 1: work cannot keep up with 480.0 tuples/s")
    run.windows(480, 3)
    assert run.kept[1].helped is True and run.kept[1].measured_ms is not None
    run.windows(120, 20)
    assert run.tasks == 2
    shown = run.elastic.settings("t")["topologies"]["t"]
    assert (shown["model"], shown["limits"], shown["instances"]) == ("erstream", {"t_max_ms": 40.0}, 3)
    assert shown["last_decision"]["direction"] == "shrink"
    assert [row["number"] for row in run.elastic.past(10)] == sorted(run.kept) and run.elastic.past(10, "other") == []


def test_predictions_are_made_without_a_model_and_learn_from_what_is_measured() -> None:
    run = Run()
    run.windows(100, 1, latency_ms=30.0)
    first = run.elastic.predictions["t"]
    assert first.predicted_ms == first.model_ms and first.measured_ms == pytest.approx(30, abs=0.1)
    run.windows(100, 20, latency_ms=30.0)
    then = run.elastic.predictions["t"]
    assert then.model_ms == first.model_ms and then.predicted_ms == pytest.approx(30, rel=0.03)
    assert run.elastic.window_seconds is None and run.master.told == [] and run.elastic.models() == {}


def test_nothing_is_learned_from_tasks_that_cannot_keep_up() -> None:
    run = Run()
    run.windows(480, 5, latency_ms=500.0)
    run.windows(100, 1)
    assert run.elastic.predictions["t"].predicted_ms == run.elastic.predictions["t"].model_ms


def test_while_a_migration_runs_nothing_changes() -> None:
    run = Run()
    run.elastic.choose("t", "ds2", {})
    busy: Any = type("UnderWay", (), {"strategy": "ccr"})()
    run.master.topologies["t"].migration = busy
    run.windows(480, 10)
    assert run.tasks == 2 and run.elastic.settings()["topologies"]["t"]["standing"] == "it is being migrated by ccr"
    run.master.topologies["t"].migration = None
    run.windows(480, 2)
    assert run.tasks == 7


@pytest.mark.parametrize("held", ["spouts_wait", "resting"])
def test_while_spouts_are_held_nothing_changes(held: str) -> None:
    """The store is down, or a worker restarts: the source goes on, and no task can do anything about it."""
    run = Run()
    run.elastic.choose("t", "erstream", {"t_max_ms": 40})
    run.windows(120, 5)
    setattr(run.master.topologies["t"], held, True)
    run.windows(480, 20)
    assert run.tasks == 2 and run.elastic.settings()["topologies"]["t"]["standing"].startswith("its spouts wait")
    setattr(run.master.topologies["t"], held, False)
    run.windows(480, 3)
    assert run.tasks == 6


def test_an_error_in_one_loop_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(graph("t"), graph("u"))
    for name in ("t", "u"):
        run.elastic.choose(name, "ds2", {})

    def fails(now: float, window: Any) -> Any:
        raise ValueError("of t")

    run.windows(480, 1)
    monkeypatch.setattr(run.elastic._loops["t"], "end_window", fails)
    with pytest.raises(ValueError, match="of t"):
        run.windows(480, 1)
    assert [event.name for event in run.master.told if isinstance(event, Rescaled)] == ["u"]


def test_one_tuple_on_a_rare_branch_does_not_stop_the_loop() -> None:
    rare = TopologyGraph("t", (*graph().components, ComponentDef(
        "alerts", "bolt", "m:C", 1, {}, (), (Input("work", "default", Grouping.SHUFFLE),), False, "process")), {})
    run, alerts = Run(rare), TaskId("alerts", 0)
    run.elastic.choose("t", "erstream", {"t_max_ms": 60})
    for number in range(60):
        run.now += SECONDS
        made, one = load(run.master.topologies["t"].graph, 480.0 if number >= 30 else 120.0), number in (3, 20)
        made = replace(made, tasks={**made.tasks, alerts: TaskLoad(executed=int(one), busy_seconds=0.001 * one)},
                       traffic={**made.traffic, **({(TaskId("work", 0), alerts): 1.0} if one else {})})
        run.elastic.end_window(run.now, run.elastic.predict(WindowSample(1e9 + run.now, SECONDS, {"t": made})))
        assert run.tasks == 2 or number > 30
    assert run.tasks >= 5


@pytest.mark.parametrize(("model", "goal"), [("erstream", {"t_max_ms": 100}), ("ds2", {})])
def test_a_source_that_is_only_drained_is_not_idle(model: str, goal: dict[str, Any]) -> None:
    """A file: nothing is added to it, so that it offers nothing, and the tasks are at their limit."""
    run, lag = Run(graph(tasks=8)), 1_000_000
    run.elastic.choose("t", model, goal)
    for _ in range(40):
        run.now += SECONDS
        made = load(run.master.topologies["t"].graph, 10_000.0)
        lines = made.tasks[TaskId("lines", 0)]
        lag -= lines.emitted
        made = replace(made, tasks={**made.tasks, TaskId("lines", 0): replace(lines, offered=0, lag=lag)})
        sample = run.elastic.predict(WindowSample(1e9 + run.now, SECONDS, {"t": made}))
        run.elastic.end_window(run.now, sample)
        shown = sample.predictions["t"]
        assert shown.measured_ms == pytest.approx(1000 * SECONDS * lag / lines.emitted, rel=0.01) and shown.predicted_ms is None
    assert 8 < run.tasks <= 13
    assert run.elastic.settings()["topologies"]["t"]["standing"] == f"{lag:,} tuples wait at the sources and are worked off"


def test_a_dry_run_says_so() -> None:
    run = Run()
    run.elastic.choose("t", "ds2", {"dry_run": True})
    run.windows(480, 2)
    assert run.tasks == 2 and run.master.said[-1].text.startswith("would be scaled to work=7: work cannot keep up")


def test_a_refusal_of_the_master_is_reported_and_recorded() -> None:
    run = Run()
    run.elastic.choose("t", "ds2", {})
    run.master.refuses = "no slot has room"
    run.windows(480, 2)
    assert run.master.said[-1].text == "not scaled as ds2 decided: no slot has room"
    assert run.kept[1].outcome == "refused" and run.kept[1].reason.endswith("(no slot has room)")


def test_a_goal_that_is_out_of_reach_later_is_reported_once() -> None:
    run = Run()
    run.elastic.choose("t", "erstream", {"c_max": 4})
    run.windows(480, 10)
    assert [message.text for message in run.master.said[1:]] == [
        "the elastic goal is out of reach: 6 instances are the fewest that keep up with 480.0 tuples/s (lines=1, work=5), and "
        "c_max is 4. Possible: c_max=6"]


# -- requests ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("model", "values", "error", "words"), [
    ("magic", {}, UnknownName, "there are erstream, ds2, predictive"),
    ("erstream", {}, BadParameter, "needs a goal"),
    ("erstream", {"t_max_ms": 20, "gamma": 2}, BadParameter,
     "no parameter 'gamma'; it has c_max, t_max_ms, and the loop has period, cool_down"),
    ("ds2", {"utilization": 7}, BadParameter, "out of range"),
    ("ds2", {"patience": 0}, BadParameter, "patience = 0 is out of range"),
    ("erstream", {"c_max": 1}, BadParameter, "3 instances are the fewest .* possible: c_max=3"),
    ("erstream", {"c_max": 2}, BadParameter, "3 instances are the fewest .* possible: c_max=3"),
    ("erstream", {"t_max_ms": 5}, BadParameter, r"below the least possible latency of 9\.\d+ ms.* possible: t_max_ms=9\.\d+$"),
])
def test_what_is_known_to_be_wrong_is_refused_at_once(model: str, values: dict[str, Any], error: type[Exception],
                                                      words: str) -> None:
    run = Run()
    run.windows(120, 3)
    with pytest.raises(error, match=words):
        run.elastic.choose(None, model, values)
    assert run.elastic.models() == {} and run.master.said == []


def test_a_goal_that_cannot_be_checked_yet_is_said_to_be_unchecked() -> None:
    run = Run()
    with pytest.raises(BadParameter, match=r"at least 2 tasks together. Nothing has changed; possible: c_max=2"):
        run.elastic.choose(None, "erstream", {"c_max": 1})
    run.elastic.choose(None, "erstream", {"t_max_ms": 1})
    assert run.master.said[-1].text.endswith("from now on; whether that is possible is known when the load has been measured")


def test_the_topology_must_be_named_if_there_are_several() -> None:
    run = Run(graph("t"), graph("u"))
    with pytest.raises(UnknownTopology, match="choose a topology with --topology; running: t, u"):
        run.elastic.choose(None, "ds2", {})
    run.elastic.choose("u", "ds2", {"period": 2})
    assert run.elastic.models() == {"u": "ds2"} and run.elastic.window_seconds == 2
    assert list(run.elastic.settings()["topologies"]) == ["t", "u"]
    run.elastic.off("u")
    assert run.elastic.models() == {} and run.elastic.window_seconds is None
    assert run.master.said[-1].text == "no longer scaled by itself"


def test_topologies_that_run_in_batches_are_refused() -> None:
    run = Run()
    run.master.topologies["t"] = TopologyState(1, batched(graph()))
    with pytest.raises(TopologyError, match="runs in batches"):
        run.elastic.choose("t", "ds2", {})


def test_predictive_is_chosen_when_its_library_is_imported() -> None:
    run = Run()
    chosen = run.elastic.choose("t", "predictive", {"t_max_ms": 40, "horizon": 30})
    assert chosen.result(timeout=60)["topologies"]["t"]["parameters"] == {"horizon": 30.0, "season": 0.0}


def test_a_season_that_cannot_be_seen_is_refused_and_nothing_changes() -> None:
    run = Run()
    chosen = run.elastic.choose("t", "predictive", {"t_max_ms": 40, "season": 6, "period": 5})
    with pytest.raises(BadParameter, match="season = 6 is shorter than two windows of 5 s"):
        chosen.result(timeout=60)
    assert run.elastic.models() == {} and run.master.topologies["t"].elastic is None


def test_a_topology_with_a_short_period_leaves_the_windows_of_others_as_they_are() -> None:
    """Load windows of two and a half seconds are joined: `t` needs two windows of five."""
    run = Run(graph("t"), graph("u"))
    run.elastic.choose("t", "ds2", {})
    run.elastic.choose("u", "ds2", {"period": 2.5})
    assert run.elastic.window_seconds == 2.5
    scaled = []
    for number in range(1, 5):
        loads = {name: replace(load(topology.graph, 240), window_seconds=2.5) for name, topology in
                 run.master.topologies.items()}
        sample = WindowSample(1e9 + number, 2.5, loads)
        run.elastic.end_window(2.5 * number, run.elastic.predict(sample))
        scaled.append([event.name for event in run.master.told if isinstance(event, Rescaled)])
    assert scaled == [[], ["u"], ["u"], ["u", "t"]]


def test_decisions_of_earlier_masters_are_remembered() -> None:
    before = Run()
    before.elastic.choose("t", "ds2", {})
    before.windows(480, 2)
    run = Run()
    run.elastic.remember(before.elastic.past(5))
    run.elastic.choose("t", "ds2", {})
    run.windows(480, 2)
    assert [row["number"] for row in run.elastic.past(10)] == [1, 2]


def test_a_topology_that_ended_is_forgotten() -> None:
    run = Run()
    run.elastic.choose("t", "ds2", {})
    run.windows(100, 1)
    run.elastic.forget("t")
    assert run.elastic.models() == {} and run.elastic.predictions == {}
