"""The master's decisions about batched topologies; each takes effect with the next batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from story import COUNT0, COUNT1, LINES, Story, graph, last, said

from millrace.control.assignment import Place
from millrace.control.events import (
    BatchBegan,
    BatchCommitted,
    BatchesEnded,
    BatchOver,
    Ended,
    Killed,
    LoadEstimated,
    Moved,
    Paused,
    Regrouped,
    Replanned,
    Rescaled,
    Submitted,
    Ticked,
    Unpaused,
    Withdrawn,
)
from millrace.control.submission import as_scaled
from millrace.errors import StalePlan, TopologyError, UnknownName
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan, initial_key_groups
from millrace.state.checkpoint import Manifest, PieceRef, TaskRecord

GROUPS = 12


def batched(name: str = "words", **config: object) -> TopologyGraph:
    """lines[0] → count[0..1] → top[0..1], in batches."""
    made = graph(name, **{"topology.guarantee": "exactly-once", "topology.key.groups": GROUPS, **config})
    return replace(made, batched=True)


def running(workers: int = 2) -> Story:
    story = Story(workers)
    story.on(Submitted(batched()))
    return story


def manifest(wave: int, position: int, epoch: int = 7, key_groups: int = GROUPS) -> Manifest:
    return Manifest("words", wave, epoch, key_groups, {"lines": 1, "count": 2, "top": 2},
                    [TaskRecord("lines", 0, position=position)], 0.0, epoch)


# ---- life ----


def test_it_runs_as_soon_as_it_is_placed_without_waves_and_ackers() -> None:
    story = running()
    topology = story.state.topologies["words"]
    assert (topology.status, topology.waves, topology.graph.ackers) == ("running", None, 0)
    assert set(topology.places) == set(topology.graph.tasks())
    assert topology.key_groups == {"count": initial_key_groups(GROUPS, 2)}


def test_without_a_slot_it_waits_and_continues_when_one_joins() -> None:
    story = running(0)
    assert story.status() == "waiting"
    story.join(0)
    assert story.status() == "running"
    story.lose(0)
    assert story.status() == "waiting"
    story.on(Paused("words"))
    story.join(0)
    assert story.status() == "paused"
    story.on(Unpaused("words"))
    assert story.status() == "running"


def test_tasks_of_a_lost_executor_are_placed_at_once_and_return_with_it() -> None:
    story = running()
    before = story.places()
    story.lose(1)
    assert set(story.on_slot(0)) == set(before) and story.status() == "running"
    story.join(1)
    assert {task: place.slot for task, place in story.places().items()} == {task: place.slot for task, place in before.items()}


def test_reports_neither_start_nor_end_it_and_say_nothing_of_positions() -> None:
    story = running()
    story.on(Paused("words"))
    for _ in range(3):
        story.report(0, positions=((1, story.state.topologies["words"].graph.number(LINES), 99),))
        story.report(1)
    assert story.status() == "paused" and story.state.topologies["words"].positions == {}
    story.on(Killed("words", 10, 0.0))
    for _ in range(3):
        story.report_all()
    assert story.status() == "stopping"


def test_it_continues_from_the_last_committed_batch() -> None:
    story = running()
    assert story.on(BatchCommitted("words", manifest(1, 50))) == []
    topology = story.state.topologies["words"]
    assert (topology.checkpoint, topology.positions, topology.epoch) == (manifest(1, 50), {LINES: 50}, 7)


def test_it_is_drained_when_it_is_paused_and_no_batch_runs() -> None:
    story = running()
    topology = story.state.topologies["words"]
    story.on(BatchBegan("words"))
    assert not story.state.drained(topology)
    story.on(Paused("words"))
    assert not story.state.drained(topology)
    story.on(BatchCommitted("words", manifest(1, 5)))
    assert not story.state.drained(topology), "its sinks may still have to commit"
    story.on(BatchOver("words"))
    assert story.state.drained(topology)


def test_it_resumes_where_its_checkpoint_was_in_an_epoch_after_it() -> None:
    story = Story(1)
    story.state.author = 5
    story.on(Submitted(batched(), manifest(4, 40), (9, 4)))
    topology = story.state.topologies["words"]
    assert (topology.epoch, topology.positions, topology.checkpoint) == (10, {LINES: 40}, manifest(4, 40))


def scaled(*owners: int, par: int = 3) -> Manifest:
    """Return a checkpoint in which these tasks of count own the first key groups; the other groups are empty."""
    ref = PieceRef("blob", 0, 1, 0, True)
    records = [TaskRecord("count", index, {group: [ref] for group, owner in enumerate(owners) if owner == index})
               for index in range(par)]
    return Manifest("words", 4, 7, GROUPS, {"lines": 1, "count": par, "top": 2},
                    [TaskRecord("lines", 0, position=40), *records], 0.0, 7, declared=batched().declared)


def changed(graph: TopologyGraph, **values: Any) -> TopologyGraph:
    """Return the graph with other values of its bolt count."""
    return replace(graph, components=tuple(replace(component, **values) if component.name == "count" else component
                                           for component in graph.components))


def test_it_continues_with_its_scaled_parallelism() -> None:
    result = as_scaled(batched(), scaled(0, 1, 2))
    assert result.parallelism == {"lines": 1, "count": 3, "top": 2}
    assert as_scaled(result, scaled(0, 1, 2)) == result
    story = Story(2)
    assert "resumes with count x 3, as it was scaled" in said(
        story.on(Submitted(changed(result, declared=2), scaled(0, 1, 2), (7, 4))))


def test_a_number_that_was_chosen_or_declared_since_counts() -> None:
    chosen, declared = changed(batched(), chosen=True), changed(batched(), par=5, declared=5)
    assert as_scaled(chosen, scaled(0, 1, 2)) == chosen
    assert as_scaled(declared, scaled(0, 1, 2)) == declared
    older = msgspec.structs.replace(scaled(0, 1, 2), declared={})
    assert as_scaled(batched(), older) == batched()


def test_a_spout_or_a_bolt_with_a_snapshot_has_what_is_declared() -> None:
    made = batched()
    own = replace(made, components=tuple(replace(component, own_state=True, par=2) for component in made.components))
    assert as_scaled(own, scaled(0, 1, 2)) == own


def test_key_groups_stay_with_the_tasks_that_had_them() -> None:
    story = Story(2)
    kept = scaled(2, 2, 0, 0, 1)
    story.on(Submitted(as_scaled(batched(), kept), kept, (7, 4)))
    rest = initial_key_groups(GROUPS, 3)[5:]
    assert story.state.topologies["words"].key_groups == {"count": (2, 2, 0, 0, 1, *rest)}


def test_with_another_parallelism_few_key_groups_change_hands() -> None:
    story = Story(2)
    before = (2, 1, 0, 1, 1, 0, 0, 2, 2, 0, 1, 2)
    story.on(Submitted(batched(), scaled(*before), (7, 4)))
    owners = story.state.topologies["words"].key_groups["count"]
    assert Counter(owners) == {0: 6, 1: 6}
    assert all(owner == had for owner, had in zip(owners, before, strict=True) if had < 2)


def test_a_checkpoint_of_another_number_of_key_groups_is_refused() -> None:
    story = Story(1)
    with pytest.raises(TopologyError, match="64 key groups"):
        story.on(Submitted(batched(), manifest(4, 40, key_groups=64), (7, 4)))
    assert story.state.topologies == {}


def test_a_spout_that_cannot_be_read_again_is_refused() -> None:
    made = batched()
    stuck = replace(made, components=(replace(made.components[0], movable=False), *made.components[1:]))
    with pytest.raises(TopologyError, match=r"always exactly-once, and lines cannot .*, or run it on the resident engine"):
        Story(1).on(Submitted(stuck))


def test_killed_it_ends_after_the_batch_that_runs() -> None:
    story = running()
    assert said(story.on(Killed("words", 10, 100.0))) == ["the running batch is the last; up to 10 s for tuples in flight"]
    assert story.on(Ticked(105.0)) == [] and story.status() == "stopping"
    commands = story.on(BatchesEnded("words", "its last batch is committed"))
    assert said(commands) == ["its last batch is committed"] and commands[-1] == Ended("words")
    assert story.state.topologies == {}


def test_killed_it_ends_in_time_even_if_the_batch_does_not() -> None:
    story = running()
    story.on(BatchCommitted("words", manifest(3, 30)))
    story.on(Killed("words", 10, 100.0))
    commands = story.on(Ticked(110.0))
    how = "killed as of wave 3: input after it is not committed; --resume continues from there"
    assert said(commands) == [how] and commands[-1] == Ended("words", how)


def test_its_end_says_what_was_not_committed() -> None:
    commands = running().on(BatchesEnded("words", "its query has failed", "the query ended: no such table"))
    assert said(commands) == ["its query has failed"]
    assert commands[-1] == Ended("words", "the query ended: no such table")


def test_killed_without_a_slot_it_ends_at_once() -> None:
    assert Ended("words") in running(0).on(Killed("words", 10, 0.0))


def test_killed_after_it_has_lost_its_slots_it_does_not_finish_its_batch() -> None:
    story = running(1)
    story.on(BatchBegan("words"))
    story.lose(0)
    commands = story.on(Killed("words", 10, 0.0))
    assert commands[-1] == Ended("words", "killed as of wave 0: input after it is not committed; --resume continues from there")


def test_batches_are_not_for_resident_topologies() -> None:
    story = Story(1).running()
    for event in (BatchBegan("words"), BatchCommitted("words", manifest(1, 1)), BatchOver("words"),
                  BatchesEnded("words", "")):
        with pytest.raises(TopologyError, match="runs on resident workers"):
            story.on(event)


# ---- plans ----


def test_a_task_moves_at_once() -> None:
    story = running()
    place = story.places()[COUNT0]
    story.on(Moved("words", COUNT0, 1 - place.slot))
    topology = story.state.topologies["words"]
    assert topology.places[COUNT0] == Place(1 - place.slot, topology.version) and topology.version == 2
    story.on(Moved("words", LINES, 1))
    assert topology.places[LINES].slot == 1, "between two batches a spout has nothing in flight"


def test_there_is_no_move_to_cancel() -> None:
    story = running()
    story.on(Moved("words", COUNT0, 1 - story.places()[COUNT0].slot))
    moved = story.places()[COUNT0]
    with pytest.raises(TopologyError, match=r"'words' runs in batches, and a move takes effect with the next one.* "
                                            "move the task back with `millrace move`"):
        story.on(Withdrawn("words", COUNT0))
    assert story.places()[COUNT0] == moved


def test_key_groups_change_owners_with_the_next_batch() -> None:
    story = running()
    before = initial_key_groups(GROUPS, 2)
    group = before.index(0)
    commands = story.on(Regrouped("words", "count", {group: 1}))
    assert said(commands) == ["1 key group of count goes to count[1] from the next batch on"]
    topology = story.state.topologies["words"]
    owners = tuple(1 if each == group else owner for each, owner in enumerate(before))
    assert (topology.key_groups["count"], topology.version) == (owners, 2)
    assert last(commands).topologies[0].key_groups == {"count": owners} and topology.handover.at_rest
    assert said(story.on(Regrouped("words", "count", {group: 1}))) == [
        "count has these key groups where they are wanted already"]
    for component, wanted in (("count", {GROUPS: 1}), ("count", {0: 2}), ("ghost", {0: 1})):
        with pytest.raises(UnknownName):
            story.on(Regrouped("words", component, wanted))
    assert topology.version == 2


def test_a_new_plan_moves_tasks_and_key_groups() -> None:
    story = running()
    plan = story.state.topologies["words"].plan
    owners = (1, *plan.key_groups["count"][1:])
    new = Plan(plan.version + 1, {**plan.placement, COUNT0: 0, COUNT1: 0}, {"count": owners})
    commands = story.on(Replanned({"words": new}, {"words": plan.version}, "balance"))
    assert said(commands) == ["count[0] moved, 1 key groups reassigned, from the next batch on: balance"]
    topology = story.state.topologies["words"]
    assert (topology.key_groups["count"], topology.version) == (owners, plan.version + 1)
    assert topology.places[COUNT0] == Place(0, topology.version)
    assert topology.places[COUNT1] == Place(0, 1), "what stays keeps its incarnation"
    assert last(commands).topologies[0].key_groups == {"count": owners}


def test_a_new_plan_may_have_other_numbers_of_tasks() -> None:
    story = running()
    plan = story.state.topologies["words"].plan
    more = {**plan.placement, TaskId("count", 2): 0}
    owners = tuple(group % 3 for group in range(GROUPS))
    fewer = {task: slot for task, slot in more.items() if task != TaskId("top", 1)}
    commands = story.on(Replanned({"words": Plan(2, fewer, {"count": owners})}, {"words": 1}, "more"))
    topology = story.state.topologies["words"]
    assert topology.graph.component("count").par == 3 and topology.graph.component("top").par == 1
    assert set(topology.places) == set(topology.graph.tasks()) and topology.key_groups["count"] == owners
    assert said(commands)[0].startswith("count[2] started, top[1] stopped, 8 key groups reassigned")


def test_a_plan_that_changes_nothing_is_no_new_version() -> None:
    story = running()
    plan = story.state.topologies["words"].plan
    assert story.on(Replanned({"words": plan}, {"words": plan.version}, "same")) == []
    assert story.state.topologies["words"].version == plan.version


@pytest.mark.parametrize("change", [{TaskId("count", 3): 0}, {TaskId("lines", 1): 0}, {COUNT0: 5}])
def test_a_plan_that_cannot_be_run_changes_nothing(change: dict[TaskId, int]) -> None:
    story = running()
    plan = story.state.topologies["words"].plan
    with pytest.raises((StalePlan, TopologyError)):
        story.on(Replanned({"words": Plan(2, {**plan.placement, **change}, plan.key_groups)}, {"words": 1}, "bad"))
    assert story.state.topologies["words"].plan == plan


# ---- scale ----


def test_more_tasks_get_slots_and_as_few_key_groups_as_can_be() -> None:
    story = running()
    before = story.places()
    commands = story.on(Rescaled("words", {"count": 3, "top": 4}))
    topology = story.state.topologies["words"]
    assert said(commands) == ["3 tasks of count, 4 tasks of top from the next batch on"]
    assert topology.graph.component("count").par == 3 and set(topology.places) == set(topology.graph.tasks())
    assert all(topology.places[task] == place for task, place in before.items())
    assert Counter(topology.key_groups["count"]) == {0: 4, 1: 4, 2: 4}
    moved = sum(old != new for old, new in zip(initial_key_groups(GROUPS, 2), topology.key_groups["count"], strict=True))
    assert moved == 4 and topology.version == 2
    assert all(place.incarnation == 2 for task, place in topology.places.items() if task not in before)
    assert last(commands).topologies[0].graph is topology.graph


def test_fewer_tasks_leave_their_key_groups_to_those_that_stay() -> None:
    story = running()
    story.on(Rescaled("words", {"count": 1}))
    topology = story.state.topologies["words"]
    assert COUNT1 not in topology.places and COUNT1 not in topology.homes
    assert topology.key_groups["count"] == (0,) * GROUPS
    story.on(Rescaled("words", {"count": 2}))
    assert COUNT1 in topology.places and topology.version == 3


def test_key_groups_are_distributed_by_their_load() -> None:
    """In batches every tuple is counted."""
    story = running()
    story.on(Regrouped("words", "count", {group: int(group != 3) for group in range(GROUPS)}))
    story.on(LoadEstimated({"words": Load(5.0, key_groups={"count": [100.0] * 3 + [2000.0] + [100.0] * (GROUPS - 4)})}))
    story.on(Rescaled("words", {"count": 3}))
    owners = story.state.topologies["words"].key_groups["count"]
    assert (owners[3], owners.count(0)) == (0, 1), "the task with the hot group gets no other"
    assert abs(owners.count(1) - owners.count(2)) <= 1


def test_the_same_parallelism_moves_no_key_groups_of_a_component_beside_others_that_change() -> None:
    story = running()
    story.on(Regrouped("words", "count", {group: 0 for group in range(1, GROUPS)}))
    before = story.state.topologies["words"].key_groups["count"]
    story.on(Rescaled("words", {"count": 2, "top": 3}))
    assert story.state.topologies["words"].key_groups["count"] == before


def test_the_same_parallelism_makes_no_new_version() -> None:
    story = running()
    assert said(story.on(Rescaled("words", {"count": 2}))) == ["already has 2 tasks of count"]
    assert story.state.topologies["words"].version == 1


@pytest.mark.parametrize(("par", "says"), [
    ({"nobody": 2}, "has no component 'nobody'; it has lines, count, top"),
    ({"count": 3, "lines": 2}, "is a spout, and each of its 1 tasks has its own position"),
    ({"count": 0}, "so it can have 12 at most. Give a whole number from 1 to 12; the nearest is 1. topology.key.groups"),
    ({"count": 13}, "cannot have 13 tasks: its state has 12 key groups"),
    ({"count": True}, "cannot have True tasks"),
    ({"top": 1 << 17}, "Give a whole number from 1 to 65536; the nearest is 65536"),
])
def test_an_invalid_scale_request_is_refused_and_changes_nothing(par: dict[str, int], says: str) -> None:
    story = running()
    before = story.state.topologies["words"].plan
    with pytest.raises((TopologyError, UnknownName)) as refused:
        story.on(Rescaled("words", par))
    assert says in str(refused.value)
    assert story.state.topologies["words"].plan == before


def test_state_that_belongs_to_tasks_keeps_their_number() -> None:
    story = Story(2)
    made = batched()
    own = replace(made.component("top"), own_state=True)
    story.on(Submitted(replace(made, components=(*made.components[:2], own))))
    with pytest.raises(TopologyError, match=r"defines snapshot\(\)"):
        story.on(Rescaled("words", {"top": 3}))


def test_it_cannot_be_scaled_while_it_waits_or_ends() -> None:
    with pytest.raises(TopologyError, match="is waiting"):
        running(0).on(Rescaled("words", {"count": 3}))
    story = running()
    story.on(Killed("words", 10, 0.0))
    with pytest.raises(TopologyError, match="is stopping"):
        story.on(Rescaled("words", {"count": 3}))
