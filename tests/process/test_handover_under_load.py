"""Tasks and key groups are handed over between real processes under load, without a fault and with kill -9 in each phase: the
sink's files and the last checkpoint match an independent count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.config import LEASE
from millrace.control.assignment import ARM, SWITCH
from millrace.control.events import Regrouped
from millrace.control.moves import REFRESH
from millrace.model.graph import ACKER, TaskId
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, UNHURRIED, StatefulStream, assert_all_exact, assert_never_less
from support.topologies.killed_moves import NEW, OLD, UPSTREAM, at_rest, killed_in

pytestmark = pytest.mark.process
SLOTS = 4


@pytest.fixture(scope="module")
def shared() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS, nodes=2, settings={LEASE.key: SECONDS}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ForkedCluster) -> ForkedCluster:
    shared.make_whole(SLOTS, SECONDS)
    return shared


def move(stream: StatefulStream, task: TaskId) -> None:
    """Move a task to the next worker, and wait until it has been handed over."""
    slot = (stream.state.places[task].slot + 1) % SLOTS
    stream.master.move(stream.name, task, slot)
    stream.until(lambda: stream.state.places[task].slot == slot and stream.state.handover.at_rest)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_moves_without_a_fault_are_exact(cluster: ForkedCluster, tmp_path: Path, guarantee: str) -> None:
    """Whatever the guarantee: nothing is lost or repeated, and no worker or epoch ends."""
    stream = StatefulStream(cluster.master, tmp_path, guarantee=guarantee,
                            **{**UNHURRIED, "topology.message.timeout.secs": 600.0})
    stream.wave()
    epoch = stream.state.epoch
    for component in ("lines", "split", "count", "sink", ACKER):
        if TaskId(component, 0) in stream.state.places:
            move(stream, TaskId(component, 0))
    owners = stream.state.key_groups["count"]
    wanted = {group: (owner + 1) % 3 for group, owner in enumerate(owners) if group % 5 == 0}
    cluster.master.call(lambda: cluster.master.tell(Regrouped(stream.name, "count", wanted)))
    stream.until(lambda: stream.state.handover.at_rest
                 and all(stream.state.key_groups["count"][group] == owner for group, owner in wanted.items()))
    stream.wave()
    assert stream.state.epoch == epoch and stream.state.losses == 0
    assert_all_exact(stream.finish_both())


@pytest.mark.parametrize("role", [OLD, NEW, UPSTREAM])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_worker_is_killed_in_each_phase(cluster: ForkedCluster, tmp_path: Path, guarantee: str, role: str) -> None:
    stream = StatefulStream(cluster.master, tmp_path, guarantee=guarantee)
    stream.wave()
    for phase in (ARM, REFRESH, SWITCH):
        losses, epoch = stream.state.losses, stream.state.epoch
        victim = killed_in(stream, phase, role)
        cluster.kill(victim)  # already dead: reaps the process
        stream.until(lambda losses=losses: stream.state.losses > losses)
        assert guarantee != "exactly-once" or stream.state.epoch > epoch
        cluster.start(victim)
        stream.until(lambda victim=victim: victim in cluster.master.state.workers)
        stream.wave()
        stream.until(lambda: at_rest(stream))
    stream.advance(100)  # spouts that were restarted pass what was sent before
    (assert_all_exact if guarantee == "exactly-once" else assert_never_less)(stream.finish_both())
