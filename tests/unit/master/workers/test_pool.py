"""Requests to add, remove and restart workers, with a state machine, and processes that only exist on paper."""

from __future__ import annotations

import pytest

from millrace.control.events import Rebalanced, Submitted
from millrace.errors import MillraceError, NotEnoughSlots, NotTheAuthor, StoreNotShared, UnknownName
from millrace.model.graph import ComponentDef, StreamDef, TaskId, TopologyGraph
from support.paper_workers import PaperMaster, supplied

SECONDS = 60.0  # a safety limit, never a measure


def migrating(master: PaperMaster, target: int = 1) -> None:
    """Begin to migrate a topology that runs on workers 0 and 1."""
    spout = ComponentDef("lines", "spout", "m:C", 1, {}, (StreamDef("default", ("line",)),), (), False, "next_tuple",
                         movable=True)
    master.tell(Submitted(TopologyGraph("words", (spout,), {"topology.guarantee": "at-most-once"})))
    master.quiet(1.0)
    master.tell(Rebalanced("words", {TaskId("lines", 0): target}, "storm"))
    assert master.state.topologies["words"].migration is not None


def test_a_worker_is_removed_and_its_slot_released() -> None:
    master, supply = supplied()
    answer = master.pool.remove(1)
    assert not answer.done()
    master.quiet(1.0)
    result = answer.result(SECONDS)
    assert result.pop("ms") >= 0
    assert result == {"slot": 1, "node": "host", "executor": "e1", "pid": 102, "executor_given_back": True}
    assert supply.released == [(1, "e1")] and sorted(master.state.workers) == [0]


def test_a_worker_is_restarted() -> None:
    master, supply = supplied()
    answer = master.pool.restart(1)
    master.quiet(1.0)
    assert 1 not in master.state.workers and not answer.done()
    master.join(1)
    master.quiet(2.0)
    result = answer.result(SECONDS)
    assert result.pop("ms") >= 0
    assert result == {"slot": 1, "old_pid": 102, "new_pid": 103, "old_node": "host", "new_node": "host"}
    assert not supply.released


def test_workers_are_added() -> None:
    master, _ = supplied()
    assert master.pool.add(2).result(SECONDS)["slots"] == [2, 3]
    assert sorted(master.state.workers) == [0, 1, 2, 3]


def test_workers_that_do_not_join_are_withdrawn() -> None:
    master, supply = supplied(starts=False)
    with pytest.raises(NotEnoughSlots, match=r"of 2 new workers, 2 did not join .*\. None is added$"):
        master.pool.add(2).result(SECONDS)
    assert supply.released == [(2, ""), (3, "")] and sorted(supply.slots()) == [0, 1]


def test_a_migration_elsewhere_does_not_keep_new_workers_from_being_withdrawn() -> None:
    master, supply = supplied(starts=False)
    migrating(master)
    with pytest.raises(NotEnoughSlots, match=r"None is added$"):
        master.pool.add(1).result(SECONDS)
    assert supply.released == [(2, "")]


def test_new_workers_that_cannot_be_withdrawn_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    master, supply = supplied()

    def not_shared() -> None:
        migrating(master, target=2)
        raise StoreNotShared("worker 2 does not find the checkpoints")

    monkeypatch.setattr(master, "try_store", not_shared)
    with pytest.raises(StoreNotShared, match=r"find the checkpoints\. But worker 2 stays: 'words' is being migrated by storm"):
        master.pool.add(1).result(SECONDS)
    assert not supply.released and sorted(master.state.workers) == [0, 1, 2]


def test_requests_that_cannot_be_fulfilled() -> None:
    master, supply = supplied()
    with pytest.raises(UnknownName, match="there is no worker 5"):
        master.pool.remove(5)
    with pytest.raises(MillraceError, match="0 workers cannot be added"):
        master.pool.add(0)
    first = master.pool.remove(1)
    with pytest.raises(MillraceError, match="worker 1 is being removed already"):
        master.pool.restart(1)
    master.quiet(1.0)
    assert first.result(SECONDS)["slot"] == 1, "the refused request has not taken its place"
    master.superseded = "another master"
    for request in (lambda: master.pool.add(1), lambda: master.pool.remove(0), lambda: master.pool.restart(0)):
        with pytest.raises(NotTheAuthor):
            request()
    assert supply.released == [(1, "e1")]


def test_a_cluster_without_workers_of_its_own_says_what_to_do_instead() -> None:
    master = PaperMaster()
    for request in (lambda: master.pool.add(1), lambda: master.pool.remove(0), lambda: master.pool.restart(0)):
        with pytest.raises(MillraceError, match=r"Spark's executors \(microbatch engine\).*Start or stop Spark executors.*"
                                                "--engine resident"):
            request()
    assert sorted(master.state.workers) == [0, 1]


def test_requests_end_with_the_master() -> None:
    master, _ = supplied()
    answer = master.pool.remove(1)
    master.pool.close()
    with pytest.raises(MillraceError, match="has ended before worker 1 had left"):
        answer.result(0)
