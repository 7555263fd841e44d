"""Parts of the latency between two components: measured by workers chunk by chunk, and merged in the master."""

from __future__ import annotations

from typing import Any

import pytest

from millrace import Bolt, Grouping, Topology
from millrace.connectors.generator import GeneratorSpout
from millrace.master.load.observed import TopologyObserved
from millrace.testing.local_cluster import STEP_SECONDS, LocalCluster

CALL_SECONDS = 0.004
PARTS = ("outbox_latency_ms", "wire_latency_ms", "inbox_latency_ms", "chunk_latency_ms")
STEP_MS = STEP_SECONDS * 1000


class Numbers(GeneratorSpout):
    outputs = ["number"]

    def generate(self, position: int) -> list[int]:
        return [position]


class Slow(Bolt):
    """Takes some virtual milliseconds for a chunk."""

    outputs = ["number"]
    cluster: LocalCluster

    def process_rows(self, rows: list[Any]) -> None:
        self.cluster.clock.advance(CALL_SECONDS)
        self.emit_rows(rows)


class Last(Bolt):
    def process_rows(self, rows: list[Any]) -> None: ...


class Apart(Topology):
    numbers = Numbers.spec(config={"limit": 30, "burst": 1})
    slow = Slow.spec(inputs={numbers: Grouping.GLOBAL})
    last = Last.spec(inputs={slow: Grouping.GLOBAL})


def run_to_the_end(monkeypatch: pytest.MonkeyPatch, workers: int) -> tuple[TopologyObserved, LocalCluster]:
    """Runs `Apart`; returns what the master has seen of it."""
    cluster = LocalCluster(workers)
    monkeypatch.setattr(Slow, "cluster", cluster, raising=False)
    graph = cluster.submit(Apart)
    observed, take = TopologyObserved(graph, 0.0), cluster._take

    def taken(report: Any) -> None:
        for task in report.tasks:
            observed.take(report.slot, report.at, task)
        take(report)

    monkeypatch.setattr(cluster, "_take", taken)
    cluster.run_until(lambda: observed.total("last", "executed") == 30)
    return observed, cluster


def hop_to(observed: TopologyObserved, target: str) -> dict[str, Any]:
    (hop,) = [hop for hop in observed.hops() if hop["to"] == target]
    return hop


def test_user_code_is_measured_as_a_whole_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    observed, _ = run_to_the_end(monkeypatch, workers=1)
    hop = hop_to(observed, "slow")
    assert hop["from"] == "numbers"
    assert set(hop["chunk_latency_ms"]) == {"p50", "p90", "p99", "p999", "max"}
    assert hop["chunk_latency_ms"]["p50"] == pytest.approx(CALL_SECONDS * 1000, rel=0.02)
    assert hop_to(observed, "last")["chunk_latency_ms"]["p99"] < STEP_MS


def test_tuples_inside_a_worker_are_on_no_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    observed, _ = run_to_the_end(monkeypatch, workers=1)
    assert [hop_to(observed, target)["wire_latency_ms"] for target in ("slow", "last")] == [None, None]


def test_the_wire_takes_until_the_other_worker_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    observed, cluster = run_to_the_end(monkeypatch, workers=3)
    slots = {task.component: slot for task, slot in cluster.where("apart").items()}
    for hop in observed.hops():
        source, target = slots[hop["from"]], slots[hop["to"]]
        assert source != target, "every hop is between workers"
        wire = hop["wire_latency_ms"]["p50"]
        assert wire >= 0.99 * STEP_MS if source > target else wire < STEP_MS, "workers take their steps in order"
        assert all(hop[part] is not None for part in PARTS)


def test_a_window_has_what_was_measured_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    observed, _ = run_to_the_end(monkeypatch, workers=1)
    before = observed.hops()
    for task in observed.tasks.values():
        task.end_window()
    assert observed.hops() == before, "the window that has just ended"
    for task in observed.tasks.values():
        task.end_window()
    assert not observed.hops(), "nothing was sent in the next one"


def test_a_report_of_an_older_kind_has_no_parts() -> None:
    """Those of batches have none: a batch has no inboxes."""
    cluster = LocalCluster(1)
    graph = cluster.submit(Apart)
    assert TopologyObserved(graph, 0.0).hops() == []
