"""A word count in batches without Spark, compared with the truth."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

from millrace.model.graph import TopologyGraph, batched, graph_of
from millrace.testing.local_batches import AttemptFailed, LocalBatches
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


def fail(batches: LocalBatches, rng: random.Random) -> None:
    """Break an attempt off, after a partition of one of the first stages."""
    at = rng.randrange(3), rng.randrange(2)
    batches.fault = lambda stage, partition: (stage, partition) == at
    with contextlib.suppress(AttemptFailed):
        batches.batch()
    batches.fault = lambda stage, partition: False


def give_some(batches: LocalBatches, rng: random.Random, component: str) -> None:
    """Give some key groups of the component to other tasks."""
    par = batches.graph.component(component).par
    batches.give(component, {group: rng.randrange(par) for group in rng.sample(range(128), 40)})


def check(batches: LocalBatches, out: Path) -> None:
    assert batches.committed is not None
    sent = {task.index: position for task, position in batches.committed.positions().items()}
    assert sum(sent.values()) == LINES
    assert_exact(audit(out, sent))
    kept = state_of(batches.checkpoints.store, batches.graph)
    assert kept["count"]["counts"] == true_counts(sent)
