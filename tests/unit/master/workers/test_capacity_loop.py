"""The number of workers follows loads that are given values, with processes that only exist on paper."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.control.events import Say, Submitted, WorkerLost
from millrace.control.scheduling.capacity import NOBODY_USES_IT
from millrace.control.scheduling.schedule_generator import Choice, Policy, ScheduleGenerator
from millrace.errors import BadParameter, MillraceError, NoRoom, NotEnoughSlots, NotTheAuthor
from millrace.master.scheduling.loop import NOTHING_CHOSEN
from millrace.master.workers.capacity import LOOK_SECONDS, REFUSED_SECONDS, WAIT_SECONDS, CapacityLoop
from millrace.master.workers.pool import WorkerPool
from millrace.model.graph import ACKER, ComponentDef, Input, StreamDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from support.paper_workers import PaperMaster, PaperSupply

SECONDS = 60.0  # a safety limit, never a measure
AUTO = {"worker.auto.min": 1, "worker.auto.max": 3, "worker.auto.idle.secs": 5.0, "worker.auto.cooldown.secs": 10.0}


class Measured:
    """The part of the scheduling loop that the control uses."""

    def __init__(self) -> None:
        self.generator = ScheduleGenerator(Choice("even", {}, 300.0), Policy())
        self.sample: WindowSample | None = None
        self.asking, self.unplaced, self.told = False, "", 0
        self.elastic = SimpleNamespace(grows=False)

    def workers_joined(self) -> None:
        self.told, self.unplaced = self.told + 1, ""


class RefusingSupply(PaperSupply):
    """Has room only if `room` is True."""

    room = True

    def add(self, count: int) -> tuple[int, ...]:
        if not self.room:
            raise NotEnoughSlots(f"{count} more workers were requested, but 0 of the 4 cores of Spark's executors are free")
        return super().add(count)


class RecordingPool(WorkerPool):
    """Keeps the answers to requests."""

    def __init__(self, master: PaperMaster) -> None:
        super().__init__(master)
        self.answers: list[Future[dict[str, Any]]] = []

    def add(self, count: int) -> Future[dict[str, Any]]:
        self.answers.append(super().add(count))
        return self.answers[-1]

    def remove(self, slot: int, who: str = "person") -> Future[dict[str, Any]]:
        self.answers.append(super().remove(slot, who))
        return self.answers[-1]


class AutoMaster(PaperMaster):
    """A paper master with the control of the number of workers. It has a topology of one spout and three bolts."""

    def __init__(self, workers: int = 1, settings: dict[str, Any] | None = None, spout_moves: bool = True) -> None:
        super().__init__(workers)
        self.pool: RecordingPool = RecordingPool(self)
        self.supply = self.pool.supply = RefusingSupply(self)
        self.scheduling: Any = Measured()
        self.capacity = CapacityLoop(AUTO if settings is None else settings, self)
        self.said: list[Say] = []
        self.now = 0.0
        streams = (StreamDef("default", ("line",)),)
        parts = (ComponentDef("lines", "spout", "m:C", 1, {}, streams, (), False, "next_tuple", movable=spout_moves),
                 ComponentDef("out", "bolt", "m:C", 3, {}, (), (Input("lines", "default", Grouping.SHUFFLE),), False,
                              "process"))
        self.tell(Submitted(TopologyGraph("words", parts, {"topology.guarantee": "at-least-once"})))
        self.quiet(0.0)

    def say(self, message: Say) -> None:
        self.said.append(message)

    def measured(self, busy: float, ends: bool = True) -> None:
        """A window ends in which each worker that has tasks was busy for this share of the time, by all its tasks equally."""
        topology = self.state.topologies["words"]
        own = {slot: [task for task, place in topology.places.items() if place.slot == slot and task.component != ACKER]
               for slot in self.state.workers}
        tasks = {task: TaskLoad(busy_seconds=busy / len(on_slot)) for on_slot in own.values() for task in on_slot}
        workers = {slot: WorkerLoad("host", busy=busy if own[slot] else 0.0) for slot in self.state.workers}
        self.scheduling.sample = WindowSample(0.0, 1.0, {"words": Load(1.0, tasks)}, {}, workers,
                                              {"host": NodeLoad(0.0, 4000.0)})
        self.later(LOOK_SECONDS, ends)

    def later(self, seconds: float, ends: bool = True) -> None:
        """Time passes. `ends`: a request that follows is fulfilled; that is not possible on paper if tasks must move first."""
        self.now += seconds
        begun = len(self.pool.answers)
        self.capacity.tick(self.now)
        if ends and len(self.pool.answers) > begun:
            self.quiet(self.now)
            self.pool.answers[-1].exception(SECONDS)
            self.capacity.tick(self.now)

    @property
    def slots(self) -> list[int]:
        return sorted(self.state.workers)

    def texts(self) -> list[str]:
        return [message.text for message in self.said]


def test_an_overload_that_lasts_adds_a_worker() -> None:
    master = AutoMaster()
    master.measured(0.99)
    assert master.slots == [0]
    master.measured(0.99)
    assert master.slots == [0, 1]
    assert master.texts() == ["1 more worker is requested: worker 0 is busy for 99% of the time", "worker 1 added"]
    assert {message.cause for message in master.said} == {"workers auto"}
    assert master.scheduling.told == 1, "the scheduler is to use it"
    assert not master.capacity.warning


def test_a_window_in_which_tasks_moved_does_not_count() -> None:
    master = AutoMaster()
    moved = TaskId("out", 0)
    for _ in range(3):
        load = Load(1.0, {moved: TaskLoad(busy_seconds=0.5)}, settling=(moved,))
        master.scheduling.sample = WindowSample(0.0, 1.0, {"words": load}, {}, {0: WorkerLoad("host", busy=0.99)}, {})
        master.later(LOOK_SECONDS)
    assert master.slots == [0]


@pytest.mark.parametrize(("used", "slots"), [(3000.0, [0, 1]), (3900.0, [0, 1, 2])])
def test_a_node_that_uses_cores_which_another_leaves_is_not_overloaded(used: float, slots: list[int]) -> None:
    """Each of two nodes of a machine counts two of its four cores as its own."""
    master = AutoMaster(2)
    for slot, worker in master.state.workers.items():
        worker.node = replace(worker.node, name=f"n{slot}", machine="host")
    for _ in range(2):
        master.scheduling.sample = WindowSample(0.0, 1.0, {}, {}, {}, {"n0": NodeLoad(used), "n1": NodeLoad(0.0)})
        master.later(LOOK_SECONDS)
    assert master.slots == slots


def test_the_scheduler_is_waited_for() -> None:
    master = AutoMaster()
    master.scheduling.asking = True
    for _ in range(3):
        master.measured(0.99)
    assert master.slots == [0]


@pytest.mark.parametrize("generator", [ScheduleGenerator(NOTHING_CHOSEN, Policy()),
                                       ScheduleGenerator(Choice("even", {}, 300.0), Policy(dry_run=True))])
def test_without_a_scheduler_that_moves_tasks_no_worker_is_added(generator: ScheduleGenerator) -> None:
    master = AutoMaster()
    master.scheduling.generator = generator
    for _ in range(3):
        master.measured(0.99)
    assert master.slots == [0] and not master.said
    assert master.capacity.warning == f"worker 0 is busy for 99% of the time; no worker is added: {NOBODY_USES_IT}"


def test_without_a_scheduler_elasticity_may_use_a_new_worker() -> None:
    master = AutoMaster()
    master.scheduling.generator = ScheduleGenerator(NOTHING_CHOSEN, Policy())
    master.scheduling.elastic.grows = True
    for _ in range(2):
        master.measured(0.99)
    assert master.slots == [0, 1] and not master.capacity.warning


def test_a_topology_that_was_refused_more_tasks_gets_a_worker_once() -> None:
    master = AutoMaster()
    master.measured(0.5)
    master.capacity.refused(master.now, NoRoom("'words' cannot have out=9, and stays as it is: no slot has room"))
    master.later(LOOK_SECONDS)
    assert master.slots == [0, 1]
    assert master.texts()[0] == ("1 more worker is requested: 'words' cannot have out=9, and stays as it is: no slot has room")
    for _ in range(10):
        master.measured(0.5)
    assert len(master.pool.answers) == 1, "the request was answered"


def test_a_refusal_that_nobody_repeats_is_forgotten() -> None:
    master = AutoMaster(settings={**AUTO, "worker.auto.max": 1})
    master.capacity.refused(master.now, NoRoom("no slot has room"))
    master.later(LOOK_SECONDS)
    assert "no slot has room; no worker is added: there is 1 worker, the maximum" in master.capacity.warning
    master.later(REFUSED_SECONDS)
    assert not master.capacity.warning


def test_a_scheduler_without_a_place_for_tasks_gets_a_worker() -> None:
    master = AutoMaster()
    master.scheduling.unplaced = "out[1] needs 4,000 MB"
    master.measured(0.0)
    assert master.slots == [0, 1] and not master.scheduling.unplaced
    assert master.texts()[0] == "1 more worker is requested: scheduler even finds no place: out[1] needs 4,000 MB"


def test_a_request_that_is_refused_is_reported_once_and_tried_less_often() -> None:
    master = AutoMaster()
    master.supply.room = False
    asked: list[float] = []
    for _ in range(400):
        before = len(master.pool.answers)
        master.measured(0.99)
        asked += [master.now] * (len(master.pool.answers) - before)
    assert master.texts() == ["1 more worker is requested: worker 0 is busy for 99% of the time", master.capacity.warning]
    refusal = "1 more workers were requested, but 0 of the 4 cores of Spark's executors are free"
    assert master.capacity.warning == f"no worker could be added: {refusal}. It is tried again, less and less often"
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert len(gaps) >= 3 and all(second >= 1.5 * first for first, second in pairwise(gaps))
    master.supply.room = True
    while master.slots == [0]:
        master.measured(0.99)
    assert not master.capacity.trouble


def test_a_worker_without_tasks_is_given_back_with_its_executor() -> None:
    master = AutoMaster(workers=1)
    master.supply.add(1)
    master.measured(0.6)
    assert master.slots == [0, 1]
    master.later(20.0)
    assert master.slots == [0] and master.supply.released == [(1, "e1")]
    assert master.texts() == ["worker 1 is to be given back: it has had no tasks for 5 s",
                              "worker 1 was given back; executor e1 was given back"]
    master.later(100.0)
    assert master.slots == [0], "the minimum"


def test_a_worker_with_little_to_do_hands_its_tasks_over() -> None:
    master = AutoMaster(workers=2)
    places = master.state.topologies["words"].places
    assert {place.slot for place in places.values()} == {0, 1}
    master.measured(0.3)
    master.later(20.0)
    assert master.slots == [0, 1], "the other one would be busy for more than half of the time"
    master.measured(0.1, ends=False)
    [answer] = master.pool.answers
    assert master.state.leaving(1) == "removed" and not answer.done(), "its tasks are being handed over"
    reason = "its tasks fit on other workers, which are then busy for at most 20% of the time"
    assert master.texts() == [f"worker 1 is to be given back: {reason}"]
    assert master.capacity.settings()["under_way"] == "worker 1 is to be given back"


def test_tasks_that_cannot_be_moved_keep_their_worker() -> None:
    master = AutoMaster(workers=2, spout_moves=False)
    [home] = [place.slot for task, place in master.state.topologies["words"].places.items() if task.component == "lines"]
    master.measured(0.0)
    master.later(20.0, ends=False)
    assert master.state.leaving(home) == "" and master.state.leaving(1 - home) == "removed"


def test_nothing_changes_while_something_else_does() -> None:
    master = AutoMaster(workers=2)
    master.supply.add(1)
    by_hand = master.pool.remove(1)
    master.now += 100.0
    master.capacity.tick(master.now)
    master.now += 100.0
    master.capacity.tick(master.now)
    assert not by_hand.done() and not master.said
    assert master.capacity.settings()["decision"].startswith("nothing is changed while")


def test_a_topology_without_a_slot_gets_a_worker_and_goes_on() -> None:
    master = AutoMaster()
    master.tell(WorkerLost(0, master.state.workers[0].address.generation, "killed"))
    topology = master.state.topologies["words"]
    assert topology.status == "waiting"
    master.later(LOOK_SECONDS)
    assert master.slots == [], "Spark may start it again"
    master.later(WAIT_SECONDS)
    master.later(WAIT_SECONDS)
    assert master.slots == [1] and topology.status != "waiting"
    assert master.texts()[0] == "1 more worker is requested: tasks of words have no slot"


def test_limits_are_chosen_while_it_runs() -> None:
    master = AutoMaster(settings={})
    master.measured(0.99)
    master.measured(0.99)
    assert master.slots == [0] and master.capacity.settings() == {
        "on": False, "min": 1, "max": 0, "idle": 60.0, "cool_down": 60.0, "share": 0.5, "decision": "", "under_way": "",
        "trouble": ""}
    answer = master.capacity.choose("2..3", {"idle": 1})
    assert (answer["on"], answer["min"], answer["max"], answer["idle"]) == (True, 2, 3, 1.0)
    master.later(LOOK_SECONDS)
    assert master.slots == [0, 1], "the minimum, at once"
    with pytest.raises(BadParameter, match="neither MIN"):
        master.capacity.choose("three", {})
    assert master.capacity.choose(None, {"cool_down": 3})["max"] == 3
    assert master.capacity.choose("off", {})["on"] is False
    master.superseded = "another master"
    with pytest.raises(NotTheAuthor):
        master.capacity.choose("1..2", {})


def test_a_cluster_without_workers_of_its_own_has_none_to_control() -> None:
    master = AutoMaster()
    master.pool.supply = None
    with pytest.raises(MillraceError, match="microbatch engine"):
        master.capacity.choose("1..2", {})
    master.measured(0.99)
    master.measured(0.99)
    assert master.slots == [0] and not master.said
