"""Moves of ackers end when every worker has the new plan, and their records say how."""

from __future__ import annotations

from story import Story, graph

from millrace.control.events import Command, Killed, Migrated, Moved, Ticked
from millrace.control.migrations import Migration
from millrace.model.graph import ACKER, TaskId

ACKER0 = TaskId(ACKER, 0)


def story_with_ackers() -> Story:
    return Story(workers=3).running(graph(**{"topology.guarantee": "at-least-once", "topology.acker.executors": 2}))


def records(commands: list[Command]) -> list[Migration]:
    return [command.migration for command in commands if isinstance(command, Migrated)]


def move(story: Story) -> tuple[int, int]:
    """Begin to move the acker at the time 5; returns its old and its new slot."""
    old = story.places()[ACKER0].slot
    new = (old + 1) % 3
    story.on(Ticked(5.0))
    assert records(story.on(Moved("words", ACKER0, new))) == []
    assert story.places()[ACKER0].slot == new
    return old, new


def test_it_is_done_when_the_last_worker_has_the_plan() -> None:
    story = story_with_ackers()
    old, new = move(story)
    for slot in (new, 3 - old - new, old):
        assert records(story.on(Ticked(6.0))) == []
        story.report(slot)
    [record] = records(story.on(Ticked(7.0)))
    assert (record.outcome, record.reason, record.began, record.switched, record.ended) == ("done", "", 5.0, 5.0, 7.0)
    assert [(each.task, each.source, each.target) for each in record.moved] == [(ACKER0, old, new)]
    assert records(story.on(Ticked(8.0))) == []


def test_it_is_not_done_if_a_worker_is_lost_that_it_concerns() -> None:
    story = story_with_ackers()
    old, _ = move(story)
    story.lose(old)
    story.report_all()
    [record] = [each for each in records(story.on(Ticked(7.0))) if each.strategy == "handover"]
    assert (record.outcome, record.reason) == ("rolled back", f"worker {old} was lost")


def test_a_worker_that_was_restarted_meanwhile_has_lost_its_ledgers() -> None:
    story = story_with_ackers()
    _, new = move(story)
    story.join(new)
    story.report_all()
    ends = [(each.outcome, each.reason) for each in records(story.on(Ticked(7.0))) if each.strategy == "handover"]
    assert ends == [("rolled back", f"worker {new} was lost"), ("done", "")], "the acker returned there"


def test_the_end_of_the_topology_cuts_it_short() -> None:
    story = story_with_ackers()
    move(story)
    commands = [*story.on(Killed("words", 0, now=6.0)), *story.on(Ticked(7.0))]
    [record] = records(commands)
    assert record.outcome == "cancelled" and record.reason.startswith("the topology ended: ")
