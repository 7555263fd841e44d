"""Requests of users in each step of a migration: to kill or pause the topology, which it must bear, and to change the placement
in another way, which are refused without a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.control import events
from millrace.control.events import Killed, Paused, Rebalanced, Regrouped, Unpaused, Withdrawn, WorkerLeaves
from millrace.errors import TopologyError
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import assert_exact, finish, finish_at_least
from support.migrations.runs import BEFORE, MOVES, MigrationRun, Moved, MovedAtLeast, each_step, mainly

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
REFUSED: dict[str, Callable[[MigrationRun], Any]] = {
    "migration": lambda run: Rebalanced(run.name, {TaskId("ledger", 0): 0}, run.strategy),
    "hand-over": lambda run: Rebalanced(run.name, {TaskId("ledger", 0): 0}),
    "move": lambda run: events.Moved(run.name, TaskId("ledger", 0), 0),
    "move by a strategy": lambda run: events.Moved(run.name, TaskId("ledger", 0), 0, "rollback"),
    "regroup": lambda run: Regrouped(run.name, "tally", {0: 1, 1: 0}),
    "removal": lambda run: WorkerLeaves(1),
    "restart": lambda run: WorkerLeaves(1, restarts=True)}


def state_of(run: MigrationRun) -> Any:
    state, migration = run.state, run.migration
    assert migration is not None
    return (run.cluster.where(run.name), dict(state.homes), dict(state.key_groups), state.version, migration.at,
            migration.trouble, dict(state.handover.waiting), dict(state.handover.regrouping), run.cluster.master.revision,
            run.cluster.master.closed)


@pytest.mark.parametrize(("strategy", "step"), mainly(each_step(Moved)))
def test_changes_are_refused(strategy: str, step: int) -> None:
    run = MigrationRun(strategy)
    run.until_step(step)
    for request in REFUSED.values():
        before = state_of(run)
        with pytest.raises(TopologyError, match=r"'moved' is being migrated by .*: try again when that is over"):
            run.cluster.tell(request(run))
        assert state_of(run) == before
    assert run.settle()["outcome"] == "done"
    run.end()


@pytest.mark.parametrize(("strategy", "step"), mainly(each_step(Moved)))
def test_paused(strategy: str, step: int) -> None:
    """It goes on, and spouts wait until the topology is unpaused."""
    run = MigrationRun(strategy)
    run.until_step(step)
    run.cluster.tell(Paused(run.name))
    assert run.settle()["outcome"] == "done"
    assert run.state.status == "paused" and not run.state.active
    run.cluster.tell(Unpaused(run.name))
    run.end()


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "step"), each_step(MovedAtLeast))
def test_paused_at_least_once(strategy: str, step: int) -> None:
    run = MigrationRun(strategy, MovedAtLeast)
    run.until_step(step)
    run.cluster.tell(Paused(run.name))
    assert run.settle()["outcome"] == "done"
    run.cluster.tell(Unpaused(run.name))
    run.end()


def resumed(run: MigrationRun, topology: Any) -> LocalCluster:
    """Another cluster on which the topology goes on."""
    again = LocalCluster(5, nodes=5, store=run.cluster.store)
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(again.clock.now)
    again.submit(topology, resume=True, config={"limit": run.limit, "rate": 3000.0})
    return again


@pytest.mark.parametrize("wait", [0.0, 30.0])
@pytest.mark.parametrize(("strategy", "step"), mainly(each_step(Moved)))
def test_killed(strategy: str, step: int, wait: float) -> None:
    """It ends, with the record of the migration, and can be resumed where it has ended."""
    run = MigrationRun(strategy)
    cluster = run.cluster
    run.until_step(step)
    cluster.tell(Killed(run.name, wait, cluster.clock.now()))
    cluster.run_until(lambda: run.name not in cluster.master.topologies, seconds=20.0)
    record = run.record()
    assert "killed" in record["reason"], record
    finish(resumed(run, Moved), run.name)
    assert_exact(run.limit, 1)


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 30.0])
@pytest.mark.parametrize(("strategy", "step"), each_step(MovedAtLeast))
def test_killed_at_least_once(strategy: str, step: int, wait: float) -> None:
    run = MigrationRun(strategy, MovedAtLeast)
    cluster = run.cluster
    run.until_step(step)
    cluster.tell(Killed(run.name, wait, cluster.clock.now()))
    cluster.run_until(lambda: run.name not in cluster.master.topologies, seconds=60.0)
    record = run.record()
    assert "killed" in record["reason"], record
    finish_at_least(resumed(run, MovedAtLeast), run.limit, run.name)


def test_a_mark_that_captures_comes_after_the_migration_is_cancelled() -> None:
    """No task waits for ever."""
    run = MigrationRun("ccr")
    cluster, post, kept = run.cluster, run.cluster.post, list[Any]()

    def keep_marks(sender: int, address: Any, frames: list[bytes]) -> None:
        message, behind = wire.decode_data(frames[0]), {(before, to) for before, to, _ in kept}
        if (sender, address) in behind or (isinstance(message, wire.Chunk) and message.form == wire.WAVE):
            kept.append((sender, address, frames))
        else:
            post(sender, address, frames)

    def only_for_spouts(message: Any) -> bool:
        if isinstance(message, wire.Wave):
            message.tasks[:] = [task for task in message.tasks if task in spouts]
        return False

    spouts = {run.state.graph.number(TaskId("numbers", index)) for index in (0, 1)}
    run.until_step(1)
    cluster.post = keep_marks  # type: ignore[method-assign]
    cluster.lose = only_for_spouts
    cluster.run_until(lambda: len({sender for sender, _, _ in kept}) == 2, seconds=2.0)
    cluster.tell(Withdrawn(run.name, min(MOVES)))
    cluster.run_until(lambda: run.migration is None)
    cluster.post = post  # type: ignore[method-assign]
    cluster.lose = lambda message: False
    for sender, address, frames in kept:
        post(sender, address, frames)
    cluster.run(0.05)
    assert not any(task.captured for name in ("tally", "ledger") for task in cluster.tasks(name))
    assert run.settle()["reason"] == "a person cancelled it"
    run.end()


@pytest.mark.parametrize(("strategy", "step"), mainly(each_step(Moved)))
def test_a_person_cancels_it(strategy: str, step: int) -> None:
    """All tasks return, unless some have ended for it."""
    run = MigrationRun(strategy)
    run.until_step(step)
    migration, task = run.migration, min(MOVES)
    assert migration is not None
    with pytest.raises(TopologyError, match=r"ledger\[0\] of 'moved' is not being moved; being moved by "):
        run.cluster.tell(Withdrawn(run.name, TaskId("ledger", 0)))
    if migration.rebalance_began is not None:
        with pytest.raises(TopologyError, match="has ended tasks already, so it cannot be cancelled"):
            run.cluster.tell(Withdrawn(run.name, task))
        assert run.settle()["outcome"] == "done"
    else:
        run.cluster.tell(Withdrawn(run.name, task))
        record = run.settle()
        assert (record["outcome"], record["reason"]) == ("cancelled", "a person cancelled it")
        assert run.where == BEFORE
    run.end()
