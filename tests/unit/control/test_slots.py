"""Workers that are removed or restarted on purpose: the master's decisions, compared as values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from story import COUNT0, COUNT1, LINES, NODE, TOP0, TOP1, Story, graph, joined, last, said

from millrace.config import COMPONENT_MEMORY, HANDOVER_PREPARE_LIMIT
from millrace.control.assignment import ARM, SWITCH, Place
from millrace.control.events import (
    Command,
    EndWorker,
    LeaveOver,
    MoveArmed,
    Moved,
    MoveTaken,
    Replanned,
    Say,
    StopWorker,
    Submitted,
    Ticked,
    WorkerLeaves,
    WorkerReported,
)
from millrace.control.master_state import MasterState
from millrace.control.moves import PERSON
from millrace.errors import MillraceError, NotEnoughSlots, StalePlan, TopologyError, UnknownName
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.schedulers.base import Scheduler
from millrace.schedulers.resource_aware import ResourceAware

LIMIT, WAIT = 100.0, 20.0


class Leaving(Story):
    """A story whose workers carry out moves and report at once, with a clock."""

    def __init__(self, workers: int, *graphs: TopologyGraph, first: Scheduler | None = None) -> None:
        super().__init__()
        self.state = MasterState(first, leave_limit=LIMIT, restart_wait=WAIT)
        self.now = 0.0
        for slot in range(workers):
            self.join(slot)
        self.running(*graphs)

    def tick(self, seconds: float = 1.5) -> list[Command]:
        self.now += seconds
        for worker in self.state.workers.values():  # their loops turn, although not every report is told
            worker.heard = self.now
        return self.on(Ticked(self.now))

    def hosts(self, slot: int, hosted: int | None = None) -> list[Command]:
        """A report of one worker at the newest revision; by default of the tasks that the plan gives it."""
        places = [place for topology in self.state.topologies.values() for place in topology.places.values()]
        tasks = sum(place.slot == slot for place in places) if hosted is None else hosted
        return self.on(WorkerReported(slot, self.state.workers[slot].address.generation, self.state.revision, ((1, 0),),
                                      hosted=tasks))

    def report_twice(self) -> None:
        for _ in range(2):
            for slot in list(self.state.workers):
                self.hosts(slot)

    def hand_over(self) -> None:
        """Carry out every batch of moves."""
        for topology in list(self.state.topologies.values()):
            while topology.handover.batch:
                for moving in list(topology.handover.batch):
                    self.on(MoveArmed(topology.number, topology.epoch, moving.number, 0))
                for moving in list(topology.handover.batch):
                    self.on(MoveTaken(topology.number, topology.epoch, moving.number))

    def until_over(self, slot: int) -> list[LeaveOver]:
        """Carry out moves until the worker has left, is back or stays."""
        for _ in range(6):
            over = [command for command in self.tick() if isinstance(command, LeaveOver)]
            if over:
                return over
            self.report_twice()
            self.hand_over()
        raise AssertionError(f"worker {slot} still leaves")

    def until_stopped(self, slot: int) -> list[Command]:
        self.hand_over()
        for _ in range(4):
            self.report_twice()
            commands = self.tick()
            if StopWorker(slot) in commands:
                return commands
            self.hand_over()
        raise AssertionError(f"worker {slot} was not stopped")


class Apart(Leaving):
    """Workers on nodes of their own."""

    def join(self, slot: int) -> list[Command]:
        self.generation += 1
        return self.on(replace(joined(slot, self.generation), node=replace(NODE, name=f"host {slot}"), boot=f"boot {slot}"))


def fixed_spout(**config: object) -> TopologyGraph:
    made = graph(**config)
    return replace(made, components=(replace(made.components[0], movable=False), *made.components[1:]))


def test_the_tasks_of_a_removed_worker_are_handed_over_to_where_the_first_scheduler_puts_them() -> None:
    story = Leaving(3)
    before = story.on_slot(2)
    assert before
    commands = story.on(WorkerLeaves(2))
    assert said(commands) == ["worker 2 is being removed: its tasks are handed over first"]
    handover = story.state.topologies["words"].handover
    asked = {moving.task: moving for moving in handover.batch} | handover.waiting
    assert asked.keys() == before
    assert {cause.who for cause in (wanted.cause for wanted in asked.values())} == {PERSON}
    assert str(next(iter(asked.values())).cause) == "person: worker 2 is removed"
    story.hand_over()
    assert not story.on_slot(2) and story.status() == "running"
    counts = [len(story.on_slot(slot)) for slot in (0, 1)]
    assert max(counts) - min(counts) <= 1


def test_the_worker_ends_when_it_hosts_nothing_and_everyone_knows() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2))
    story.hand_over()
    story.tick()
    revision = story.state.revision
    for slot in (0, 2, 2):
        story.hosts(slot)
    story.report(1, revision=revision - 1)
    assert StopWorker(2) not in story.tick(), "worker 1 may still send to it"
    story.hosts(1)
    story.hosts(2, hosted=1)
    assert StopWorker(2) not in story.tick(), "a task of it may be asked for lost chunks"
    story.hosts(2)
    story.hosts(2)
    assert story.tick() == [StopWorker(2)]
    assert story.tick() == []


def test_the_end_of_a_removed_worker_is_no_loss() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2))
    story.until_stopped(2)
    version = story.state.topologies["words"].version
    commands = story.lose(2)
    assert said(commands) == ["worker 2 has ended", "worker 2 is removed"] and LeaveOver(2) in commands
    assert [worker.slot for worker in last(commands).workers] == [0, 1]
    assert story.state.topologies["words"].version == version and story.state.topologies["words"].losses == 0


def test_a_process_of_a_removed_worker_that_comes_late_is_sent_away() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2))
    story.until_stopped(2)
    story.lose(2)
    assert story.join(2) == [StopWorker(2)]
    assert sorted(story.state.workers) == [0, 1]


def test_a_worker_that_dies_while_it_is_removed_is_removed() -> None:
    story = Leaving(3)
    here = story.on_slot(2)
    story.on(WorkerLeaves(2))
    commands = story.lose(2)
    assert said(commands)[0] == "worker 2 lost: died" and LeaveOver(2) in commands
    assert story.places().keys() >= here and not story.on_slot(2)
    assert story.join(2) == [StopWorker(2)]


def test_a_worker_that_has_not_started_is_removed_at_once() -> None:
    story = Leaving(2)
    commands = story.on(WorkerLeaves(2, expected=True))
    assert LeaveOver(2) in commands
    assert story.join(2) == [StopWorker(2)]


@pytest.mark.parametrize("event, error, match", [
    (WorkerLeaves(7), UnknownName, "there is no worker 7; there are 0, 1"),
    (WorkerLeaves(7, restarts=True, expected=True), UnknownName, "there is no worker 7; there are 0, 1"),
    (WorkerLeaves(1), MillraceError, "worker 1 is being removed already: wait"),
    (WorkerLeaves(1, restarts=True), MillraceError, "worker 1 is being removed already: wait"),
    (WorkerLeaves(0), NotEnoughSlots, "worker 0 cannot be removed: no other worker .* Add one first"),
])
def test_bad_requests_are_refused_and_change_nothing(event: WorkerLeaves, error: type[Exception], match: str) -> None:
    story = Leaving(2)
    story.on(WorkerLeaves(1))
    story.hand_over()
    before, revision = story.places(), story.state.revision
    with pytest.raises(error, match=match):
        story.on(event)
    assert (story.places(), story.state.revision) == (before, revision)
    assert story.state.closed == {1}


def test_a_worker_with_a_task_that_cannot_be_moved_is_not_removed() -> None:
    story = Leaving(2, fixed_spout())
    slot = story.places()[LINES].slot
    with pytest.raises(TopologyError, match=rf"worker {slot} cannot be removed, because lines\[0\] of 'words' cannot be moved: "
                                            ".*ReplayableSpout.*kill the topology"):
        story.on(WorkerLeaves(slot))
    assert not story.state.closed


def test_a_removal_that_leaves_too_few_slots_is_refused_at_once() -> None:
    memory = int(NODE.memory_mb / 2.5)  # two tasks fit on a node, and there are five
    story = Apart(3, graph(**{COMPONENT_MEMORY.key: memory}), first=ResourceAware())
    slot = next(slot for slot in range(3) if len(story.on_slot(slot)) == 2)
    before, revision = story.places(), story.state.revision
    with pytest.raises(NotEnoughSlots, match=rf"worker {slot} cannot be removed: the topologies need all 3 slots, and 2 would "
                                             r"be left\. For 'words': cannot place 1 of 2 tasks: .*add a worker first"):
        story.on(WorkerLeaves(slot))
    assert (story.places(), story.state.revision) == (before, revision) and not story.state.closed
    assert not story.state.topologies["words"].handover.batch
    story.join(3)
    story.on(WorkerLeaves(slot))
    story.until_stopped(slot)
    assert not story.on_slot(slot)


def test_nothing_is_placed_on_a_worker_that_leaves() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2))
    story.on(Submitted(graph("more")))
    assert not story.on_slot(2, "more")
    with pytest.raises(TopologyError, match="worker 2 is being removed or restarted: move"):
        story.on(Moved("words", next(iter(story.on_slot(0))), 2))
    state = story.state.topologies["words"]
    with pytest.raises(StalePlan, match=r"lost workers \(2\)"):
        story.on(Replanned({"words": Plan(state.version + 1, dict.fromkeys(state.graph.tasks(), 2), state.key_groups)},
                           {"words": state.version}, "a test"))
    assert {slot.number for slot in story.state.cluster().slots} == {0, 1}


def test_a_move_to_a_worker_that_leaves_is_withdrawn() -> None:
    story = Leaving(3)
    task = next(iter(story.on_slot(0)))
    story.on(Moved("words", task, 2))
    story.on(WorkerLeaves(2))
    assert story.places()[task].slot == 0
    assert story.state.topologies["words"].handover.moving(task) is None


def test_a_move_that_was_cancelled_is_requested_again() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2))
    handover = story.state.topologies["words"].handover
    first = handover.batch[0]
    story.on(MoveArmed(1, 0, first.number, 0, error="no room"))
    commands = story.tick(HANDOVER_PREPARE_LIMIT.default + 1)
    assert "count[1] not moved: count[1] could not be prepared (no room) within 60 s" in said(commands)
    again = handover.moving(first.task)
    assert again is not None and again.number > first.number
    story.until_stopped(2)


def test_a_worker_whose_tasks_cannot_be_handed_over_in_time_stays() -> None:
    story = Leaving(3)
    here = story.on_slot(2)
    story.on(WorkerLeaves(2))
    commands = story.tick(LIMIT + 1)
    [over] = [command for command in commands if isinstance(command, LeaveOver)]
    assert over.slot == 2 and "could not be handed over within 100 s" in over.error
    assert not story.state.closed
    story.tick()
    story.hand_over()
    story.tick()
    story.hand_over()
    assert story.on_slot(2) == here


def test_a_worker_stays_if_all_others_are_lost_while_it_is_removed() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2))
    story.lose(0)
    story.lose(1)
    [over] = story.until_over(2)
    assert over.error.startswith("worker 2 is not removed: no other worker is left")
    assert story.on_slot(2) == {LINES, COUNT0, COUNT1, TOP0, TOP1} and not story.state.closed


def test_a_worker_that_does_not_end_is_ended() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2))
    story.until_stopped(2)
    commands = story.tick(11.0)
    assert EndWorker(2, "it did not end within 10 s") in commands and LeaveOver(2) in commands


def test_a_migration_keeps_only_the_workers_that_it_needs() -> None:
    story = Leaving(4)
    task = next(iter(story.on_slot(0)))
    story.on(Moved("words", task, 1, "storm"))
    for slot in range(4):
        with pytest.raises(TopologyError, match="'words' is being migrated by storm"):
            story.on(WorkerLeaves(slot))
    story.join(4)
    assert said(story.on(WorkerLeaves(4))) == ["worker 4 is being removed: its tasks are handed over first"]
    assert story.state.closed == {4}


def events_of(commands: list[Command]) -> list[tuple[str, str, set[TaskId]]]:
    """Text, cause and tasks of the events."""
    return [(command.text, command.cause, set(command.tasks)) for command in commands if isinstance(command, Say)]


def test_the_events_of_a_removal_name_its_cause_and_tasks() -> None:
    story = Leaving(3)
    assert events_of(story.on(WorkerLeaves(2)))[0] == (
        "worker 2 is being removed: its tasks are handed over first", "person", story.on_slot(2))
    story.until_stopped(2)
    assert events_of(story.lose(2))[-1] == ("worker 2 is removed", "person", set())
    assert events_of(story.on(WorkerLeaves(5, expected=True))) == [
        ("worker 5, which had not started, is removed", "person", set())]


def test_tasks_that_return_to_a_worker_that_stays_do_so_for_that_reason() -> None:
    story = Leaving(3)
    here = story.on_slot(2)
    story.on(WorkerLeaves(2))
    story.hand_over()
    assert not story.on_slot(2)
    commands = story.tick(LIMIT + 1)
    handover = story.state.topologies["words"].handover
    assert {moving.task for moving in handover.batch} | handover.waiting.keys() == here
    [cause] = {str(each.cause) for each in (*handover.batch, *handover.waiting.values())}
    assert cause == "worker 2 stays: others did not let go of it within 100 s"
    assert events_of(commands)[0] == ("worker 2 is not removed: others did not let go of it within 100 s", "person", set())


# ---- restart ----


def test_the_tasks_of_a_restarted_worker_return_to_it() -> None:
    story = Leaving(3)
    before = story.on_slot(2)
    story.on(WorkerLeaves(2, restarts=True))
    story.until_stopped(2)
    assert not story.on_slot(2)
    commands = story.lose(2)
    assert said(commands) == ["worker 2 has ended"]
    assert not [command for command in commands if isinstance(command, LeaveOver)]
    story.join(2)
    assert story.until_over(2) == [LeaveOver(2)]
    assert story.on_slot(2) == before and story.state.topologies["words"].losses == 0
    assert not story.state.closed and story.tick() == []


def restarted(story: Leaving, slot: int) -> None:
    """Restart the slot, up to the point where its new process has not joined yet."""
    story.on(WorkerLeaves(slot, restarts=True))
    story.until_stopped(slot)
    story.lose(slot)


def sent_on(story: Leaving, task: TaskId) -> int:
    """Let a person move a task that has left worker 2 to the third one; returns its slot."""
    [other] = {0, 1} - {story.places()[task].slot}
    story.on(Moved("words", task, other))
    return other


def with_two_tasks_on_worker_2() -> Leaving:
    story = Leaving(3)
    story.on(Moved("words", TOP0, 2))
    story.hand_over()
    assert story.on_slot(2) == {COUNT1, TOP0}
    return story


def test_a_task_that_a_person_has_moved_meanwhile_does_not_return() -> None:
    story = with_two_tasks_on_worker_2()
    restarted(story, 2)
    other = sent_on(story, COUNT1)
    story.hand_over()
    story.join(2)
    assert story.until_over(2) == [LeaveOver(2)]
    assert story.on_slot(2) == {TOP0} and story.places()[COUNT1].slot == other


def test_a_task_that_a_person_moves_when_the_worker_is_back_goes_where_it_is_sent() -> None:
    story = with_two_tasks_on_worker_2()
    restarted(story, 2)
    other = sent_on(story, COUNT1)
    story.join(2)
    assert story.until_over(2) == [LeaveOver(2)]
    story.hand_over()
    assert story.on_slot(2) == {TOP0} and story.places()[COUNT1].slot == other


def test_a_task_that_a_person_has_moved_meanwhile_does_not_return_to_a_worker_that_stays() -> None:
    story = with_two_tasks_on_worker_2()
    story.on(WorkerLeaves(2))
    story.hand_over()
    assert not story.on_slot(2)
    other = sent_on(story, COUNT1)
    story.hand_over()
    [over] = [command for command in story.tick(LIMIT + 1) if isinstance(command, LeaveOver)]
    assert over.error.startswith("worker 2 is not removed")
    story.hand_over()
    assert story.on_slot(2) == {TOP0} and story.places()[COUNT1].slot == other


def test_a_task_that_was_lost_on_the_worker_it_was_handed_over_to_returns() -> None:
    story = Leaving(3)
    before = story.on_slot(2)
    restarted(story, 2)
    story.lose(story.places()[COUNT1].slot)
    story.join(2)
    assert story.until_over(2) == [LeaveOver(2)]
    assert before <= story.on_slot(2)


def test_a_worker_that_dies_before_it_ends_for_its_restart_gets_its_tasks_back() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2, restarts=True))
    moved = {moving.task for moving in story.state.topologies["words"].handover.batch}
    story.lose(2)
    story.join(2)
    assert story.until_over(2) == [LeaveOver(2)]
    assert moved <= story.on_slot(2)


def resting(story: Leaving, slot: int) -> None:
    """Restart the slot, up to the point where only tasks that cannot be moved are there, and spouts wait."""
    story.on(WorkerLeaves(slot, restarts=True))
    story.hand_over()
    story.tick()
    assert story.state.topologies["words"].resting
    assert not last([story.state.distribution()]).topologies[0].active


def test_a_task_that_cannot_be_moved_waits_in_its_place() -> None:
    story = Leaving(3, fixed_spout())
    slot = story.places()[LINES].slot
    resting(story, slot)
    assert StopWorker(slot) not in story.tick(), "tuples may be in flight"
    story.until_stopped(slot)
    assert story.on_slot(slot) == {LINES}
    places = story.places()
    commands = story.lose(slot)
    assert events_of(commands) == [(f"worker {slot} has ended, and its tasks wait for its new process", "died", {LINES})]
    assert story.places() == places and slot not in story.state.agents.values(), "another worker has the agent of the node"
    assert (f"lines[0] started again on worker {slot}", f"worker {slot} was restarted", {LINES}) in events_of(story.join(slot))
    state = story.state.topologies["words"]
    assert story.places()[LINES] == Place(slot, state.version) and state.losses == 1
    assert not state.resting and last([story.state.distribution()]).topologies[0].active
    assert story.until_over(slot) == [LeaveOver(slot)]


def test_all_tasks_wait_for_the_only_worker() -> None:
    story = Leaving(1)
    resting(story, 0)
    story.until_stopped(0)
    story.lose(0)
    assert story.on_slot(0) == {LINES, COUNT0, COUNT1, TOP0, TOP1}
    story.join(0)
    assert story.on_slot(0) == {LINES, COUNT0, COUNT1, TOP0, TOP1} and story.status() == "running"
    assert LeaveOver(0) in story.tick()


def test_places_are_kept_for_a_while_only() -> None:
    story = Leaving(3, fixed_spout())
    slot = story.places()[LINES].slot
    resting(story, slot)
    story.until_stopped(slot)
    story.lose(slot)
    assert story.tick(WAIT - 1) == []
    commands = story.tick(2.0)
    [over] = [command for command in commands if isinstance(command, LeaveOver)]
    assert over.error.startswith(f"worker {slot} has not come back within 20 s")
    assert story.places()[LINES].slot != slot and slot not in story.state.workers
    assert not story.state.topologies["words"].resting
    assert said(story.join(slot))[0] == f"worker {slot} joined on host", "it is welcome later, too"


def test_a_join_that_was_not_noticed_as_a_loss_is_one() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2))
    story.generation += 1
    commands = story.on(joined(2, story.generation))
    assert LeaveOver(2) in commands and commands[-1] == StopWorker(2)


def test_phases_of_moves_are_those_that_the_tests_expect() -> None:
    story = Leaving(3)
    story.on(WorkerLeaves(2))
    handover = story.state.topologies["words"].handover
    assert handover.phase == ARM
    for moving in list(handover.batch):
        story.on(MoveArmed(1, 0, moving.number, 0))
    assert handover.phase == SWITCH
    assert StopWorker(2) not in story.tick()
