"""Messages of a hand-over that come twice, and state that is long under way: nothing is repeated, and nothing piles up."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.config import CHUNK_TUPLES
from millrace.control.assignment import SWITCH
from millrace.control.events import MoveArmed, MoveTaken
from millrace.control.moves import RESTING
from millrace.model.graph import TaskId
from millrace.runtime.tasks import inbox
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster.watched_moves import BETWEEN_WORKERS, END, MOVE, START, STATE, kind_of
from support.cluster.wave_runs import assert_exact, finish, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 1200


def move(cluster: LocalCluster, task: TaskId) -> None:
    cluster.move("exact", task, (cluster.where("exact")[task] + 1) % 3)


@pytest.mark.parametrize(("component", "kind"), [
    ("numbers", STATE), ("numbers", END), ("numbers", START),  # nothing comes to a spout, so none is told that it moves
    *(("tally", kind) for kind in BETWEEN_WORKERS),
    ("ledger", STATE), ("ledger", MOVE)])  # a sink sends nothing that ends
def test_a_message_between_workers_comes_twice(component: str, kind: str) -> None:
    cluster, post, doubled = start(limit=LIMIT), LocalCluster.post, list[int]()
    until_wave(cluster, 1)

    def twice(sender: int, address: Any, frames: list[bytes]) -> None:
        post(cluster, sender, address, list(frames))
        if kind_of(frames) == kind:
            doubled.append(sender)
            post(cluster, sender, address, list(frames))

    epoch = cluster.master.topologies["exact"].epoch
    cluster.post = twice  # type: ignore[method-assign]
    move(cluster, TaskId(component, 0))
    cluster.run_until(lambda: cluster.master.topologies["exact"].handover.phase == RESTING)
    assert cluster.master.topologies["exact"].epoch == epoch, cluster.said
    assert doubled, "no such message was sent"
    finish(cluster)
    assert_exact(LIMIT)


@pytest.mark.parametrize("kind", [MoveArmed, MoveTaken])
def test_an_answer_to_the_master_comes_twice(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, told = start(limit=LIMIT), list[Any]()
    until_wave(cluster, 1)
    tell = cluster.tell

    def twice(event: Any) -> None:
        tell(event)
        if isinstance(event, kind):
            told.append(event)
            tell(event)

    monkeypatch.setattr(cluster, "tell", twice)
    for index in (0, 1):
        move(cluster, TaskId("tally", index))
        cluster.run_until(lambda: cluster.master.topologies["exact"].handover.phase == RESTING)
    finish(cluster)
    assert_exact(LIMIT)
    assert told and not any("roll" in text for text in cluster.said), cluster.said


@pytest.mark.parametrize(("limit", "most"), [("HELD_TUPLES", 500), ("HELD_BYTES", 5000)])
def test_sources_wait_while_the_state_is_long_under_way(limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Input that comes before the state is credited up to a limit, so that senders can go on, and not beyond."""
    monkeypatch.setattr(inbox, limit, most)
    cluster = start(limit=20 * LIMIT, **{CHUNK_TUPLES.key: 20})
    until_wave(cluster, 2)
    kept: list[tuple[int, Any, list[bytes]]] = []
    post = cluster.post

    def keep_state(sender: int, address: Any, frames: list[bytes]) -> None:
        if kind_of(frames) == STATE:
            kept.append((sender, address, frames))
        else:
            post(sender, address, frames)

    def emitted() -> list[int]:
        return [task.component._next_position for task in tasks(cluster, "numbers")]

    cluster.post = keep_state  # type: ignore[method-assign]
    move(cluster, TaskId("tally", 0))
    cluster.run_until(lambda: bool(kept))
    cluster.run(3.0)
    before = emitted()
    cluster.run(3.0)
    assert emitted() == before and max(before) < 20 * LIMIT, "the sources went on, so their tuples pile up somewhere"
    assert cluster.master.topologies["exact"].handover.phase == SWITCH
    cluster.post = post  # type: ignore[method-assign]
    for message in kept:
        post(*message)
    finish(cluster)
    assert_exact(20 * LIMIT)
    assert not any("roll" in text for text in cluster.said), cluster.said



@pytest.mark.parametrize("late", ["nothing", "start"])
def test_the_old_worker_dies_with_its_last_chunks_after_the_new_one_has_taken_over(late: str) -> None:
    """Its last chunks and its end are lost with it, although no task was there any more. `late`: the receivers learn of the new
    sender after they know of the loss."""
    cluster = start(limit=LIMIT, workers=14)  # each task has a worker of its own
    until_wave(cluster, 1)
    state, task = cluster.master.topologies["exact"], TaskId("one", 0)
    old = cluster.where("exact")[task]
    target = min(set(range(14)) - set(cluster.where("exact").values()))
    kept: list[tuple[int, Any, list[bytes]]] = []
    behind: set[tuple[int, int]] = set()
    post = cluster.post

    def keep_start(sender: int, address: Any, frames: list[bytes]) -> None:
        pair = sender, address.slot
        if pair in behind or (late == "start" and kind_of(frames) == START):
            behind.add(pair)  # messages of two workers stay in order
            kept.append((sender, address, frames))
        else:
            post(sender, address, frames)

    def unsent(sender: int, receiver: int, frames: list[bytes]) -> bool:
        return sender == old and state.handover.phase == SWITCH and isinstance(wire.decode_data(frames[0]), wire.Chunk)

    epoch, cluster.drop, cluster.post = state.epoch, unsent, keep_start  # type: ignore[method-assign]
    cluster.move("exact", task, target)
    cluster.run_until(lambda: state.handover.phase == RESTING)
    assert cluster.where("exact")[task] == target and state.epoch == epoch
    cluster.kill(old)
    cluster.run(1.0)
    cluster.post = post  # type: ignore[method-assign]
    for message in kept:
        post(*message)
    finish(cluster)
    assert_exact(LIMIT)
    assert state.epoch > epoch
