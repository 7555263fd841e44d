"""Batches without Spark: partitions that abort in the middle of a chunk, in a process that survives or dies."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.tuple import Tuple
from millrace.model.graph import batched, graph_of
from millrace.testing.local_batches import AttemptFailed, LocalBatches
from millrace.workloads.audit import AuditSink, NumberedLines, SplitNumbered, StatefulWordCount, TallyNumbered
from support.suites.batch_words import LINES, check, run_to_the_end


class Torn(KeyboardInterrupt):
    """Stands for a signal that ends the process: it is not an error of a tuple."""


LEFT: dict[str, int] = {}  # component -> tuples until it aborts


@pytest.fixture(autouse=True)
def nothing_breaks() -> Iterator[None]:
    LEFT.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    yield
    signal.signal(signal.SIGINT, before)


def count_down(component: str) -> None:
    if component in LEFT:
        LEFT[component] -= 1
        if not LEFT[component]:
            del LEFT[component]
            raise Torn(component)


class TornSplit(SplitNumbered):
    def process(self, tup: Tuple) -> None:
        super().process(tup)
        count_down("split")


class TornTally(TallyNumbered):
    """Aborts after the tuple is in its state, with more tuples in the chunk."""

    def process(self, tup: Tuple) -> None:
        super().process(tup)
        count_down("count")


class TornSink(AuditSink):
    def process_rows(self, rows: list[Any]) -> None:
        for row in rows:
            super().process_rows([row])
            count_down("sink")


class TornWords(StatefulWordCount):
    config: ClassVar[dict[str, str]] = {"topology.guarantee": "exactly-once"}
    lines = NumberedLines.spec(par=2)
    split = TornSplit.spec(inputs={lines: Grouping.SHUFFLE}, par=2)
    count = TornTally.spec(inputs={split: Grouping.fields("word")}, par=3)
    sink = TornSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=3)


def start(tmp_path: Path, seed: int) -> LocalBatches:
    """Start with small chunks, several per partition."""
    graph = batched(graph_of(TornWords, config={"path": str(tmp_path / "out"), "limit": LINES, "topology.chunk.tuples": 20}))
    return LocalBatches(graph, str(tmp_path / "store"), processes=3, seed=seed, most_tuples=80)


@pytest.mark.parametrize("dies", [True, False], ids=["process dies", "Spark ends the task"])
@pytest.mark.parametrize("seed", range(2))
def test_a_partly_processed_chunk(tmp_path: Path, seed: int, dies: bool) -> None:
    """Every batch is aborted once, in each component by turns."""
    batches, rng = start(tmp_path, seed), random.Random(seed)
    for component in ["split", "count", "sink"]:
        LEFT[component] = rng.randrange(1, 60)
        with pytest.raises(Torn, match=component):
            batches.batch()
        if dies:
            batches.kill(batches.last)
        batches.batch()
    run_to_the_end(batches)
    check(batches, tmp_path / "out")


@pytest.mark.parametrize("seed", range(2))
def test_a_partition_whose_output_is_not_read_to_its_end(tmp_path: Path, seed: int) -> None:
    """Spark stops reading from the process, which stays at the record that it yielded last."""
    batches, rng = start(tmp_path, seed), random.Random(seed)
    for _ in range(3):
        batches.most_records = rng.randrange(1, 6)
        with pytest.raises(AttemptFailed):
            batches.batch()
        batches.most_records = None
        batches.batch()
    run_to_the_end(batches)
    check(batches, tmp_path / "out")
