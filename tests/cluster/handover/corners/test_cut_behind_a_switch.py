"""The old worker of a moved task and the workers of its receivers are cut off from each other behind the switch, for longer
than a switch may take: the stream waits, and goes on in order when the cut has healed."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.config import ACKERS, HANDOVER_SWITCH_LIMIT, MESSAGE_TIMEOUT
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import LIMIT, assert_exact, counts, finish, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
BUSY, TASK = 14, TaskId("tally", 0)  # workers, each with one task at most; the task that moves


def cut_at_the_end(cluster: LocalCluster, old: int) -> set[int]:
    """Lose everything that the worker sends to another from its END on. Returns the workers that are cut off: it grows, and to
    clear it heals the cut."""
    cut: set[int] = set()

    def drop(sender: int, receiver: int, frames: list[bytes]) -> bool:
        message = wire.decode_data(frames[0])
        if sender == old and isinstance(message, wire.Chunk) and message.form == wire.HANDOVER \
                and wire.decode_handover(frames[1]).kind == wire.END:
            cut.add(receiver)
        return sender == old and receiver in cut

    cluster.drop = drop
    return cut


@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast, parts.AtMost])
def test_the_end_comes_after_the_cut(topology: Any) -> None:
    name = topology.__name__.lower()
    config = {HANDOVER_SWITCH_LIMIT.key: 1.0, MESSAGE_TIMEOUT.key: 60.0, **({} if name == "exact" else {ACKERS.key: 1})}
    cluster = start(topology, workers=BUSY, par={"ledger": 1}, **config)
    until_wave(cluster, 1, name)
    state, where = cluster.master.topologies[name], cluster.where(name)
    epoch, old = state.epoch, where[TASK]
    cut = cut_at_the_end(cluster, old)
    cluster.move(name, TASK, min(set(range(BUSY)) - set(where.values())))
    cluster.run_until(lambda: state.handover.at_rest)
    cluster.run(5.0)
    ledgers = tasks(cluster, "ledger")
    assert cut == {task.worker.slot for task in ledgers} and all(task.inbox.succession.held for task in ledgers)
    cut.clear()
    cluster.run_until(lambda: not any(task.inbox.succession.held for task in ledgers))
    cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    cluster.run(1.5)
    assert (state.epoch, state.losses) == (epoch, 0), cluster.said
    assert not any(task.meters.gaps or task.meters.repeats or task.meters.replayed for worker in cluster.workers.values()
                   for run in worker.topologies.values() for task in run.everyone())
    assert not list(cluster.workers[old].topologies[state.number].handovers), "the old incarnation ends when it is not needed"
    if name == "exact":
        finish(cluster)
        assert_exact()
    else:
        assert counts(cluster) == parts.expected_counts(LIMIT, 1)
        assert_in_order(parts.WRITTEN)


def assert_in_order(rows: list[Any]) -> None:
    """The counts of each key rise one by one: the sink has one task."""
    latest: dict[str, int] = {}
    for key, _, count in rows:
        assert count == latest.get(key, 0) + 1, f"count {count} of {key} came after {latest.get(key, 0)}"
        latest[key] = count


def test_a_receiver_without_a_place_is_not_waited_for() -> None:
    """Nobody can tell it the end, and its next incarnation does not wait for that."""
    cluster = start(parts.AtMost, workers=BUSY, **{ACKERS.key: 1})
    until_wave(cluster, 1, "atmost")
    state, where = cluster.master.topologies["atmost"], cluster.where("atmost")
    cut_at_the_end(cluster, where[TASK])
    cluster.move("atmost", TASK, min(set(range(BUSY)) - set(where.values())))
    cluster.run_until(lambda: state.handover.at_rest)
    run = cluster.workers[where[TASK]].topologies[state.number]
    [old] = run.handovers
    assert not old.departure.over
    for task in [task for task in run.places if task.component == "ledger"]:
        del run.places[task]
    assert old.departure.over
