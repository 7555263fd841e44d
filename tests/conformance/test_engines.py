"""The same topology on both engines and in a plain reference run: sinks and state are equal at the end.

It covers every topology of the package, and small ones (`engine_parts`) in which engines are likely to differ. Each is
finite, runs exactly once, and is compared with `run_reference` in everything that does not depend on the order of tasks:
the rows of each sink as a multiset, keyed state by key, and the tasks' own state summed over all tasks.

"resident" runs that engine's master and workers in forked processes; it starts no Spark.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from millrace.api.topology import Topology
from millrace.config import CHECKPOINTS
from millrace.connectors.sinks import Drop, DropArrow
from millrace.master.service import Master
from millrace.model.graph import TaskId, TopologyGraph, graph_of, resolve
from millrace.runtime.checkpoints.store import open_store
from millrace.spark.microbatch import MicrobatchEngine
from millrace.testing.reference import run_reference
from millrace.workloads import audit, logstream, throughput, topn, wordcount
from millrace.workloads.dataflows import topologies as dataflows
from support.processes.forked import ForkedCluster
from support.processes.shared_spark import stop_shared_session
from support.suites.kept_state import own_of, positions_of, state_of
from support.topologies import engine_parts
from support.topologies.engine_parts import Out

SECONDS = 60.0  # a safety limit; nothing is measured by it
Rows = dict[str, Counter[str]]  # directory, file or table -> the rows in it, as texts
View = Callable[[Any], Any]
Pace = Callable[[int, int], dict[str, Any]]
Done = Callable[[dict[TaskId, int]], bool]


def unchanged(value: Any) -> Any:
    return value


def highest_counts(rows: Rows) -> dict[str, dict[str, int]]:
    """The last count of each word. A bolt that counts by batches emits one count for each batch, and batches differ between
    engines; the last count does not."""
    counts: dict[str, dict[str, int]] = {}
    for sink, texts in rows.items():
        last = counts.setdefault(sink, {})
        for row in map(json.loads, texts):
            last[row["word"]] = max(last.get(row["word"], 0), row["count"])
    return counts


def without_the_task(rows: Rows) -> Rows:
    """Remove task numbers, which depend on the shuffle, and the text of the engine's errors."""
    def normal(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "task": None, "error": row["error"].partition(":")[0]} if "error" in row else row

    return {sink: _counted({_text(normal(json.loads(text))): n} for text, n in texts.items()) for sink, texts in rows.items()}


def summed_batches(rows: Rows) -> Any:
    """Totals over all batches. The number of batches depends on the waves; the totals do not."""
    totals: Counter[Any] = Counter()
    for text, n in rows["out"].items():
        row = json.loads(text)
        totals[row["rest"], "total"] += n * row["total"]
        totals[row["rest"], "count"] += n * row["count"]
    return totals, without_the_task({"letters": rows["letters"]})


def counts_of_arrays(own: dict[str, list[Any]]) -> Counter[str]:
    """Sum the counts of CountArrow's tasks by word."""
    return _counted(dict(zip(*kept, strict=True)) for kept in own["count"])


def counts_of_windows(own: dict[str, list[Any]]) -> Counter[str]:
    """Sum the counts over all ticks. A word's tick depends on the clock, but the window is longer than the test."""
    return _counted(window for kept in own["count"] for window in kept)


@dataclass(frozen=True)
class Case:
    """A finite run of a topology, and the views of its results to compare."""

    topology: type[Topology]
    config: dict[str, Any]
    rows: View = unchanged
    own: View = unchanged

    def graph(self, name: str, directory: Path, pace: Pace | None = None) -> TopologyGraph:
        config = {"topology.guarantee": "exactly-once", "path": str(directory), **self.config}
        graph = recorded(graph_of(self.topology, name, config))
        if pace is None:
            return graph
        settings = pace(self.config["limit"], max(spout.par for spout in graph.spouts))
        return replace(graph, config={**graph.config, **settings})


def recorded(graph: TopologyGraph) -> TopologyGraph:
    """Replace sinks that drop their input with sinks that write files."""
    return replace(graph, components=tuple(
        replace(component, code=f"{Out.__module__}:{Out.__name__}", mode="process_rows", commits=True)
        if issubclass(resolve(component.code), Drop | DropArrow) else component for component in graph.components))


LINES = {"limit": 700, "words": 400}
ARROW = {**LINES, "batch": 60}
EVENTS = {"limit": 100, "rate": 0.0, "task_seconds": 0.0}
WINDOW = {"window": 100_000, "topology.tick.tuple.freq.secs": 0.1}
CASES = {
    "WordCount": Case(wordcount.WordCount, LINES),
    "ZipfWordCount": Case(wordcount.ZipfWordCount, LINES),
    "WordCountArrow": Case(wordcount.WordCountArrow, ARROW, highest_counts, counts_of_arrays),
    "TallyArrowCount": Case(wordcount.TallyArrowCount, ARROW, highest_counts),
    "CombinedWordCount": Case(wordcount.CombinedWordCount, LINES, highest_counts),
    "CombinedWordCountArrow": Case(wordcount.CombinedWordCountArrow, ARROW, highest_counts),
    "Audited": Case(audit.Audited, LINES),
    "AuditedWordCount": Case(audit.AuditedWordCount, LINES),
    "StatefulWordCount": Case(audit.StatefulWordCount, LINES),
    "LogStream": Case(logstream.LogStream, {"limit": 1500, "store": "jsonl"}),
    "SmallLogStream": Case(logstream.SmallLogStream, {"limit": 300, "store": "sql"}),
    "ThroughputTest": Case(throughput.ThroughputTest, {"limit": 600, "size": 50},
                           own=lambda own: np.sum(own["counter"], axis=0).tolist()),
    "SmallThroughputTest": Case(throughput.SmallThroughputTest, {"limit": 600, "size": 5000},
                                own=lambda own: np.sum(own["counter"], axis=0).tolist()),
    "TopN": Case(topn.TopN, {**LINES, **WINDOW}, own=counts_of_windows),
    "WideTopN": Case(topn.WideTopN, {**LINES, **WINDOW}, own=counts_of_windows),
    "AuditedWideTopN": Case(topn.AuditedWideTopN, LINES),
    "Grid": Case(dataflows.Grid, EVENTS, own=lambda own: {task: sum(own[task]) for task in own}),
    "KeyedStar": Case(dataflows.KeyedStar, {**EVENTS, "keys": 30}),
    "Streams": Case(engine_parts.Streams, {"limit": 500}),
    "Groupings": Case(engine_parts.Groupings, {"limit": 500}),
    "Letters": Case(engine_parts.Letters, {"limit": 500}, without_the_task),
    "Batches": Case(engine_parts.Batches, {"limit": 1000}, summed_batches),
    "GuestBook": Case(engine_parts.GuestBook, {"limit": 1000}),
    "Diamond": Case(engine_parts.Diamond, {"limit": 500}),
    "Values": Case(engine_parts.Values, {"limit": 500}, own=lambda own: sum(kept["seen"] for kept in own["tally"])),
}


@dataclass(frozen=True)
class RunOutcome:
    rows: Any
    states: dict[str, Any]
    own: Any
    positions: dict[TaskId, int] = field(default_factory=dict)


@cache
def reference(name: str, directory: Path) -> RunOutcome:
    case = CASES[name]
    result = run_reference(case.graph(name, directory))
    return RunOutcome(case.rows(rows_by_sink(directory)), result.states, case.own(result.own), result.positions)


class Engine(Protocol):
    """Runs a topology until `done` accepts the positions of its spouts, and ends it; then `store` has its last checkpoint.
    `pace` returns settings that spread the tuples of all spout tasks over several waves or batches."""

    store: str

    def pace(self, limit: int, spouts: int) -> dict[str, Any]: ...

    def run(self, graph: TopologyGraph, done: Done) -> None: ...


def end_of(master: Master, graph: TopologyGraph, done: Done) -> None:
    topologies = master.state.topologies

    def story() -> str:
        return "\n".join([str(dict(topologies[graph.name].positions)), *(event["text"] for event in list(master.events))])

    try:
        assert master.wait_until(lambda: done(dict(topologies[graph.name].positions)), SECONDS), story()
    finally:
        master.kill(graph.name, SECONDS)
    assert master.wait_until(lambda: graph.name not in topologies, SECONDS), story()


class Resident:
    def __init__(self, cluster: ForkedCluster, store: str) -> None:
        self.cluster, self.store = cluster, store

    def pace(self, limit: int, spouts: int) -> dict[str, Any]:
        return {"rate": 2.0 * limit, "topology.checkpoint.interval.secs": 0.1}

    def run(self, graph: TopologyGraph, done: Done) -> None:
        self.cluster.submit(graph)
        end_of(self.cluster.master, graph, done)


class Microbatch:
    def __init__(self, engine: MicrobatchEngine, store: str) -> None:
        self.engine, self.store = engine, store

    def pace(self, limit: int, spouts: int) -> dict[str, Any]:
        part = limit // spouts // 4
        return {"topology.batch.tuples": part, "topology.chunk.tuples": part, "topology.batch.interval.ms": 0}

    def run(self, graph: TopologyGraph, done: Done) -> None:
        self.engine.submit(graph)
        end_of(self.engine.master, graph, done)


@pytest.fixture(scope="module")
def resident(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resident]:
    store = str(tmp_path_factory.mktemp("resident"))
    with ForkedCluster(2, settings={CHECKPOINTS.key: store}) as cluster:
        yield Resident(cluster, store)


@pytest.fixture(scope="module")
def microbatch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Microbatch]:
    store = str(tmp_path_factory.mktemp("microbatch"))
    stop_shared_session()
    with MicrobatchEngine("local[2]", name=f"conformance-{os.getpid()}", code=["support"],
                          settings={CHECKPOINTS.key: store, "history.url": "none"}) as engine:
        yield Microbatch(engine, store)


@pytest.fixture(params=[pytest.param("resident", marks=pytest.mark.process),
                        pytest.param("microbatch", marks=pytest.mark.spark)], scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    fixture: Engine = request.getfixturevalue(request.param)
    return fixture


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunOutcome]:
    directory = tmp_path_factory.mktemp("reference")
    return lambda name: reference(name, directory / name)


@pytest.mark.parametrize("name", CASES)
def test_sinks_and_state_are_those_of_the_reference(name: str, engine: Engine, tmp_path: Path,
                                                    references: Callable[[str], RunOutcome]) -> None:
    case, expected = CASES[name], references(name)
    assert expected.rows or expected.own or any(expected.states.values())  # otherwise there is nothing to compare
    graph = case.graph(name, tmp_path, engine.pace)
    engine.run(graph, lambda positions: positions == expected.positions)
    store = open_store(engine.store)
    assert positions_of(store, graph) == expected.positions
    assert state_of(store, graph) == expected.states
    assert case.rows(rows_by_sink(tmp_path)) == expected.rows
    assert case.own(own_of(store, graph)) == expected.own


def test_the_last_ranking_is_the_true_one(engine: Engine, tmp_path: Path) -> None:
    """Rankings come with ticks, so intermediate ones differ. No word leaves the window, so counts only grow."""
    case = Case(engine_parts.RankedWords, {**LINES, "window": 100_000})
    counts = wordcount.expected_counts(wordcount.SEED, LINES["limit"], LINES["words"], 1.0)
    ranking = topn.ranking(counts, topn.TOP)
    last = _text({"words": [word for word, _ in ranking], "counts": [count for _, count in ranking]})
    end = {TaskId("read", 0): LINES["limit"]}
    engine.run(case.graph("RankedWords", tmp_path, engine.pace),
               lambda positions: positions == end and last in rows_by_sink(tmp_path).get("out", ()))
    for row in map(json.loads, rows_by_sink(tmp_path)["out"]):
        assert all(count <= counts[word] for word, count in zip(row["words"], row["counts"], strict=True))


# ---- output of sinks ----


def rows_by_sink(directory: Path) -> Rows:
    """The rows of all files in the directory tree: JSON lines, audit records, SQLite databases. Staged rows are left out."""
    rows: Rows = {}
    for path in sorted(directory.rglob("*")):
        if path.suffix == ".db":
            rows |= _tables(path)
        elif path.match("part-*"):
            rows.setdefault(path.parent.name if path.suffix == ".jsonl" else "audit", Counter()).update(_rows_of(path))
    return rows


def _rows_of(path: Path) -> list[str]:
    if path.suffix == ".audit":
        return [str(record) for record in np.fromfile(path, audit.RECORD).tolist()]
    return [_text(json.loads(line)) for line in path.read_text().splitlines()]


def _tables(path: Path) -> Rows:
    connection = sqlite3.connect(path)
    names = [name for name, in connection.execute("select name from sqlite_master where type = 'table'")]
    tables = {name: Counter(map(str, connection.execute(f'select * from "{name}"'))) for name in names
              if name != "millrace_staged"}
    connection.close()
    return tables


def _text(row: Any) -> str:
    return json.dumps(row, sort_keys=True)


def _counted(parts: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return total
