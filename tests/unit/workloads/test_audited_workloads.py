"""Top_N, Log Stream and N-Storm's Word Count with proof: their shapes, their components and their truth."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from millrace.model.graph import graph_of
from millrace.state.packing import pack_value, unpack_value
from millrace.testing.components import drain, start, tuples, values
from millrace.workloads.audit import AuditResult, NumberedLines, SplitNumbered
from millrace.workloads.logstream import Indexer, LogDatabase, LogLines, LogStream, RuleCounter, Rules
from millrace.workloads.logstream_audit import (
    COUNT_TABLE,
    INDEX_TABLE,
    AuditedLogStream,
    NumberedRuleCounter,
    audit_log_stream,
    true_rule_counts,
)
from millrace.workloads.nstorm import (
    NSTORM_NODES,
    NSTORM_WORKERS,
    HarmonicSplit,
    HarmonicWordCount,
    NStormWordCount,
)
from millrace.workloads.topn import (
    AuditedTopN,
    AuditedWideTopN,
    CountNumberedWords,
    MergeCounts,
    TopN,
    WideTopN,
    true_ranking,
)

WORDS = "task position index word"
REQUEST = "number second client path status rule"
COUNT_FIELDS = NumberedRuleCounter.outputs
SENT = {task: 40 for task in range(5)}


def shape(topology: Any) -> list[tuple[str, int, list[tuple[str, str]]]]:
    return [(component.name, component.par, [(read.source, read.grouping.kind) for read in component.inputs])
            for component in graph_of(topology).components]


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_proof_adds_nothing_but_a_sink_to_the_topologies_of_the_papers() -> None:
    assert shape(AuditedTopN)[:-1] == shape(TopN)
    assert shape(AuditedWideTopN)[:-1] == shape(WideTopN)
    assert shape(AuditedLogStream) == shape(LogStream)


def test_word_count_has_the_tasks_of_the_nstorm_paper() -> None:
    for topology in (NStormWordCount, HarmonicWordCount):
        assert [(name, par) for name, par, _ in shape(topology)[1:3]] == [("split", 12), ("count", 24)]
    assert shape(NStormWordCount)[2][2] == [("split", "fields")]
    assert (NSTORM_NODES, NSTORM_WORKERS) == (2, 8)


# -- Top_N -------------------------------------------------------------------------------------------------------------


def merged(lines: int, top: int) -> MergeCounts:
    config = {"limit": lines, "zipf": 1.0, "words": 300}
    split, count, merge = start(SplitNumbered), start(CountNumberedWords), start(MergeCounts, {"top": top})
    for tup in tuples("task position line", [emitted.values for emitted in drain(start(NumberedLines, config))]):
        split.process(tup)
    for tup in tuples(WORDS, values(split)):
        count.process(tup)
    for tup in tuples(f"{WORDS} count", values(count)):
        merge.process(tup)
    assert values(merge) == values(split)
    return merge


@pytest.mark.parametrize("top", [1, 10])
def test_the_ranking_of_all_words_is_the_true_one(top: int) -> None:
    merge = merged(200, top)
    assert merge.ranking == true_ranking({0: 200}, top, words=300)
    again = start(MergeCounts, {"top": top})
    again.restore(unpack_value(pack_value(merge.snapshot())))
    assert again.ranking == merge.ranking


def test_a_word_overtakes_another_in_the_ranking() -> None:
    merge = start(MergeCounts, {"top": 2})
    for word, count in [("a", 1), ("b", 1), ("c", 1), ("c", 2), ("b", 2)]:
        merge.process(*tuples(f"{WORDS} count", [(0, 0, 0, word, count)]))
    assert merge.ranking == [("b", 2), ("c", 2)]


# -- Log Stream --------------------------------------------------------------------------------------------------------


def log_rows(positions: int) -> tuple[list[Any], list[Any]]:
    """The rows of both tables for the first positions of five spout tasks."""
    rules, indexer, counter = start(Rules), start(Indexer), start(NumberedRuleCounter)
    for task in range(5):
        for emitted in drain(start(LogLines, {"limit": 5 * positions}, task, 5)):
            rules.process(*tuples("line", [emitted.values]))
    for tup in tuples(REQUEST, values(rules)):
        indexer.process(tup)
        counter.process(tup)
    return values(indexer), values(counter)


def store(directory: Path, index: list[Any], counts: list[Any], kind: str) -> None:
    for table, fields, table_rows in ((INDEX_TABLE, Indexer.outputs, index), (COUNT_TABLE, COUNT_FIELDS, counts)):
        if kind == "jsonl":
            (directory / table).mkdir()
            lines = [json.dumps(dict(zip(fields, row, strict=True))) + "\n" for row in table_rows]
            (directory / table / "part-0.jsonl").write_text("".join(lines))
            continue
        connection = sqlite3.connect(directory / f"{table}.db")
        connection.execute(f"create table {table} ({', '.join(fields)})")
        connection.executemany(f"insert into {table} values ({', '.join('?' * len(fields))})", table_rows)
        connection.commit()
        connection.close()


@pytest.mark.parametrize("kind", ["sql", "jsonl"])
def test_the_tables_of_the_whole_log_are_exact(kind: str, tmp_path: Path) -> None:
    store(tmp_path, *log_rows(40), kind)
    results = audit_log_stream(tmp_path, SENT)
    assert all(result.exact for result in results.values())
    assert results[COUNT_TABLE].tuples_in == 200 and results[INDEX_TABLE].tuples_in > 20


def test_lost_repeated_wrong_and_later_rows_are_told_apart(tmp_path: Path) -> None:
    index, counts = log_rows(41)
    later = sum(number >= 200 for _, number, _ in index)
    del counts[:3]
    number, minute, rule, count = counts[0]
    counts += [(number, minute, rule, count + 1)] * 2 + [(number, minute, "unknown", 1), (10**6, minute, "unknown", 1)]
    store(tmp_path, index, counts, "jsonl")
    results = audit_log_stream(tmp_path, SENT)
    assert results[COUNT_TABLE] == AuditResult(200, 206, lost=3, repeated=2, wrong=2, beyond=5)
    assert results[INDEX_TABLE].beyond == later and not results[INDEX_TABLE].lost


def test_numbered_counts_are_the_usual_ones_and_the_true_ones() -> None:
    numbered, plain, rules = start(NumberedRuleCounter), start(RuleCounter), start(Rules)
    for emitted in drain(start(LogLines, {"limit": 200})):
        rules.process(*tuples("line", [emitted.values]))
    for tup in tuples(REQUEST, values(rules)):
        numbered.process(tup)
        plain.process(tup)
    assert [row[1:] for row in values(numbered)] == values(plain)
    assert [row[0] for row in values(numbered)] == list(range(200))
    assert dict(numbered.counts) == dict(plain.counts) == true_rule_counts({0: 200}) == true_rule_counts(SENT)


def test_the_audit_reads_what_the_database_sink_writes(tmp_path: Path) -> None:
    index, counts = log_rows(40)
    for table, fields, table_rows in ((INDEX_TABLE, Indexer.outputs, index), (COUNT_TABLE, COUNT_FIELDS, counts)):
        sink = start(LogDatabase, {"path": str(tmp_path), "table": table})
        sink.process_rows([tup.values for tup in tuples(" ".join(fields), table_rows)])
        sink.close()
    assert all(result.exact for result in audit_log_stream(tmp_path, SENT).values())


# -- N-Storm -----------------------------------------------------------------------------------------------------------


def test_a_quarter_of_the_lines_is_heavy_and_another_one_after_a_shift() -> None:
    split = start(HarmonicSplit, {"terms": 3, "lines_per_shift": 1000})
    lines = [emitted.values[2] for emitted in drain(start(NumberedLines, {"limit": 1000}))]
    shifts = [{line for line in lines if split.is_heavy(1000 * shift, line)} for shift in range(3)]
    assert all(0.2 * len(lines) < len(heavy) < 0.3 * len(lines) for heavy in shifts)
    assert shifts[0] != shifts[1] != shifts[2]
    assert shifts[0] == {line for line in lines if split.is_heavy(999, line)}


def test_heavy_lines_are_split_like_others() -> None:
    plain, heavy = start(SplitNumbered), start(HarmonicSplit, {"terms": 3})
    for tup in tuples("task position line", [emitted.values for emitted in drain(start(NumberedLines, {"limit": 50}))]):
        plain.process(tup)
        heavy.process(tup)
    assert values(heavy) == values(plain)
