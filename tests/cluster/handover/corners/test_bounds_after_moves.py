"""The bounds of what a task may hold back are the same at each hand-over, and for senders in all workers."""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Any

import pytest

from millrace.config import CHANNEL_WINDOW, CHUNK_TUPLES, HANDOVER_SWITCH_LIMIT
from millrace.control.events import Regrouped
from millrace.model.graph import TaskId
from millrace.runtime.tasks import inbox
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import assert_exact, counts, finish, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT, BUSY, TASK = 9000, 14, TaskId("tally", 0)


def hold_state(cluster: LocalCluster, seconds: float) -> Callable[[], None]:
    """Run until the state of the next move is on its way, and for so much longer. Returns the call that delivers it."""
    kept: list[Any] = []
    post = cluster.post

    def hold(*message: Any) -> None:
        if isinstance(wire.decode_data(message[2][0]), wire.StatePart):
            kept.append(message)
        else:
            post(*message)

    def release() -> None:
        cluster.post = post  # type: ignore[method-assign]
        for message in kept:
            post(*message)
        cluster.run_until(lambda: all(state.handover.at_rest for state in cluster.master.topologies.values()))

    cluster.post = hold  # type: ignore[method-assign]
    cluster.run_until(lambda: bool(kept))
    cluster.run(seconds)
    return release


def test_key_groups_move_to_a_task_that_was_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "HELD_TUPLES", 400)
    cluster = start(limit=LIMIT, workers=BUSY)
    until_wave(cluster, 1)
    owners = cluster.master.topologies["exact"].key_groups["tally"]
    cluster.move("exact", TASK, min(set(range(BUSY)) - set(cluster.where("exact").values())))
    release = hold_state(cluster, 1.0)
    [box] = [task.inbox for task in cluster.tasks("tally") if task.name == TASK and task.arrival is not None]
    assert box.tuples > 400
    release()
    cluster.tell(Regrouped("exact", "tally", {group: 0 for group, owner in enumerate(owners) if owner == 1 and group % 2}))
    release = hold_state(cluster, 0.05)
    [lane] = box._lanes.values()
    assert 0 < sum(delivery.count for delivery in lane) <= 400
    assert all(delivery.more for delivery in lane), "it is credited on arrival"
    release()
    finish(cluster)
    assert_exact(LIMIT)


@pytest.mark.parametrize("groups", [False, True])
def test_input_from_the_same_worker_has_a_bound_in_bytes(groups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "HELD_BYTES", most := 20_000)
    config = {CHUNK_TUPLES.key: 10, CHANNEL_WINDOW.key: 8, HANDOVER_SWITCH_LIMIT.key: 20.0}
    cluster = start(parts.AtMost, limit=LIMIT, workers=BUSY, par={"one": 1}, **config)
    until_wave(cluster, 1, "atmost")
    owners, sender = cluster.master.topologies["atmost"].key_groups["tally"], cluster.where("atmost")[TaskId("one", 0)]
    if groups:
        cluster.move("atmost", TASK, sender)
        cluster.run_until(lambda: cluster.master.topologies["atmost"].handover.at_rest)
        cluster.tell(Regrouped("atmost", "tally", {group: 0 for group, owner in enumerate(owners) if owner == 1}))
    else:
        cluster.move("atmost", TASK, sender)
    release = hold_state(cluster, 2.0)
    [box] = [task.inbox for task in cluster.tasks("tally") if task.name == TASK and task.arrival is not None]
    held = [delivery for queue in (box.waiting, *box._lanes.values()) for delivery in queue]
    assert all(delivery.local for delivery in held)
    credited = sum(getsizeof(value) for delivery in held if delivery.more for row in delivery.body for value in row)
    assert most // 4 <= credited <= most
    assert sum(delivery.count for delivery in held if not delivery.more) <= 8 * 10
    release()
    cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    cluster.run(2.0)
    assert counts(cluster) == parts.expected_counts(LIMIT, 1)
    assert (box._early_tuples, box._early_bytes) == (0, 0)
