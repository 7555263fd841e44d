"""Events tell their causes: why tasks were placed, moved or rolled back."""

from __future__ import annotations

import pytest

from millrace.control.events import Replanned
from millrace.control.moves import RESTING
from millrace.model.graph import TaskId
from millrace.model.plan import Plan
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import start, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
TALLY = TaskId("tally", 0)


def told(cluster: LocalCluster, task: TaskId | None = None) -> list[tuple[str, str]]:
    """(text, cause) of the events, or of those that name a task."""
    return [(event.text, event.cause) for event in cluster.events if task is None or task in event.tasks]


def test_a_loss_is_the_cause_of_what_follows() -> None:
    cluster = start()
    until_wave(cluster, 1)
    slot = cluster.where("exact")[TALLY]
    cluster.kill(slot)
    cluster.run_until(lambda: cluster.master.topologies["exact"].status == "running")
    lost = f"worker {slot} lost: killed by the test"
    story = told(cluster, TALLY)
    assert story[-2] == (lost, "killed by the test")
    assert story[-1][0].split(" placed on ")[0].count("tally[0]") == 1 and story[-1][1] == lost
    causes = {text: cause for text, cause in told(cluster) if "restored" in text or "are up" in text}
    assert [cause for text, cause in causes.items() if "restored" in text] == [lost]
    assert told(cluster)[-1][0].startswith("all ") and told(cluster)[-1][1] == lost


def test_a_move_names_who_asked_for_it() -> None:
    cluster = start()
    until_wave(cluster, 1)
    target = (cluster.where("exact")[TALLY] + 1) % 3
    cluster.move("exact", TALLY, target)
    cluster.run_until(lambda: cluster.where("exact")[TALLY] == target
                      and cluster.master.topologies["exact"].handover.phase == RESTING)
    moves, moved = told(cluster, TALLY)[-2:]
    assert moves == (f"tally[0] moves from worker {(target - 1) % 3} to worker {target}", "person")
    assert moved[0].startswith(f"tally[0] moved to worker {target}") and moved[1] == "person"


def test_a_scheduler_is_named_with_its_decision() -> None:
    cluster = start()
    until_wave(cluster, 1)
    topology = cluster.master.topologies["exact"]
    target = (topology.places[TALLY].slot + 1) % 3
    plan = topology.plan
    cluster.tell(Replanned({"exact": Plan(plan.version, {**plan.placement, TALLY: target}, plan.key_groups)},
                           {"exact": plan.version}, "otd: less traffic", 12))
    cluster.run_until(lambda: topology.places[TALLY].slot == target and topology.handover.phase == RESTING)
    assert [cause for _, cause in told(cluster, TALLY)[-2:]] == 2 * ["scheduler: decision 12, otd: less traffic"]


def test_a_newer_plan_replaces_what_still_waits_of_an_older_one() -> None:
    cluster = start()
    until_wave(cluster, 1)
    topology, other = cluster.master.topologies["exact"], TaskId("tally", 1)
    source, target = topology.places[TALLY].slot, (topology.places[TALLY].slot + 1) % 3
    cluster.deaf.add(target)  # so that the first move arms until then
    cluster.move("exact", TALLY, target)
    stays = topology.places[other].slot

    def replan(slot: int, decision: int) -> None:
        plan = topology.plan
        cluster.tell(Replanned({"exact": Plan(plan.version, {**plan.placement, other: slot}, plan.key_groups)},
                               {"exact": plan.version}, "otd: less traffic", decision))

    replan((stays + 1) % 3, 12)
    assert told(cluster, other)[-1] == ("tally[1] will move after tally[0]", "scheduler: decision 12, otd: less traffic")
    replan((stays + 2) % 3, 13)
    assert told(cluster, other)[-1][1] == "scheduler: decision 13, otd: less traffic"
    replan(stays, 14)
    assert told(cluster, other)[-1] == ("tally[1] not moved: a newer plan does not move it", "a newer plan does not move it")
    assert not topology.handover.waiting and topology.homes[other] == stays
    cluster.hear(target)
    cluster.run_until(lambda: topology.handover.at_rest)
    assert topology.places[TALLY].slot == target != source and topology.places[other].slot == stays


def test_a_worker_that_is_back_is_the_cause_of_the_return() -> None:
    cluster = start()
    until_wave(cluster, 1)
    slot = cluster.where("exact")[TALLY]
    cluster.kill(slot)
    cluster.run_until(lambda: cluster.master.topologies["exact"].status == "running")
    cluster.start(slot)
    cluster.run_until(lambda: cluster.where("exact")[TALLY] == slot)
    assert told(cluster, TALLY)[-1][1] == f"return: worker {slot} is back"


def test_an_abandoned_wave_and_a_roll_back_have_their_reason() -> None:
    cluster = start()
    until_wave(cluster, 1)
    parts.FAIL_SNAPSHOT.append(ValueError("no snapshot today"))
    cluster.run_until(lambda: any("abandoned" in text for text, _ in told(cluster)))
    abandoned = next((text, cause) for text, cause in told(cluster) if "abandoned" in text)
    assert "no snapshot today" in abandoned[1] and abandoned[1] in abandoned[0]
    parts.FAIL_WRITE.append(OSError("the disk is full"))
    cluster.run_until(lambda: any("rolled back" in text for text, _ in told(cluster)))
    cluster.run_until(lambda: told(cluster)[-1][0].startswith("all "))
    assert "the disk is full" in told(cluster)[-1][1]
