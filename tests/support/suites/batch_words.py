"""A word count in batches without Spark, compared with the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.model.graph import TopologyGraph, batched, graph_of
from millrace.testing.local_batches import LocalBatches
from millrace.workloads.audit import StatefulWordCount, audit, true_counts
from support.suites.kept_state import state_of
from support.topologies.audited import assert_exact

LINES = 600


def words(out: Path, **config: Any) -> TopologyGraph:
    return batched(graph_of(StatefulWordCount, config={"path": str(out), "limit": LINES, **config}))


def run_to_the_end(batches: LocalBatches) -> None:
    for _ in range(200):
        if not sum(task.meters["emitted"] for report in batches.batch() for task in report.tasks):
            return
    raise AssertionError("the spouts did not finish")


def check(batches: LocalBatches, out: Path) -> None:
    assert batches.committed is not None
    sent = {task.index: position for task, position in batches.committed.positions().items()}
    assert sum(sent.values()) == LINES
    assert_exact(audit(out, sent))
    kept = state_of(batches.checkpoints.store, batches.graph)
    assert kept["count"]["counts"] == true_counts(sent)
