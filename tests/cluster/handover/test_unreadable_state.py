"""The store cannot be read while a move copies the state from it: only the copy is tried again, and not after the move was
cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.events import Regrouped, Withdrawn
from millrace.errors import StoreUnreachable
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import assert_exact, finish, start, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 1200
TALLY = TaskId("tally", 0)


def test_the_component_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, made = start(limit=LIMIT), list[int]()
    until_wave(cluster)
    monkeypatch.setattr(parts.Tally, "initialize", lambda tally, *_: made.append(tally.task_index))
    target = (cluster.where("exact")[TALLY] + 1) % 3
    cluster.store.broken = StoreUnreachable("the store is away")
    cluster.move("exact", TALLY, target)
    state = cluster.master.topologies["exact"]
    cluster.run(3.0)
    move = state.handover.moving(TALLY)
    assert move is not None and "the store is away" in move.trouble
    cluster.store.broken = None
    cluster.run_until(lambda: state.handover.at_rest)
    assert cluster.where("exact")[TALLY] == target, cluster.said
    assert made == [0]
    finish(cluster)
    assert_exact(LIMIT)


def test_a_cancelled_move_of_key_groups_reads_no_more() -> None:
    cluster, told = start(limit=LIMIT), list[wire.Armed]()
    until_wave(cluster)

    def listen(message: Any) -> bool:
        if isinstance(message, wire.Armed):
            told.append(message)
        return False

    cluster.lose = listen
    state = cluster.master.topologies["exact"]
    groups = [group for group, owner in enumerate(state.key_groups["tally"]) if owner == 0]
    cluster.store.broken = StoreUnreachable("the store is away")
    cluster.tell(Regrouped("exact", "tally", dict.fromkeys(groups, 1)))
    cluster.run_until(lambda: any(message.error for message in told))
    cluster.tell(Withdrawn("exact", TALLY))
    assert state.handover.at_rest
    told.clear()
    cluster.run(3.0)
    assert not told
    cluster.store.broken = None
    finish(cluster)
    assert_exact(LIMIT)


@pytest.mark.parametrize("regroup", [False, True])
def test_state_is_not_deleted_while_it_is_copied(regroup: bool) -> None:
    """A copy can take longer than many waves."""
    cluster = start(limit=2 * LIMIT, rate=300.0)
    until_wave(cluster, 2)
    cluster.lose = lambda message: isinstance(message, wire.Armed)
    state = cluster.master.topologies["exact"]
    if regroup:
        groups = [group for group, owner in enumerate(state.key_groups["tally"]) if owner == 0]
        cluster.tell(Regrouped("exact", "tally", dict.fromkeys(groups, 1)))
    else:
        cluster.move("exact", TALLY, (cluster.where("exact")[TALLY] + 1) % 3)
    assert state.checkpoint is not None and state.handover.copies
    needed = state.checkpoint.blobs()
    until_wave(cluster, 20)
    assert needed <= set(cluster.store.names("")) and state.handover.copies
    cluster.lose = lambda message: False
    cluster.run_until(lambda: state.handover.at_rest)
    until_wave(cluster, 20)
    assert not needed <= set(cluster.store.names("")), "nothing is deleted any more"
    finish(cluster)
    assert_exact(2 * LIMIT)
