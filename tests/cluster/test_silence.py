"""Workers that fall silent because their code holds the interpreter lock: they are not replaced before a growing limit."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import Exact

LIMIT = 400


@pytest.fixture
def cluster() -> LocalCluster:
    parts.forget()
    made = LocalCluster(2)  # heartbeat timeout 1.5 s, first limit 6 s
    made.submit(Exact, config={"limit": LIMIT})
    made.run(0.3)
    return made


def hold(cluster: LocalCluster, slot: int, seconds: float) -> None:
    cluster.holding.add(slot)
    cluster.run(seconds)
    cluster.holding.discard(slot)


def visible() -> Counter[tuple[str, int]]:
    return Counter((key, number) for key, number, _ in parts.VISIBLE)


def test_a_silence_beyond_the_heartbeat_timeout_loses_nobody(cluster: LocalCluster) -> None:
    for slot in (0, 1, 0):
        hold(cluster, slot, 5.0)
        cluster.run(0.2)
    assert cluster.master.topologies["exact"].losses == 0, cluster.said
    cluster.run_until(lambda: visible() == parts.expected_rows(LIMIT, ways=2))


def test_the_limit_grows_with_the_silences_that_it_has_seen(cluster: LocalCluster) -> None:
    for seconds in (5.0, 10.0, 20.0, 40.0):  # each is longer than the limit that the one before it had
        hold(cluster, 0, seconds)
        cluster.run(0.2)
    assert cluster.master.topologies["exact"].losses == 0, cluster.said


def test_a_silence_beyond_the_limit_is_a_loss(cluster: LocalCluster) -> None:
    hold(cluster, 0, 7.0)
    assert cluster.master.topologies["exact"].losses == 1
    cluster.kill(0, noticed=False)  # it was fenced, and begins again
    cluster.start(0)
    cluster.run_until(lambda: visible() == parts.expected_rows(LIMIT, ways=2))


def test_a_worker_that_is_cut_off_is_lost_after_the_heartbeat_timeout(cluster: LocalCluster) -> None:
    hold(cluster, 1, 5.0)  # which makes the limit longer for workers that answer only
    cluster.run(0.2)
    cluster.cut.add(0)
    cluster.run(1.7)
    assert 0 not in cluster.master.workers
