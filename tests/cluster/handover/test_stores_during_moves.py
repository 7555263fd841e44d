"""A checkpoint store that fails or hangs in each phase of a hand-over, of a task or of key groups: the output stays exact, and
nothing rolls back because of it. A move that cannot be prepared waits, and is cancelled in the end."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.config import HANDOVER_PREPARE_LIMIT
from millrace.control.assignment import ARM, SWITCH
from millrace.control.moves import REFRESH
from millrace.errors import StoreUnreachable
from millrace.testing.local_cluster import LocalCluster
from support.cluster import watched_moves as watched
from support.cluster import wave_parts as parts
from support.cluster.watched_moves import GROUPS, TASK, Short, ShortAtLeast, WatchedMove
from support.cluster.wave_runs import assert_exact, finish, waves

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 600
FAILS, HANGS = "fails", "hangs"


def spoil(cluster: LocalCluster, fault: str) -> None:
    cluster.store_hangs = fault == HANGS
    cluster.store.broken = StoreUnreachable("the test's store is away") if fault == FAILS else None


def check(move: WatchedMove) -> None:
    move.end()
    assert move.state.epoch == move.epoch, move.cluster.said


@pytest.mark.parametrize("topology", [Short, ShortAtLeast])
@pytest.mark.parametrize("what", [TASK, GROUPS])
@pytest.mark.parametrize("fault", [FAILS, HANGS])
@pytest.mark.parametrize("phase", [ARM, REFRESH, SWITCH])
def test_the_store_is_away_for_a_while(topology: Any, what: str, fault: str, phase: str) -> None:
    """The switch does not need it; before that, the move waits for it."""
    move = WatchedMove(topology, what, LIMIT)
    cluster = move.cluster
    cluster.store_seconds = 0.01  # so that it is in use in each phase
    move.move()
    cluster.run_until(lambda: move.state.handover.phase == phase, seconds=2.0)
    spoil(cluster, fault)
    if phase == SWITCH:
        cluster.run_until(lambda: move.at_rest, seconds=1.0)
    else:
        cluster.run(1.0)
        assert not move.at_rest and move.state.handover.phase != SWITCH
    spoil(cluster, "")
    cluster.run_until(lambda: move.at_rest)
    assert not move.failures(), move.failures()
    check(move)


@pytest.mark.parametrize("what", [TASK, GROUPS])
@pytest.mark.parametrize("fault", [FAILS, HANGS])
@pytest.mark.parametrize("phase", [ARM, REFRESH])
def test_the_store_is_away_for_long(what: str, fault: str, phase: str) -> None:
    """The move is cancelled, with the reason, and everything stays where it is."""
    move = WatchedMove(Short, what, LIMIT, **{HANDOVER_PREPARE_LIMIT.key: 1.5, "topology.checkpoint.max.failures": 100})
    cluster = move.cluster
    cluster.store_seconds = 0.01
    before = cluster.where(move.name), dict(move.state.key_groups)
    move.move()
    cluster.run_until(lambda: move.state.handover.phase == phase, seconds=2.0)
    spoil(cluster, fault)
    cluster.run_until(lambda: move.at_rest, seconds=5.0)
    [record] = cluster.migrations.past(move.name)
    assert record["outcome"] == "cancelled" and "within 1.5 s" in record["reason"], record
    if fault == FAILS and phase == ARM:
        assert "the test's store is away" in record["reason"]
    assert (cluster.where(move.name), move.state.key_groups) == before
    spoil(cluster, "")
    committed = waves(cluster, move.name).committed
    cluster.run_until(lambda: waves(cluster, move.name).committed > committed)
    move.move()
    cluster.run_until(lambda: move.at_rest)
    assert [record["outcome"] for record in cluster.migrations.past(move.name)].count("done") == 1
    check(move)


@pytest.mark.parametrize("what", [TASK, GROUPS])
@pytest.mark.parametrize("fault", [FAILS, HANGS])
@pytest.mark.parametrize("role", [watched.OLD, watched.NEW])
def test_the_store_is_away_and_a_worker_dies_during_the_switch(what: str, fault: str, role: str) -> None:
    """The roll-back waits for the store."""
    for message in (watched.MOVE, watched.STATE, watched.TAKEN):
        parts.forget()
        move = WatchedMove(Short, what, LIMIT)
        move.move()
        move.until_message(message)
        spoil(move.cluster, fault)
        move.cluster.kill(move.slots[role])
        move.release()
        move.cluster.run(1.0)
        move.cluster.start(move.slots[role])
        spoil(move.cluster, "")
        finish(move.cluster, move.name)
        assert_exact(LIMIT, 1)
        assert move.state.epoch > move.epoch
