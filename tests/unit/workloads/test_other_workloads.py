from __future__ import annotations

import sqlite3
from collections import Counter

import msgspec
import pytest
from recording import attach, drain, rows, tuples

from millrace.api.tuple import SYSTEM_COMPONENT, TICK_STREAM, Tuple
from millrace.state.packing import pack_value, unpack_value
from millrace.workloads.logstream import (
    Indexer,
    LogDatabase,
    LoggedRequest,
    LogLines,
    LogStream,
    RuleCounter,
    Rules,
    SmallLogStream,
    judge,
)
from millrace.workloads.throughput import (
    CountTuples,
    Identity,
    RandomStrings,
    SmallThroughputTest,
    ThroughputTest,
    throughput_test,
)
from millrace.workloads.topn import MergeRanks, RollingCount, TopN, WideTopN, ranking

TICK = Tuple.of("tick", SYSTEM_COMPONENT, TICK_STREAM, -1, (1,))


def pars(topology):
    return [spec.par for spec in topology.specs]


def test_shapes_are_those_of_the_papers():
    assert pars(ThroughputTest) == [5, 15, 15]
    assert pars(LogStream) == [5, 5, 5, 5, 2, 2]
    assert pars(TopN) == [1, 10, 8, 1]
    assert pars(WideTopN) == [4, 3, 3, 1]
    assert pars(SmallThroughputTest) == pars(throughput_test(1, 2, 2)) == [1, 2, 2]
    assert pars(SmallLogStream) == [1] * 6


def test_throughput():
    emits = drain(*attach(RandomStrings, {"limit": 300, "seed": 4}))
    texts = [emitted.values[0] for emitted in emits]
    assert {len(text) for text in texts} == {10_240}
    assert len(set(texts)) == 256
    assert texts[:100] == [e.values[0] for e in drain(*attach(RandomStrings, {"limit": 100, "seed": 4}))]
    identity, recorder = attach(Identity)
    counter, _ = attach(CountTuples)
    for tup in tuples("text", [[text] for text in texts]):
        identity.process(tup)
    for tup in tuples("text", recorder.values()):
        counter.process(tup)
    assert (counter.count, counter.characters) == (300, 300 * 10_240)
    again, _ = attach(CountTuples)
    again.restore(counter.snapshot())
    assert (again.count, again.characters) == (300, 300 * 10_240)


def test_rolling_count_forgets_what_left_the_window():
    count, recorder = attach(RollingCount, {"top": 2, "window": 2}, task_index=5)
    for words in ("a a b c", "b b", "", ""):
        for tup in tuples("word", [[word] for word in words.split()]):
            count.process(tup)
        count.process_tick(TICK)
    assert recorder.values() == [(5, ["a", "b"], [2, 1]), (5, ["b", "a"], [3, 2]), (5, ["b"], [2]), (5, [], [])]
    assert not count._totals


def test_rolling_count_continues_from_its_snapshot():
    whole, recorder = attach(RollingCount, {"top": 3, "window": 2})
    for words in ("a a b c", "b b", "a"):
        kept = whole.snapshot()
        resumed, after = attach(RollingCount, {"top": 3, "window": 2})
        resumed.restore(kept)
        for count in (whole, resumed):
            for tup in tuples("word", [[word] for word in words.split()]):
                count.process(tup)
            count.process_tick(TICK)
        assert after.values() == recorder.values()[-1:]
        assert resumed.snapshot() == whole.snapshot()


def test_merge_continues_from_its_snapshot():
    merge, _ = attach(MergeRanks, {"top": 3, "window": 2})
    merge.process(*tuples("task words counts", [[0, ["a", "b"], [5, 2]]]))
    merge.process_tick(TICK)
    resumed, after = attach(MergeRanks, {"top": 3, "window": 2})
    resumed.restore(unpack_value(pack_value(merge.snapshot())))
    assert resumed.ranking == [("a", 5), ("b", 2)]
    for _ in range(2):
        resumed.process_tick(TICK)
    assert after.values() == [(["a", "b"], [5, 2]), ([], [])]


def test_merge_takes_the_newest_ranking_of_each_task():
    merge, recorder = attach(MergeRanks, {"top": 3, "window": 2})
    fields = "task words counts"
    for tup in tuples(fields, [[0, ["a", "b"], [5, 2]], [1, ["c"], [4]], [0, ["a", "b"], [6, 4]]]):
        merge.process(tup)
    merge.process_tick(TICK)
    assert recorder.values() == [(["a", "b", "c"], [6, 4, 4])]
    merge.process(*tuples(fields, [[1, ["c"], [9]]]))
    merge.process_tick(TICK)
    assert merge.ranking == [("c", 9), ("a", 6), ("b", 4)]
    merge.process_tick(TICK)
    assert merge.ranking == [("c", 9)]  # task 0 has been silent for a window


def test_ranking_by_count_then_by_word():
    assert ranking({"b": 2, "a": 2, "c": 3, "d": 1}, 3) == [("c", 3), ("a", 2), ("b", 2)]


@pytest.mark.parametrize(("change", "rule"), [
    ({}, "normal"), ({"status": 503}, "server-error"), ({"status": 404}, "client-error"), ({"millis": 2000}, "slow"),
    ({"method": "POST"}, "change"), ({"path": "/admin/x", "status": 403}, "intrusion"),
])
def test_rules(change, rule):
    request = LoggedRequest(0, 0, "10.0.0.1", "GET", "/a", 200, 1, 1)
    assert judge(msgspec.structs.replace(request, **change)) == rule


def run_log_stream(limit):
    rules, judged = attach(Rules)
    for emitted in drain(*attach(LogLines, {"limit": limit})):
        rules.process(*tuples("line", [emitted.values]))
    indexer, indexed = attach(Indexer)
    counter, counted = attach(RuleCounter)
    for tup in tuples("number second client path status rule", judged.values()):
        indexer.process(tup)
        counter.process(tup)
    return judged.values(), indexed.values(), counter, counted.values()


def test_log_stream_judges_indexes_and_counts_every_request():
    judged, indexed, counter, counted = run_log_stream(500)
    assert [values[0] for values in judged] == list(range(500))
    assert [values[1] for values in judged][::100] == [1_700_000_000 + n for n in range(5)]
    assert {number for _, number, _ in indexed} == {values[0] for values in judged if values[5] != "normal"}
    assert {(minute, rule): n for rule, minutes in counter.counts.items() for minute, n in minutes.items()} == \
        Counter((values[1] // 60, values[5]) for values in judged)
    assert len(counted) == 500


def test_log_database_is_sqlite_unless_told_otherwise(tmp_path):
    entries = rows("term number rule", [["admin", 1, "intrusion"]])
    sink, _ = attach(LogDatabase, {"path": str(tmp_path / "new"), "table": "log_index"})
    sink.process_rows(entries)
    sink.close()
    connection = sqlite3.connect(tmp_path / "new" / "log_index.db")
    assert connection.execute("select * from log_index").fetchall() == [("admin", 1, "intrusion")]
    connection.close()
    sink, _ = attach(LogDatabase, {"path": str(tmp_path), "table": "t", "store": "jsonl"}, task_index=4)
    sink.process_rows(entries)
    sink.close()
    part, = (tmp_path / "t").iterdir()
    assert part.name.startswith("part-4-")
    assert part.read_text() == '{"term":"admin","number":1,"rule":"intrusion"}\n'


@pytest.mark.parametrize("store", ["sql", "jsonl"])
def test_log_database_commits_in_two_phases(tmp_path, store):
    sink, _ = attach(LogDatabase, {"path": str(tmp_path), "table": "t", "store": store}, exactly_once=True, epoch=1)

    def visible():
        if store == "jsonl":
            return [path.read_text() for path in (tmp_path / "t").glob("part-*")]
        connection = sqlite3.connect(tmp_path / "t.db")
        records = connection.execute("select * from t").fetchall()
        connection.close()
        return records

    sink.recover(0, 0)
    sink.process_rows(rows("term number", [["admin", 1]]))
    sink.prepare(1)
    assert visible() == []
    sink.commit(1)
    assert len(visible()) == 1
    sink.close()
