"""Word count on a whole cluster: the final counts are right in every combination of rows and Arrow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.testing.local_cluster import LocalCluster
from millrace.workloads.audit import AuditedWordCount, audit
from millrace.workloads.wordcount import (
    Count,
    CountArrow,
    Lines,
    LinesArrow,
    Split,
    SplitArrow,
    WordCount,
    expected_counts,
)
from support.cluster.cluster_runs import counter, drain, meter, run_through
from support.cluster.plain_parts import NumbersArrow, Sink, SinkArrow, SinkByTask, SinkRows
from support.cluster.records import SEEN

LINES, SEED = 3000, 5
GUARANTEES = ["at-most-once", "at-least-once"]


class Rows(Topology):
    lines = Lines.spec(par=2)
    split = Split.spec(inputs=[lines], par=3)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=4)
    highest = SinkByTask.spec(inputs={count: Grouping.fields("word")}, par=2)


class Arrow(Topology):
    lines = LinesArrow.spec(par=2)
    split = SplitArrow.spec(inputs=[lines], par=3)
    count = CountArrow.spec(inputs={split: Grouping.fields("word")}, par=4)
    highest = SinkByTask.spec(inputs={count: Grouping.fields("word")}, par=2)


class ArrowThenRows(Topology):
    lines = LinesArrow.spec(par=2)
    split = Split.spec(inputs=[lines], par=2)
    count = CountArrow.spec(inputs={split: Grouping.fields("word")}, par=3)
    highest = SinkByTask.spec(inputs={count: Grouping.fields("word")}, par=2)


class RowsThenArrow(Topology):
    lines = Lines.spec(par=2)
    split = SplitArrow.spec(inputs=[lines], par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=3)
    highest = SinkByTask.spec(inputs={count: Grouping.fields("word")}, par=2)


def final_counts() -> Counter[str]:
    counts: Counter[str] = Counter()
    for _, (word, count) in SEEN["highest"]:
        counts[word] = max(counts[word], count)
    return counts


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("topology", [Rows, Arrow, ArrowThenRows, RowsThenArrow], ids=lambda each: each.__name__)
def test_the_counts_are_right(topology: type[Topology], workers: int, guarantee: str) -> None:
    config = {"limit": LINES, "seed": SEED, "words": 300, "batch": 250, "topology.guarantee": guarantee}
    cluster = run_through(topology, workers, **config)
    assert final_counts() == expected_counts(SEED, LINES, 300)
    assert sum(counter(cluster, name) for name in ("malformed", "stale", "fenced", "dead_letters", "start_failed")) == 0


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_word_has_one_counter(guarantee: str) -> None:
    run_through(Rows, 3, limit=LINES, seed=SEED, words=300, **{"topology.guarantee": guarantee})
    tasks = Counter(word for word, _ in {(word, task) for task, (word, _) in SEEN["highest"]})
    assert set(tasks.values()) == {1}
    every = Counter(SEEN["highest"])
    assert set(every.values()) == {1}, "each count of a word is reached once"


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_meters_are_right(guarantee: str) -> None:
    cluster = LocalCluster(2)
    cluster.submit(WordCount, config={"limit": LINES, "topology.guarantee": guarantee})
    cluster.run(1.0)
    assert meter(cluster, "lines", "emitted") == meter(cluster, "split", "executed") == LINES
    assert meter(cluster, "split", "emitted") == meter(cluster, "count", "executed") == 10 * LINES
    assert meter(cluster, "drop", "executed") == 10 * LINES
    assert sum(task.component.count for task in cluster.tasks("drop")) == 10 * LINES
    for component in ("lines", "split", "count", "drop"):
        assert [meter(cluster, component, name) for name in ("failed", "gaps", "repeats", "dead_letters")] == [0] * 4
    assert meter(cluster, "lines", "acked") == (LINES if guarantee == "at-least-once" else 0)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_audit_finds_every_word_once(guarantee: str, tmp_path: Path) -> None:
    cluster = LocalCluster(3)
    cluster.submit(AuditedWordCount, config={"limit": 2001, "path": str(tmp_path), "topology.guarantee": guarantee})
    cluster.run(1.0)
    drain(cluster, "auditedwordcount")
    result = audit(tmp_path, {0: 1001, 1: 1000})
    assert result.exact
    assert result.tuples_out == 20_010


class Three(Topology):
    numbers = NumbersArrow.spec(par=2)
    rows = SinkRows.spec(inputs=[numbers], par=2)
    batches = SinkArrow.spec(inputs={numbers: Grouping.fields("n")}, par=2)
    tuples = Sink.spec(inputs={numbers: Grouping.ALL}, par=2)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_all_kinds_of_bolts_get_the_same_tuples_from_a_batch(guarantee: str) -> None:
    run_through(Three, limit=1010, batch=100, **{"topology.guarantee": guarantee})
    assert sorted(SEEN["rows"]) == sorted(SEEN["batches"]) == list(range(1010))
    assert Counter(SEEN["tuples"]) == dict.fromkeys(range(1010), 2)
