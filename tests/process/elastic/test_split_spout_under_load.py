"""A spout with splits is scaled between real processes under load, without a fault and with kill -9 in the middle: the sink's
files and the last checkpoint match an independent count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.config import LEASE
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, UNHURRIED, assert_all_exact, assert_never_less
from support.topologies.split_stream import SPLITS, SplitStream

pytestmark = pytest.mark.process
SLOTS = 3


@pytest.fixture(scope="module")
def shared() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS, nodes=2, settings={LEASE.key: SECONDS}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ForkedCluster) -> ForkedCluster:
    shared.make_whole(SLOTS, SECONDS)
    return shared


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_scaling_without_a_fault_is_exact(cluster: ForkedCluster, tmp_path: Path, guarantee: str) -> None:
    stream = SplitStream(cluster.master, tmp_path, guarantee=guarantee,
                         **{**UNHURRIED, "topology.message.timeout.secs": 600.0})
    stream.wave()
    epoch = stream.state.epoch
    for par in (4, 6, 2):
        stream.scale(par)
        stream.wave()
    assert stream.state.epoch == epoch and stream.state.losses == 0
    assert sorted(stream.positions()) == list(range(SPLITS))
    assert_all_exact(stream.finish_both())


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_worker_is_killed_while_splits_move(cluster: ForkedCluster, tmp_path: Path, guarantee: str) -> None:
    stream = SplitStream(cluster.master, tmp_path, guarantee=guarantee)
    stream.wave()
    for par in (4, 2):
        losses = stream.state.losses
        cluster.master.rescale(stream.name, {"lines": par})
        stream.until(lambda: any(moving.splits for moving in stream.state.handover.batch) or stream.state.scaling is None)
        cluster.kill(par % SLOTS)
        stream.until(lambda losses=losses: stream.state.losses > losses)
        cluster.start(par % SLOTS)
        stream.until(lambda: stream.state.scaling is None and stream.state.handover.at_rest
                     and len(cluster.master.state.workers) == SLOTS)
        stream.wave()
    stream.advance(100)
    (assert_all_exact if guarantee == "exactly-once" else assert_never_less)(stream.finish_both())
