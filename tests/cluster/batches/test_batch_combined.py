"""Tuples that are combined before they go into the shuffle: totals are exact through failures and changes between batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from millrace.api.topology import Topology
from millrace.microbatch.totals import Totals
from millrace.microbatch.work import PartitionReport
from millrace.model.graph import batched, graph_of
from millrace.testing.local_batches import LocalBatches
from support.load.combined_parts import CombinedAtTheSource, CombinedBatches, CombinedRows, MergedRows
from support.load.skewed_parts import true_totals
from support.suites.batch_words import fail, give_some
from support.suites.kept_state import state_of

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 2000
FORMS = pytest.mark.parametrize("topology", [CombinedRows, MergedRows, CombinedBatches, CombinedAtTheSource])


def started(topology: type[Topology], directory: Path, seed: int = 0, most_tuples: int = 150, **config: Any) -> LocalBatches:
    graph = batched(graph_of(topology, config={"limit": LIMIT, "topology.chunk.tuples": 50, **config}))
    return LocalBatches(graph, str(directory), processes=3, seed=seed, most_tuples=most_tuples)


def to_the_end(batches: LocalBatches) -> list[list[PartitionReport]]:
    """Run batches until the spouts have sent everything; returns their reports."""
    reports: list[list[PartitionReport]] = []
    for _ in range(100):
        reports.append(batches.batch())
        if not sum(task.meters["emitted"] for report in reports[-1] for task in report.tasks):
            return reports
    raise AssertionError("the spouts did not finish")


def check(batches: LocalBatches) -> None:
    kept = state_of(batches.checkpoints.store, batches.graph)["tally"]
    assert {key: (kept["sums"][key], count) for key, count in kept["counts"].items()} == true_totals(LIMIT)


@FORMS
def test_a_key_goes_once_into_the_shuffle_with_a_chunk(topology: type[Topology], tmp_path: Path) -> None:
    batches = started(topology, tmp_path)
    reports = to_the_end(batches)
    check(batches)
    graph, executed, merged = batches.graph, 0, 0
    for report in (report for of_batch in reports for report in of_batch):
        executed += sum(task.meters["executed"] for task in report.tasks if graph.task(task.task).component == "tally")
        merged += sum(task.meters["merged"] for task in report.tasks)
    assert executed + merged == LIMIT and merged > LIMIT / 2
    totals, of_tasks = Totals(), dict[int, int]()
    for of_batch in reports:
        for worker in totals.take(batches.work(1, 1).assignment, of_batch, 0.0):
            of_tasks.update({task["task"]: task["merged"] for task in worker.tasks})
    assert sum(of_tasks.values()) == merged, "batches are added up"


@pytest.mark.parametrize("seed", range(4))
@FORMS
def test_the_totals_are_exact_through_random_failures(topology: type[Topology], seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    batches = started(topology, tmp_path, seed, rng.choice([60, 200]))

    actions = [lambda: fail(batches, rng), lambda: fail(batches, rng), lambda: give_some(batches, rng, "tally"),
               lambda: batches.kill(rng.randrange(3)), lambda: batches.scale("tally", rng.randint(1, 6))]
    for _ in range(8):
        rng.choice(actions)()
        batches.batch()
    to_the_end(batches)
    check(batches)
