"""N-Storm's Word Count, Top_N and Log Stream on a whole cluster: sinks and state are compared with the input."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millrace.api.topology import Topology
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from millrace.workloads.audit import NumberedLines, audit, true_counts
from millrace.workloads.logstream import LogLines
from millrace.workloads.logstream_audit import AuditedLogStream, audit_log_stream, true_rule_counts
from millrace.workloads.nstorm import HarmonicWordCount, NStormWordCount
from millrace.workloads.topn import AuditedTopN, AuditedWideTopN, true_ranking
from support.cluster.workload_runs import WorkloadRun

WORDS = 300
GUARANTEES = pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    cluster = LocalCluster(workers=3, nodes=3, settings={"recovery.grace.secs": 0.1})
    for spout in (NumberedLines, LogLines):
        monkeypatch.setattr(spout, "clock", staticmethod(cluster.clock.now))
        monkeypatch.setattr(spout, "wall_clock", staticmethod(cluster.clock.now))
    return cluster


def broken_run(topology: type[Topology], path: Path, guarantee: str, sent: dict[int, int], cluster: LocalCluster, task: TaskId,
               **config: Any) -> WorkloadRun:
    """Process everything, with a worker that dies when half of it is sent."""
    run = WorkloadRun(topology, path, guarantee, sent, cluster, rate=float(sum(sent.values())), **config)
    run.until_sent(0.5)
    run.kill_worker_of(task)
    run.until_processed()
    return run


def counts_of(cluster: LocalCluster) -> Counter[str]:
    return sum((Counter(dict(task.component.counts)) for task in cluster.tasks("count")), Counter())


@GUARANTEES
@pytest.mark.parametrize("topology", [NStormWordCount, HarmonicWordCount], ids=lambda each: each.__name__)
def test_word_count(topology: type[Topology], guarantee: str, tmp_path: Path, cluster: LocalCluster) -> None:
    sent = {0: 100, 1: 100}
    run = broken_run(topology, tmp_path, guarantee, sent, cluster, TaskId("count", 3), words=WORDS, terms=10,
                     lines_per_shift=30)
    truth, counts = true_counts(sent, words=WORDS), counts_of(cluster)
    assert counts == truth if guarantee == "exactly-once" else counts >= truth
    run.end()
    result = audit(tmp_path, sent, words=WORDS)
    assert result.exact if guarantee == "exactly-once" else result.complete


@GUARANTEES
@pytest.mark.parametrize(("topology", "readers"), [(AuditedTopN, 1), (AuditedWideTopN, 4)], ids=["TopN", "WideTopN"])
def test_top_n(topology: type[Topology], readers: int, guarantee: str, tmp_path: Path, cluster: LocalCluster) -> None:
    sent = {task: 200 // readers for task in range(readers)}
    run = broken_run(topology, tmp_path, guarantee, sent, cluster, TaskId("count", 1), words=WORDS)
    truth, counts = true_counts(sent, words=WORDS, zipf=1.0), counts_of(cluster)
    assert counts == truth if guarantee == "exactly-once" else counts >= truth
    [merge] = cluster.tasks("merge")
    if guarantee == "exactly-once":
        assert merge.component.ranking == true_ranking(sent, words=WORDS)
    run.end()
    result = audit(tmp_path, sent, words=WORDS, zipf=1.0)
    assert result.exact if guarantee == "exactly-once" else result.complete


@GUARANTEES
def test_log_stream(guarantee: str, tmp_path: Path, cluster: LocalCluster) -> None:
    sent = {task: 40 for task in range(5)}
    run = broken_run(AuditedLogStream, tmp_path, guarantee, sent, cluster, TaskId("counter", 0), store="jsonl")
    counts: dict[str, dict[int, int]] = {}
    for task in cluster.tasks("counter"):
        counts.update({rule: dict(minutes) for rule, minutes in task.component.counts.items()})
    truth = true_rule_counts(sent)
    assert counts.keys() == truth.keys()
    if guarantee == "exactly-once":
        assert counts == truth
    run.end()
    results = audit_log_stream(tmp_path, sent)
    assert all(result.exact if guarantee == "exactly-once" else result.complete for result in results.values()), results
