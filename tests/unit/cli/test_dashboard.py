"""`status` in 80 columns: long names, many tasks, several topologies, both engines; more columns where there is room."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from millrace.cli.dashboard import dashboard, print_status
from millrace.cli.show import of_topology
from millrace.errors import UnknownTopology
from millrace.master.batch_log import BatchLog, BatchRecord

LONG = "deduplicated-and-enriched-purchase-events"
NODE = "ip-10-123-101-217.eu-central-1.compute.internal"
Status = dict[str, Any]


def component(name: str, kind: str = "bolt", **changed: Any) -> Status:
    counters = dict.fromkeys(("merged", "transferred", "acked", "failed", "dead_letters", "replayed", "expired", "gaps",
                              "repeats", "errors"), 0)
    latency = {"p50": 123.4, "p99": 98_765.4} if kind == "bolt" else None
    return {"name": name, "kind": kind, "par": 2, **counters, "emitted": 987_654_321, "queue_length": 12_345,
            "executed": 123_456_789 if kind == "bolt" else 0, "execute_latency_ms": latency, "process_latency_ms": latency,
            "complete_latency_ms": None, "last_error": None, "cpu_seconds": 12_345.6, "capacity": 0.987, **changed}


def topology(name: str, components: list[Status], **changed: Any) -> Status:
    return {"name": name, "engine": "resident", "status": "running", "batches": None, "version": 3, "uptime_seconds": 100_000.0,
            "tasks": 6, "losses": 0, "components": components, "metrics": {}, **changed}


def batched(name: str, components: list[Status]) -> Status:
    log = BatchLog()
    for batch in range(3):
        log.add(BatchRecord(batch=batch, wave=batch + 1, plan_version=1, started=1e9, seconds=123.456, attempts=2,
                            tuples_in=123_456_789, misplaced=3, resident=1_234_567, restored=23_456, spark_run_seconds=1e6,
                            own_busy_seconds=5e5, spark_shuffle_bytes=10**13))
    return topology(name, components, engine="microbatch", batches=log.summary())


def worker(slot: int, tasks: list[str], **changed: Any) -> Status:
    return {"slot": slot, "node": "vm", "agent": slot == 0, "executor": "7", "generation": 1, "pid": 12_345 + slot,
            "revision": 4, "tasks": tasks, "counters": {}, **changed}


def status(topologies: list[Status], workers: list[Status], **changed: Any) -> Status:
    return {"cluster": "millrace-4137", "endpoint": "tcp://127.0.0.1:37337", "revision": 4, "refused_connections": 0,
            "malformed": 0, "workers": workers, "topologies": topologies, "events": [], "superseded": "", "warnings": [],
            "scheduler": "off", "hosts_without_workers": [], "workers_auto": {"on": False}, **changed}


def shown(answer: Status, width: int = 80, rates: dict[str, dict[str, float]] | None = None) -> str:
    """The printed text without trailing blanks; no line is too long."""
    console = Console(file=io.StringIO(), width=width, markup=False)
    console.print(dashboard(answer, rates))
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    return "\n".join(lines)


def word_count(**changed: Any) -> Status:
    rows = [component("lines", "spout", par=2, emitted=31_829, queue_length=0, capacity=0.018),
            component("split", par=2, emitted=318_280, executed=31_828, queue_length=1, capacity=0.008,
                      execute_latency_ms={"p50": 0.013, "p99": 0.049}),
            component("count", par=2, emitted=318_270, executed=318_270, queue_length=4, capacity=0.019,
                      execute_latency_ms={"p50": 0.002, "p99": 0.016})]
    return topology("wordcount", rows, uptime_seconds=32.6, **changed)


def test_a_topology_at_a_glance() -> None:
    tasks = [[f"wordcount/{name}[{index}]" for name in ("count", "lines", "split")] for index in (0, 1)]
    answer = status([word_count()], [worker(0, tasks[0]), worker(1, tasks[1])])
    assert shown(answer) == """\
wordcount: running (resident) for 32 s, 6 tasks, plan version 3
                                                              execute
component  tasks  mean/s  executed  emitted  busy  queue   ms p50/p99
lines          2     976         -   31.8 k    2%      0            -
split          2     976    31.8 k    318 k    1%      1  0.013/0.049
count          2   9,763     318 k    318 k    2%      4  0.002/0.016

worker  node  process    tasks
     0  vm    pid 12345  count[0], lines[0], split[0]
     1  vm    pid 12346  count[1], lines[1], split[1]
"""


def test_tuples_that_were_merged_are_counted_where_there_are_some() -> None:
    rows = [component("lines", "spout"), component("split", merged=123_456)]
    assert shown(status([topology("t", rows)], [])).count("merged into others") == 1
    assert "  split: 123 k tuples merged into others before they were sent" in shown(status([topology("t", rows)], []))


def test_current_rates_are_labelled() -> None:
    text = shown(status([word_count()], []), rates={"wordcount": {"lines": 12_345.0}})
    assert "now/s" in text and "12.3 k" in text and "mean/s" not in text


def test_a_wider_terminal_shows_more() -> None:
    answer = status([word_count()], [])
    assert not any(title in shown(answer, 80) for title in ("     process", "acked", "CPU s"))
    assert all(title in shown(answer, 120) for title in ("     process", "acked", "CPU s"))


def test_long_names_and_large_figures_lose_nothing() -> None:
    rows = [component(LONG, "spout"), component(f"{LONG}-2", par=4096), component("x")]
    answer = status([topology(LONG, rows), batched(f"{LONG}-batched", rows)],
                   [worker(0, [f"{LONG}/{LONG}[0]", f"{LONG}-batched/x[3]"], node=NODE),
                    worker(1, [], node=NODE, pid=None, executor="123")])
    text = shown(answer)
    assert f"{LONG}-batched: running (microbatch)" in text
    assert text.count("123/98,765") == 4, "a long name costs no column"
    assert "\ndeduplicated-and-         2 " in text and "\nenriched-purchase-\nevents\n" in text
    assert f"{NODE.partition('.')[0]}  pid 12345" in text and "executor 123" in text and "x[3]" in text


def test_many_tasks_are_counted() -> None:
    tasks = [f"wordcount/{name}[{index}]" for name in ("count", "split") for index in range(0, 128, 2)]
    some = [f"wordcount/count[{index}]" for index in range(64)]
    text = shown(status([word_count()], [worker(0, tasks), worker(1, some), worker(2, [])]))
    assert "64 count, 64 split" in text and "  count[0..63]\n" in text and "  none\n" in text


def test_several_topologies_name_their_tasks() -> None:
    answer = status([word_count(), topology("other", [component("x")])], [worker(0, ["wordcount/count[0]", "other/x[0]"])])
    assert "wordcount: count[0]; other: x[0]" in shown(answer)
    entry = of_topology(answer, "other")
    assert "other: running" in shown(entry) and "wordcount: running" not in shown(entry)
    with pytest.raises(UnknownTopology, match="no topology named 'nope' is running; running: wordcount, other"):
        of_topology(answer, "nope")
    assert of_topology(answer, None) is answer


def test_batches() -> None:
    rows = [component("lines", "spout"), component("count")]
    text = shown(status([batched("words", rows)], [worker(0, ["words/count[0]"], pid=None)]))
    assert "  batches: 3, 3 attempts failed; last 123.46 s for 123 M tuples;" in text
    assert "  state: found in memory 3.7 M times, loaded 70.4 k times; 9 tasks misplaced" in text
    assert "  time in partitions: 3,000,000.0 s by Spark, 1,500,000.0 s in Python;" in text
    assert "executor 7" in text
    empty = topology("words", rows, engine="microbatch", batches=BatchLog().summary())
    assert "  no batch has finished yet" in shown(status([empty], []))


def test_only_unusual_figures_are_shown() -> None:
    quiet = shown(status([word_count()], []))
    assert "failed" not in quiet and "lost" not in quiet
    rows = [component("lines", "spout", complete_latency_ms={"p50": 4.2, "p99": 12.7}, replayed=3),
            component("count", failed=12_000, dead_letters=1, gaps=2)]
    text = shown(status([topology("words", rows, losses=1, metrics={
        "lines[0]": {"behind": 306, "from": "a"}, "lines[1]": {"behind": 302, "from": "b"}, "count[0]": {"ratio": 0.25}})], []))
    assert "  lines: complete latency of a tuple 4.2/13 ms (p50/p99)" in text
    assert "  lines: 3 replayed" in text and "  count: 12 k failed, 1 dead letters, 2 chunks missing" in text
    assert "  lines: behind 302 to 306, from a, b" in text and "  count: ratio 0.25" in text
    assert "1 worker lost" in text.replace("\n", " ")


def test_events_are_short_and_indented() -> None:
    tasks = ", ".join(f"count[{index}]" for index in range(100))
    events = [{"time": 1e9, "topology": "words", "level": "warning", "text": f"{tasks} placed on workers 0, 1"},
              {"time": 1e9, "topology": "", "level": "info", "text": "a long story " * 10}]
    text = shown(status([], [], events=events))
    assert "  words: count[0..99] placed on workers 0, 1\n" in text
    assert "  a long story" in text and "\n          long story" in text


def test_errors_are_shown_with_the_end_of_their_traceback() -> None:
    calls = [f'  File "f{line}.py", line 1\n    {"x" * 90}()\n' for line in range(9)]
    trace = "Traceback (most recent call last):\n" + "".join(calls)
    error = {"task": "count[1]", "error": "ValueError: [/bold] is no number", "tuple": "('a', 'b')", "traceback": trace}
    console = Console(file=io.StringIO(), width=80, markup=False)
    rows = [component("count", errors=12, last_error=error), component("split", errors=1, last_error=error | {"task": "split"}),
            component("sink")]
    console.print(dashboard(status([topology("words", rows)], [])))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "  count[1], the last of 12 errors: ValueError: [/bold] is no number\n" in text
    assert "  split: ValueError: [/bold] is no number\n" in text, "every component with an error has its last one"
    assert text.count("    while processing ('a', 'b')\n") == 2
    assert 'File "f8.py", line 1' in text and 'File "f6.py"' not in text


def test_the_cluster_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_status(status([], [], malformed=3, refused_connections=20_000, superseded="another master has taken over"))
    output = capsys.readouterr().out
    assert output.startswith("cluster millrace-4137, scheduler off, master at tcp://127.0.0.1:37337\n")
    for line in ("another master has taken over", "20 k refused connections", "3 malformed messages dropped",
                 "no topology is running"):
        assert f"\n{line}\n" in output


def test_hosts_without_workers_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(status([], [worker(0, [])], hosts_without_workers=["host-b", "host-c"]))
    assert "hosts without workers: host-b, host-c" in capsys.readouterr().out


def test_limits_of_the_number_of_workers_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    auto = {"on": True, "min": 1, "max": 4, "under_way": "", "decision": "there are as many workers as are needed"}
    print_status(status([], [], workers_auto=auto))
    assert "workers auto 1..4: there are as many workers as are needed" in capsys.readouterr().out
    print_status(status([], [], workers_auto={**auto, "under_way": "1 more worker is requested"}))
    assert "workers auto 1..4: 1 more worker is requested" in capsys.readouterr().out
    print_status(status([], []))
    assert "workers auto" not in capsys.readouterr().out
