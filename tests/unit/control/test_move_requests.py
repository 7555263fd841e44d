"""Requests to move tasks and key groups: what is refused changes nothing, and what has to wait or is cancelled is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from story import COUNT0, COUNT1, LINES, TOP0, TOP1, Story, graph, said

from millrace.control.assignment import ARM, SWITCH
from millrace.control.events import MoveArmed, Moved, MoveTaken, Regrouped, Replanned, Submitted, Ticked
from millrace.control.moves import RESTING
from millrace.control.topology_state import TopologyState
from millrace.errors import MillraceError, TopologyError, UnknownName, UnknownTopology
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import initial_key_groups

OWNERS = initial_key_groups(128, 2)


def with_fixed_spout() -> TopologyGraph:
    """The graph with a spout that cannot be read again."""
    lines, *bolts = graph().components
    return replace(graph(), components=(replace(lines, movable=False), *bolts))


def topology(story: Story) -> TopologyState:
    return story.state.topologies["words"]


def moved(story: Story, task: TaskId, slot: int) -> list[str]:
    return said(story.on(Moved("words", task, slot)))


def regrouped(story: Story, owners: dict[int, int], component: str = "count") -> list[str]:
    return said(story.on(Regrouped("words", component, owners)))


def armed(story: Story) -> None:
    """All new incarnations of the batch are ready: it switches."""
    for moving in list(topology(story).handover.batch):
        story.on(MoveArmed(topology(story).number, topology(story).epoch, moving.number, 0))


def taken(story: Story) -> list[str]:
    """All new incarnations of the batch have taken over."""
    return [text for moving in list(topology(story).handover.batch)
            for text in said(story.on(MoveTaken(topology(story).number, topology(story).epoch, moving.number)))]


def other(story: Story, task: TaskId) -> int:
    return 1 - story.places()[task].slot


# ---- refused ----


@pytest.mark.parametrize(("event", "kind", "says"), [
    (Moved("ghost", COUNT0, 1), UnknownTopology, "no topology named 'ghost' is running; running: words"),
    (Moved("words", TaskId("count", 9), 1), UnknownName, "'words' has no running task count[9]; it has count[0], count[1]"),
    (Moved("words", TaskId("ghost", 0), 1), UnknownName, "'words' has no running task ghost[0]; it has count, lines, top"),
    (Moved("words", COUNT0, 7), UnknownName, "there is no worker 7; there are 0, 1"),
    (Moved("words", COUNT0, -1), UnknownName, "there is no worker -1; there are 0, 1"),
    (Moved("words", COUNT0, 2), UnknownName, "there is no worker 2; there are 0, 1"),
    (Moved("words", LINES, 1), TopologyError, "lines[0] cannot be moved: its source cannot be replayed, so its tuples in "
                                              "flight would be lost. Derive the spout from ReplayableSpout to move it"),
    *((Moved("words", COUNT0, slot, "teleport"), UnknownName, "there is no strategy 'teleport'; there are handover, rollback")
      for slot in (0, 1)),  # of which one has the task
    *((Moved("words", COUNT0, slot, parameters={"nonsense": -5}), UnknownName, "the strategy handover has no parameter "
       "'nonsense'; it has none") for slot in (0, 1)),
    *((Moved("words", COUNT0, slot, "storm", {"message_timeout": -5}), MillraceError, "expected seconds, 0 or more")
      for slot in (0, 1)),
    (Regrouped("ghost", "count", {0: 1}), UnknownTopology, "no topology named 'ghost' is running; running: words"),
    (Regrouped("words", "ghost", {0: 1}), UnknownName, "'ghost'"),
    (Regrouped("words", "top", {0: 1}), TopologyError, "'top' has no key groups, because no fields grouping leads to it; "
                                                       "components that have some: count"),
    (Regrouped("words", "count", {0: 1, 128: 1}), UnknownName, "'count' has no key group 128; it has 0 to 127"),
    (Regrouped("words", "count", {0: 1, -1: 1}), UnknownName, "'count' has no key group -1; it has 0 to 127"),
    (Regrouped("words", "count", {0: 1, 1: 2}), UnknownName, "'count' has no task 2; it has 0 to 1"),
])
def test_what_is_impossible_is_refused_and_changes_nothing(event: Moved | Regrouped, kind: type[MillraceError],
                                                           says: str) -> None:
    story = Story(workers=3)
    story.lose(2)
    story.running(with_fixed_spout())
    before, revision = topology(story).plan, story.state.revision
    with pytest.raises(kind) as refused:
        story.on(event)
    assert says in str(refused.value)
    assert (topology(story).plan, story.state.revision) == (before, revision)
    assert topology(story).handover.at_rest


def test_key_groups_of_a_bolt_with_state_of_its_own_only_stay_with_their_tasks() -> None:
    """Its `snapshot()` is of the whole task: the keys of a group that went elsewhere would be counted in both tasks."""
    lines, count, top = graph().components
    story = Story(workers=2).running(replace(graph(), components=(lines, replace(count, own_state=True), top)))
    before, revision = topology(story).plan, story.state.revision
    with pytest.raises(TopologyError) as refused:
        regrouped(story, {0: 1})
    assert str(refused.value) == ("key groups of 'count' cannot go to other tasks: all its state is the result of snapshot(), "
                                  "which belongs to a task and cannot be divided. Keep the state by key instead: key groups "
                                  "can be redistributed")
    plan = replace(before, key_groups={"count": (1, *before.key_groups["count"][1:])})
    with pytest.raises(TopologyError, match=r"the plan for 'words' reassigns key groups of 'count': all its state is the"):
        story.on(Replanned({"words": plan}, {"words": before.version}, "balance"))
    assert (topology(story).plan, story.state.revision) == (before, revision) and topology(story).handover.at_rest


def test_a_task_that_is_being_moved_cannot_be_moved_elsewhere() -> None:
    story = Story(workers=3).running()
    source = story.places()[COUNT0].slot
    target, third = (source + 1) % 3, (source + 2) % 3
    moved(story, COUNT0, target)
    for slot in (target, third):
        with pytest.raises(TopologyError) as refused:
            moved(story, COUNT0, slot)
        assert str(refused.value) == (f"count[0] is being moved to worker {target}. Try again when it has arrived, or cancel "
                                      f"that by a move to worker {source}")
    armed(story)
    assert topology(story).handover.phase == SWITCH
    for slot in (source, target, third):
        with pytest.raises(TopologyError) as refused:
            moved(story, COUNT0, slot)
        assert str(refused.value) == f"count[0] is being moved to worker {target}. Try again when it has arrived"
    taken(story)
    assert story.places()[COUNT0].slot == target
    assert moved(story, COUNT0, third)[0] == f"count[0] moves from worker {target} to worker {third}"


# ---- queued and merged ----


def test_a_move_during_another_waits_and_says_so() -> None:
    story = Story(workers=2).running()
    moved(story, COUNT0, other(story, COUNT0))
    target = other(story, TOP0)
    assert moved(story, TOP0, target)[-1] == "top[0] will move after count[0]"
    assert topology(story).handover.phase == ARM and topology(story).handover.moving(TOP0) is None
    armed(story)
    assert "count[0] moved to worker" in taken(story)[0]
    assert topology(story).handover.moving(TOP0) is not None, "it is next"
    armed(story)
    taken(story)
    assert story.places()[TOP0].slot == target and topology(story).handover.at_rest


def test_a_move_while_the_topology_starts_waits_and_says_so() -> None:
    story = Story(workers=2)
    story.on(Submitted(graph()))
    assert story.status() == "starting"
    source, target = story.places()[COUNT0].slot, other(story, COUNT0)
    assert moved(story, COUNT0, target) == [f"count[0] moves from worker {source} to worker {target} when the topology runs"]
    assert regrouped(story, {OWNERS.index(0): 1}) == ["1 key group of count goes to count[1] when the topology runs"]
    story.report_all()
    story.on(Ticked(1.0))
    assert topology(story).handover.phase == ARM


def test_the_last_wish_for_a_task_that_waits_counts() -> None:
    story = Story(workers=3).running()
    moved(story, COUNT0, (story.places()[COUNT0].slot + 1) % 3)
    place = story.places()[TOP0].slot
    first, second = (place + 1) % 3, (place + 2) % 3
    moved(story, TOP0, first)
    assert moved(story, TOP0, second)[0] == f"top[0] moves from worker {place} to worker {second}"
    armed(story)
    taken(story)
    armed(story)
    taken(story)
    assert story.places()[TOP0].slot == second and topology(story).handover.at_rest


def test_key_groups_wait_for_a_move_and_it_is_said() -> None:
    story = Story(workers=2).running()
    moved(story, TOP1, other(story, TOP1))
    group = OWNERS.index(0)
    assert regrouped(story, {group: 1}) == ["1 key group of count goes to count[1]",
                                            "1 key group of count will move after top[1]"]
    armed(story)
    taken(story)
    armed(story)
    taken(story)
    assert topology(story).key_groups["count"][group] == 1 and topology(story).handover.at_rest


def test_key_groups_that_are_being_moved_go_on_to_the_owner_that_was_wished_last() -> None:
    """Their present owner is another one than that which they have when they have arrived."""
    story = Story(workers=2).running()
    group = OWNERS.index(0)
    regrouped(story, {group: 1})
    assert regrouped(story, {group: 1}) == ["count has these key groups where they are wanted already"]
    assert regrouped(story, {group: 0})[-1] == "1 key group of count will move after 1 key group of count"
    for owner in (1, 0):
        armed(story)
        taken(story)
        assert topology(story).key_groups["count"][group] == owner
    assert topology(story).handover.at_rest


def test_key_groups_have_their_turn_while_tasks_keep_coming() -> None:
    story = Story(workers=2).running()
    group = OWNERS.index(0)
    moved(story, TOP0, other(story, TOP0))
    regrouped(story, {group: 1})
    moved(story, TOP1, other(story, TOP1))
    armed(story)
    taken(story)
    assert [moving.groups for moving in topology(story).handover.batch] == [(group,)], "they have waited for a batch of tasks"
    armed(story)
    taken(story)
    assert topology(story).handover.moving(TOP1) is not None


def test_the_limit_of_tasks_holds_for_key_groups() -> None:
    """Those from one task to another count as one: with a limit of one, an exchange takes two batches."""
    story = Story(workers=2).running(graph(**{"topology.handover.tasks": 1}))
    first, second = OWNERS.index(0), OWNERS.index(1)
    regrouped(story, {first: 1, first + 1: 1, second: 0})
    for groups in ((first, first + 1), (second,)):
        assert [moving.groups for moving in topology(story).handover.batch] == [groups]
        armed(story)
        taken(story)
    assert topology(story).handover.at_rest


# ---- cancelled ----


def test_a_move_is_cancelled_by_a_move_to_the_present_place() -> None:
    story = Story(workers=2).running()
    source = story.places()[COUNT0].slot
    moved(story, COUNT0, 1 - source)
    assert moved(story, COUNT0, source) == [f"count[0] is already on worker {source}",
                                            "count[0] not moved: you moved it to the worker where it already is"]
    assert topology(story).handover.phase == RESTING and story.places()[COUNT0].slot == source
    assert topology(story).homes[COUNT0] == source


def test_a_move_that_waits_is_cancelled_in_the_same_way() -> None:
    story = Story(workers=2).running()
    moved(story, COUNT0, other(story, COUNT0))
    place = story.places()[TOP0].slot
    moved(story, TOP0, 1 - place)
    assert moved(story, TOP0, place) == [f"top[0] is already on worker {place}",
                                         "top[0] not moved: you moved it to the worker where it already is"]
    assert topology(story).homes[TOP0] == place, "it would go there when that worker is lost and comes back"
    armed(story)
    taken(story)
    assert topology(story).handover.at_rest and story.places()[TOP0].slot == place


@pytest.mark.parametrize("waits", [False, True])
def test_a_move_to_a_worker_that_is_lost_meanwhile_is_cancelled(waits: bool) -> None:
    story = Story(workers=2).running()
    story.join(2)
    if waits:
        moved(story, COUNT1, other(story, COUNT1))
    task = TOP0 if waits else COUNT0
    place = story.places()[task].slot
    moved(story, task, 2)
    assert f"{task} not moved: worker 2 was lost" in said(story.lose(2))
    assert topology(story).homes[task] == story.places()[task].slot == place
    story.join(2)
    assert story.places()[task].slot == place and topology(story).handover.moving(task) is None
    assert task not in topology(story).handover.waiting


def test_a_spout_that_can_be_read_again_is_moved() -> None:
    story = Story(workers=2).running()
    target = other(story, LINES)
    moved(story, LINES, target)
    armed(story)
    taken(story)
    assert story.places()[LINES].slot == target
