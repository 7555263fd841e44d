"""Real workers whose user code raises exceptions that do not derive from Exception, and workers whose own threads die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.api.topology import Topology
from millrace.master.service import Master
from millrace.model.graph import graph_of
from support.processes.forked import ForkedCluster
from support.rows import rows_in
from support.topologies.audited import SECONDS
from support.topologies.fatal import KINDS, BrokenLoop, BrokenThread, RaisingLine, expected

SLOTS = 2


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: ForkedCluster) -> ForkedCluster:
    shared_cluster.make_whole(SLOTS, SECONDS)
    shared_cluster.master.call(shared_cluster.master.events.clear)
    return shared_cluster


def names_in(directory: Path) -> list[tuple[str, int]]:
    return sorted((row["who"], row["n"]) for row in rows_in(directory))


def raising(master: Master) -> list[dict[str, Any]]:
    """The status of the two components that raise."""
    [topology] = master.status()["topologies"]
    return [row for row in topology["components"] if row["name"] in ("loop", "thread")]


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("kind", KINDS)
def test_user_code_that_raises_no_exception_loses_nothing(cluster: ForkedCluster, tmp_path: Path, kind: str,
                                                          guarantee: str) -> None:
    master = cluster.master
    config = {"path": str(tmp_path), "limit": 300, "kind": kind, "topology.guarantee": guarantee,
              "topology.checkpoint.interval.secs": 0.2, "topology.chunk.tuples": 10}
    master.submit(graph_of(RaisingLine, f"raising-{kind}-{guarantee}", config), False)
    assert master.wait_until(lambda: set(names_in(tmp_path)) == set(expected()), SECONDS), names_in(tmp_path)
    assert master.wait_until(lambda: all(row["errors"] >= 2 for row in raising(master)), SECONDS), "reports lag behind"
    for row in raising(master):
        assert row["last_error"]["error"].startswith(KINDS[kind].__name__ + ": not ")
        assert "in process" in row["last_error"]["traceback"]
    assert not [event for event in list(master.events) if " lost: " in event["text"]]
    if guarantee == "exactly-once":
        assert names_in(tmp_path) == expected()


@pytest.mark.parametrize(("topology", "reason"), [
    (BrokenThread, "ThreadDied: its thread 'task sink[0]' died: AttributeError: 'types.SimpleNamespace' object has no "),
    (BrokenLoop, "AttributeError: 'types.SimpleNamespace' object has no ")], ids=["thread", "loop"])
def test_a_thread_that_dies_takes_its_worker_with_it_and_the_reason_is_told(topology: type[Topology], reason: str) -> None:
    with ForkedCluster(1) as cluster:
        master = cluster.master
        master.submit(graph_of(topology, config={"limit": 10}), False)
        assert master.wait_until(lambda: any(" lost: " in event["text"] for event in list(master.events)), SECONDS)
        lost = [event["text"] for event in list(master.events) if " lost: " in event["text"]]
    assert lost[0].partition(" lost: ")[2].startswith(reason), lost
