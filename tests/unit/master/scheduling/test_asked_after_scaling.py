"""The scheduler is asked after three whole windows that follow a change of parallelism."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.control.events import Event, Killed, Moved, Rescaled, Say, Submitted, WorkerJoined, WorkerReported
from millrace.control.master_state import MasterState
from millrace.control.scheduling.schedule_generator import ASKED, Choice
from millrace.master.scheduling.loop import NOTHING_CHOSEN, SchedulingLoop
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, Input, StreamDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.sample import WindowSample
from millrace.model.situation import Situation
from millrace.schedulers.registry import make_scheduler

SECONDS = 20.0


def graph(name: str = "t") -> TopologyGraph:
    return TopologyGraph(name, (
        ComponentDef("lines", "spout", "m:C", 1, {}, (StreamDef("default", ("line",)),), (), False, "next_tuple",
                     movable=True),
        ComponentDef("work", "bolt", "m:C", 2, {}, (), (Input("lines", "default", Grouping.SHUFFLE),), False, "process"),
    ), {"topology.guarantee": "at-most-once"})


class Run:
    """A loop whose scheduler only notes why it is asked, with the master's decisions about resident topologies."""

    def __init__(self, *graphs: TopologyGraph, scheduler: str = "tstorm") -> None:
        self.state, self.asked, self.now = MasterState(), list[str](), 1000.0
        for slot in range(2):
            self.tell(WorkerJoined(slot, slot + 1, Node("host", 4, 1000.0, 4096), "boot", "e", f"ipc {slot}", ""))
        for each in graphs or (graph(),):
            self.tell(Submitted(each))
        self.report()
        self.loop = SchedulingLoop("c", {"history.url": "none"}, self)  # type: ignore[arg-type]
        if scheduler:
            self.loop.generator.set(Choice.of(scheduler, make_scheduler(scheduler)), self.loop.generator.policy)
        self.loop._ask = self.ask  # type: ignore[method-assign]
        self.window()
        self.asked.clear()  # it is asked when it is chosen

    def ask(self, situation: Situation, trigger: str) -> None:
        self.asked.append(trigger)

    def tell(self, event: Event) -> None:
        self.state.handle(event, self.now)

    def say(self, message: Say) -> None:
        raise AssertionError(message)

    def report(self) -> None:
        """Every worker has carried out the newest plan."""
        for slot, worker in list(self.state.workers.items()):
            in_flight = tuple((topology.number, 0) for topology in self.state.topologies.values())
            self.tell(WorkerReported(slot, worker.address.generation, self.state.revision, in_flight))

    def window(self, settling: Iterable[TaskId] = ()) -> None:
        self.now += SECONDS
        loads = {name: Load(SECONDS, dict.fromkeys(topology.graph.tasks(), TaskLoad(executed=100)), settling=tuple(settling))
                 for name, topology in self.state.topologies.items()}
        self.loop._schedule(self.now, WindowSample(self.now, SECONDS, loads))

    def windows(self, count: int) -> None:
        for _ in range(count):
            self.window()

    def scale(self, tasks: int, name: str = "t") -> None:
        """Begin the change and let the workers report until it is over."""
        self.tell(Rescaled(name, {"work": tasks}))
        for _ in range(20):
            self.report()
        assert self.state.topologies[name].scaling is None

    def new_tasks(self, first: int, last: int) -> list[TaskId]:
        return [TaskId("work", index) for index in range(first, last)]


def test_it_is_asked_at_the_end_of_the_third_whole_window() -> None:
    run = Run()
    run.window()
    assert run.asked == []
    run.scale(4)
    run.window(settling=run.new_tasks(2, 4))
    run.windows(2)
    assert run.asked == [], "the new tasks ran for a part of the first window only"
    run.window()
    assert run.asked == [ASKED]
    run.windows(4)
    assert run.asked == [ASKED], "once"


def test_windows_before_another_change_do_not_count() -> None:
    run = Run(graph("t"), graph("u"))
    run.scale(4)
    run.windows(2)
    run.scale(6)
    run.windows(2)
    assert run.asked == []
    run.scale(4, "u")
    run.windows(2)
    assert run.asked == [], "the other one has run for two only"
    run.window()
    assert run.asked == [ASKED]


def test_a_window_that_does_not_count_does_not_begin_the_count_anew() -> None:
    run = Run()
    run.scale(4)
    run.windows(2)
    run.window(settling=run.new_tasks(0, 1))
    assert run.asked == []
    run.window()
    assert run.asked == [ASKED]


def test_it_is_asked_after_the_change_of_a_topology_that_runs_in_batches() -> None:
    run = Run(replace(graph(), batched=True, config={"topology.guarantee": "exactly-once"}))
    run.scale(4)
    run.windows(3)
    assert run.asked == [ASKED]


def test_it_is_not_asked_before_the_change_is_over() -> None:
    run = Run()
    run.tell(Rescaled("t", {"work": 4}))
    run.windows(4)
    assert run.asked == [] and run.state.topologies["t"].scaling is not None
    for _ in range(20):
        run.report()
    run.windows(2)
    assert run.asked == []
    run.window()
    assert run.asked == [ASKED]


def test_it_is_not_asked_while_tasks_move() -> None:
    run = Run(graph("t"), graph("u"))
    run.scale(4)
    task = TaskId("work", 0)
    run.tell(Moved("u", task, 1 - run.state.topologies["u"].places[task].slot))
    assert not run.state.topologies["u"].handover.at_rest
    run.windows(4)
    assert run.asked == []
    run.tell(Killed("u", 0.0, run.now))
    while "u" in run.state.topologies:
        run.report()
    run.window()
    assert run.asked == [ASKED]


def test_without_a_scheduler_nobody_is_asked() -> None:
    run = Run(scheduler="")
    assert run.loop.generator.choice is NOTHING_CHOSEN
    run.scale(4)
    run.windows(4)
    assert run.asked == []


def test_the_cool_down_is_kept_and_then_it_is_asked() -> None:
    run = Run()
    generator = run.loop.generator
    generator.policy = generator.policy.changed({"cool_down": 5 * SECONDS})
    generator.enacted(generator.failed("", ASKED, 0.0), run.now)
    run.scale(4)
    run.windows(4)
    assert run.asked == []
    run.window()
    assert run.asked == [ASKED]


@pytest.mark.parametrize("change", [lambda run: run.scale(2), lambda run: run.tell(Submitted(graph("u")))])
def test_nothing_else_makes_it_due(change: Any) -> None:
    run = Run()
    change(run)
    run.report()
    run.windows(4)
    assert run.asked == []


def test_a_topology_that_ended_is_forgotten() -> None:
    run = Run()
    run.scale(4)
    run.tell(Killed("t", 0.0, run.now))
    while run.state.topologies:
        run.report()
    run.loop.forget("t")
    run.tell(Submitted(graph()))
    run.report()
    run.windows(4)
    assert run.asked == []
