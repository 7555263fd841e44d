"""Plans of a scheduler that come while tasks or key groups move, and were made before: what has moved meanwhile stays moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from story import COUNT0, COUNT1, TOP0, TOP1, Story, graph, said

from millrace.control.assignment import ARM, SWITCH
from millrace.control.events import MoveArmed, Moved, MoveTaken, Regrouped, Replanned
from millrace.control.moves import PLANS_KEPT
from millrace.control.topology_state import TopologyState
from millrace.errors import StalePlan
from millrace.model.graph import ACKER, TaskId
from millrace.model.plan import Plan


def topology(story: Story) -> TopologyState:
    return story.state.topologies["words"]


def other(story: Story, task: TaskId) -> int:
    return 1 - story.places()[task].slot


def armed(story: Story) -> None:
    for moving in list(topology(story).handover.batch):
        story.on(MoveArmed(topology(story).number, topology(story).epoch, moving.number, 0))


def taken(story: Story) -> None:
    for moving in list(topology(story).handover.batch):
        story.on(MoveTaken(topology(story).number, topology(story).epoch, moving.number))


def work_off(story: Story) -> None:
    while not topology(story).handover.at_rest:
        armed(story)
        taken(story)


def replan(story: Story, base: Plan, places: dict[TaskId, int], groups: dict[int, int] | None = None) -> list[str]:
    """Tell of a plan that was made for `base`, with some tasks and key groups elsewhere."""
    owners = tuple((groups or {}).get(group, owner) for group, owner in enumerate(base.key_groups["count"]))
    plan = Plan(base.version + 1, {**base.placement, **places}, {"count": owners})
    return said(story.on(Replanned({"words": plan}, {"words": base.version}, "otd: less traffic")))


def until_arming(story: Story) -> None:
    assert topology(story).handover.phase == ARM


def until_switching(story: Story) -> None:
    armed(story)
    assert topology(story).handover.phase == SWITCH


@pytest.mark.parametrize("until", [until_arming, until_switching, work_off])
def test_a_plan_made_before_a_move_is_queued_and_leaves_the_move_alone(until: Callable[[Story], None]) -> None:
    story = Story(workers=2).running()
    base, target, wanted = topology(story).plan, other(story, COUNT0), other(story, TOP1)
    story.on(Moved("words", COUNT0, target))
    until(story)
    assert topology(story).version > base.version
    replan(story, base, {TOP1: wanted})
    work_off(story)
    assert topology(story).plan.placement == {**base.placement, COUNT0: target, TOP1: wanted}


@pytest.mark.parametrize("until", [until_arming, until_switching, work_off])
def test_key_groups_too_stay_where_they_have_gone(until: Callable[[Story], None]) -> None:
    story = Story(workers=2).running()
    base = topology(story).plan
    first, second = (group for group, owner in list(enumerate(base.key_groups["count"]))[:2])
    assert base.key_groups["count"][first] == base.key_groups["count"][second] == 0
    story.on(Regrouped("words", "count", {first: 1}))
    until(story)
    replan(story, base, {}, {second: 1})
    work_off(story)
    assert topology(story).key_groups["count"] == (1, 1, *base.key_groups["count"][2:])


def test_what_a_person_has_asked_for_meanwhile_counts() -> None:
    story = Story(workers=3).running()
    base, place = topology(story).plan, story.places()[COUNT0].slot
    story.on(Moved("words", COUNT0, (place + 1) % 3))
    replan(story, base, {COUNT0: (place + 2) % 3})
    work_off(story)
    assert story.places()[COUNT0].slot == (place + 1) % 3


def test_a_move_of_an_acker_does_not_make_a_plan_worthless() -> None:
    story = Story(workers=2).running(graph(**{"topology.guarantee": "at-least-once", "topology.acker.executors": 1}))
    base, acker, wanted = topology(story).plan, TaskId(ACKER, 0), other(story, TOP0)
    target = other(story, acker)
    story.on(Moved("words", acker, target))
    replan(story, base, {TOP0: wanted})
    work_off(story)
    assert topology(story).plan.placement == {**base.placement, acker: target, TOP0: wanted}


def test_after_a_loss_a_plan_made_before_is_refused() -> None:
    story = Story(workers=3).running()
    base = topology(story).plan
    story.on(Moved("words", COUNT1, (story.places()[COUNT1].slot + 1) % 3))
    story.lose(next(slot for slot in (0, 1, 2) if slot in base.placement.values()))
    with pytest.raises(StalePlan, match="the plan was made for version 1: it is discarded"):
        replan(story, base, {TOP0: other(story, TOP0)})


def test_plans_that_are_too_old_are_refused() -> None:
    story = Story(workers=2).running()
    base = topology(story).plan
    for _ in range(PLANS_KEPT):
        story.on(Moved("words", COUNT0, other(story, COUNT0)))
        work_off(story)
    assert len(topology(story).handover.superseded) == PLANS_KEPT
    with pytest.raises(StalePlan, match="the plan was made for version 1"):
        replan(story, base, {TOP0: other(story, TOP0)})
