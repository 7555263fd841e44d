"""Links between nodes and traffic between tasks, measured by real workers on tcp."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from millrace.model.graph import ACKER
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, AuditedStream, assert_nothing_lost

NODES = ("node0", "node1", "node2")
OFTEN = {"cluster.links.period.secs": 0.05, "agent.poll.secs": 0.05, "load.period.secs": 0.2}


@pytest.fixture
def cluster() -> Iterator[ForkedCluster]:
    with ForkedCluster(3, bind="127.0.0.1", apart=True, nodes=3, settings=OFTEN) as cluster:
        yield cluster


def links(cluster: ForkedCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.master.call(cluster.master.scheduling.links.to_json)
    return found


def test_every_node_measures_the_others_over_connections_that_nobody_refuses(cluster: ForkedCluster) -> None:
    pairs = [list(pair) for pair in combinations(NODES, 2)]
    assert cluster.master.wait_until(lambda: [link["nodes"] for link in links(cluster)] == pairs, SECONDS), links(cluster)
    assert all(link["round_trip_ms"] > 0 and not link["given"] for link in links(cluster))
    assert all(worker["counters"].get("refused_connections", 0) == 0 for worker in cluster.master.status()["workers"])


def test_bytes_and_ackers_are_measured(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = AuditedStream(cluster.master, tmp_path)
    stream.advance(500)

    def measured() -> bool:
        load = cluster.master.scheduling.load.get(stream.name)
        return load is not None and any(source.component == ACKER for source, _ in load.traffic) and all(
            load.traffic_bytes.get(pair, 0) > 0 for pair in load.traffic) and any(
            task.component == ACKER and figures.cpu_mhz > 0 for task, figures in load.tasks.items())

    stream.until(measured)
    assert_nothing_lost(stream.finish())
