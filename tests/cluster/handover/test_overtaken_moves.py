"""Moves that a newer plan of the scheduler wants otherwise, and moves that end early: each is in the record with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.assignment import ARM, SWITCH
from millrace.control.events import Moved, Replanned
from millrace.control.moves import RESTING
from millrace.control.topology_state import TopologyState
from millrace.model.graph import ACKER, TaskId
from millrace.model.plan import Plan
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import assert_exact, finish, start, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 1200
TALLY = TaskId("tally", 0)


def started() -> tuple[LocalCluster, TopologyState]:
    cluster = start(limit=LIMIT)
    until_wave(cluster, 1)
    return cluster, cluster.master.topologies["exact"]


def replan(cluster: LocalCluster, slot: int | None = None, owner: int | None = None, groups: int = 8) -> None:
    """A plan that has the first task of the tally on a slot, or some of its first key groups at another task."""
    plan = cluster.master.topologies["exact"].plan
    owners = list(plan.key_groups["tally"])
    own = [group for group, who in enumerate(owners) if who == 0][:groups]
    for group in own:
        owners[group] = owner if owner is not None else 0
    placement = {**plan.placement, TALLY: slot if slot is not None else plan.placement[TALLY]}
    cluster.tell(Replanned({"exact": Plan(plan.version, placement, {**plan.key_groups, "tally": tuple(owners)})},
                           {"exact": plan.version}, "otd: less traffic", 12))


def records(cluster: LocalCluster) -> list[tuple[str, str]]:
    return [(record["outcome"], record["reason"]) for record in cluster.migrations.past()]


def assert_ends(cluster: LocalCluster, *expected: tuple[str, str]) -> None:
    state = cluster.master.topologies["exact"]
    cluster.run_until(lambda: state.handover.at_rest)
    assert records(cluster) == list(expected), cluster.said
    finish(cluster)
    assert_exact(LIMIT)


DONE = ("done", "")
STAYS = ("cancelled", "a newer plan does not move it")
ELSEWHERE = ("cancelled", "a newer plan moves it elsewhere")


@pytest.mark.parametrize(("step", "expected"), [(0, [STAYS]), (1, [DONE]), (2, [ELSEWHERE, DONE])])
def test_a_newer_plan_decides_about_a_task_that_arms(step: int, expected: list[tuple[str, str]]) -> None:
    """It stays, goes where it is going, or elsewhere."""
    cluster, state = started()
    old = state.places[TALLY].slot
    replan(cluster, (old + 1) % 3)
    assert state.handover.phase == ARM
    replan(cluster, (old + step) % 3)
    assert not any("will move after" in text for text in cluster.said)
    cluster.run_until(lambda: state.handover.at_rest)
    assert state.places[TALLY].slot == (old + step) % 3
    assert_ends(cluster, *expected)


@pytest.mark.parametrize(("owner", "groups", "expected"), [
    (None, 8, [STAYS]), (1, 8, [DONE]), (2, 8, [ELSEWHERE, DONE]), (1, 4, [ELSEWHERE, DONE])])
def test_a_newer_plan_decides_about_key_groups_that_arm(owner: int | None, groups: int,
                                                        expected: list[tuple[str, str]]) -> None:
    """They stay, go where they are going, elsewhere, or only some of them go."""
    cluster, state = started()
    own = [group for group, who in enumerate(state.key_groups["tally"]) if who == 0]
    replan(cluster, owner=1)
    assert state.handover.phase == ARM
    replan(cluster, owner=owner, groups=groups)
    cluster.run_until(lambda: state.handover.at_rest)
    owners = state.key_groups["tally"]
    assert {owners[group] for group in own[:groups]} == {owner or 0} and {owners[group] for group in own[groups:]} == {0}
    assert_ends(cluster, *expected)


def test_a_move_that_a_person_wants_is_not_cancelled_by_a_plan() -> None:
    cluster, state = started()
    target = (state.places[TALLY].slot + 1) % 3
    cluster.move("exact", TALLY, target)
    replan(cluster)
    cluster.run_until(lambda: state.handover.at_rest)
    assert state.places[TALLY].slot == target
    assert_ends(cluster, DONE)


def test_a_plan_does_not_cancel_a_move_that_switches() -> None:
    cluster, state = started()
    old = state.places[TALLY].slot
    replan(cluster, (old + 1) % 3)
    cluster.run_until(lambda: state.handover.phase == SWITCH)
    replan(cluster, old)
    cluster.run_until(lambda: state.handover.at_rest)
    assert state.places[TALLY].slot == old
    assert_ends(cluster, DONE, DONE)


def test_the_move_of_an_acker_is_recorded() -> None:
    cluster = start(parts.AtLeast, limit=LIMIT)
    until_wave(cluster, 1, "atleast")
    acker = TaskId(ACKER, 0)
    old = cluster.where("atleast")[acker]
    version = cluster.master.topologies["atleast"].version
    cluster.deaf.add(old)  # its ledger is still there
    cluster.tell(Moved("atleast", acker, (old + 1) % 3))
    cluster.run(0.5)
    assert cluster.migrations.past() == []
    cluster.hear(old)
    cluster.run_until(lambda: bool(cluster.migrations.past()))
    [record] = cluster.migrations.past()
    assert record["phases_ms"]["arm"] == 0.0 and record["phases_ms"]["switch"] == record["phases_ms"]["done"] >= 500
    assert (record["strategy"], record["cause"], record["outcome"]) == ("handover", "person", "done")
    assert (record["from_version"], record["to_version"]) == (version, version + 1)
    [moved] = record["moved"]
    assert (moved["task"], moved["from"], moved["to"]) == (str(acker), old, (old + 1) % 3)


@pytest.mark.parametrize("phase", [ARM, SWITCH])
def test_moves_that_the_end_of_the_topology_cuts_short_are_recorded(phase: str) -> None:
    cluster, state = started()
    cluster.lose = lambda message: isinstance(message, wire.Taken)
    cluster.move("exact", TALLY, (state.places[TALLY].slot + 1) % 3)
    cluster.run_until(lambda: state.handover.phase == phase)
    assert state.handover.phase != RESTING
    cluster.stop("exact", wait=0.0)
    cluster.run_until(lambda: not cluster.master.topologies)
    [record] = cluster.migrations.past()
    assert record["outcome"] == "cancelled" and record["reason"].startswith("the topology ended: killed as of wave ")
    assert (record["phases_ms"]["switch"] is not None) == (phase == SWITCH)


def test_a_move_that_arms_is_cancelled_when_the_topology_is_stopped() -> None:
    cluster, state = started()
    places: Any = dict(state.places)
    cluster.deaf.add((state.places[TALLY].slot + 1) % 3)
    cluster.move("exact", TALLY, (state.places[TALLY].slot + 1) % 3)
    cluster.stop("exact", wait=100.0)
    cluster.run(0.2)
    assert records(cluster) == [("cancelled", "the topology is stopping")] and state.places == places
