"""The samples of the documentation and the programs in examples/, run as printed except for directories and durations.

They run on a real Spark with small input; output is compared with results that no engine computed.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace.api.topology import Topology
from millrace.master.checkpoints.checkpointing import default_store
from millrace.model.graph import batched, graph_of
from millrace.runtime.checkpoints.store import open_store
from millrace.spark.engine import ResidentEngine
from millrace.spark.microbatch import MicrobatchEngine
from millrace.spark.running_topology import RunningTopology
from support.processes.shared_spark import stop_shared_session
from support.rows import rows_in
from support.suites.kept_state import positions_of, state_of
from support.suites.pages import DOCS, README, ROOT, blocks, put_in, typed_in, write_file

SECONDS = 120.0
SLOTS = 2
SHARES_SPARK = True
MICROBATCH, SPARK = DOCS / "MICROBATCH.md", DOCS / "SPARK.md"
Engine = ResidentEngine | MicrobatchEngine


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for the modules of the pages, on the import path; checkpoints of other tests are hidden."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def spark(shared_spark: SparkSession) -> SparkSession:
    """One session for both engines."""
    return shared_spark


def resident(spark: SparkSession, module: str) -> ResidentEngine:
    return ResidentEngine(spark=spark, slots=SLOTS, name=f"samples-{os.getpid()}", code=[module])


def microbatch(spark: SparkSession, module: str) -> MicrobatchEngine:
    return MicrobatchEngine(spark=spark, name=f"samples-{os.getpid()}", code=[module])


Start = Callable[[SparkSession, str], Engine]
on_both = pytest.mark.parametrize("start", [resident, microbatch], ids=["resident", "microbatch"])


def until(engine: Engine, condition: Callable[[], bool]) -> None:
    assert engine.master.wait_until(condition, SECONDS), [event["text"] for event in list(engine.master.events)]


def taken_in(running: RunningTopology, *spouts: str) -> int:
    return running.measured(lambda observed: sum(observed.total(spout, "emitted") for spout in spouts))


def end(running: RunningTopology) -> None:
    running.kill(wait=SECONDS)
    assert running.wait(SECONDS)


def imported(name: str) -> ModuleType:
    """Import the module again: it reads environment variables, which another test may have set."""
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def page_module(page: Path, name: str, directory: Path, places: Mapping[str, str]) -> ModuleType:
    write_file(page, name, directory, places)
    return imported(name)


def put(path: Path, lines: Iterable[str]) -> None:
    """Write a file atomically."""
    path.parent.mkdir(exist_ok=True)
    part = path.parent.with_name(f"part-of-{path.name}")
    part.write_text("".join(f"{line}\n" for line in lines))
    part.rename(path)


def text(rng: random.Random) -> list[str]:
    return [" ".join(rng.choices(("mill", "race", "wheel", "water", "stone"), k=6)) for _ in range(40)]


def words(lines: Iterable[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())


def counts_in(store: str, topology: type[Topology], state: str, of_batches: bool = False) -> dict[str, int]:
    graph = graph_of(topology)
    return state_of(open_store(store), batched(graph) if of_batches else graph)["count"][state]


# -- programs as printed, with their own session -----------------------------------------------------------------------


def run_printed(block: str) -> None:
    """Run a program around `examples.first`, ending it after its first checkpoints instead of after a minute."""
    stop_shared_session()  # the program starts its own; these tests come before those that use the shared one
    def saved(engine: Engine) -> None:
        until(engine, lambda: (manifest := engine.master.state.topologies["wordcount"].checkpoint) is not None
              and manifest.wave > 1)

    names: dict[str, Any] = {"saved": saved}
    exec(put_in(block, {"    running.wait(seconds=60)\n    running.kill()": "    saved(engine)\n    running.kill()"}), names)
    assert names["running"].status == "ended"
    check_first(names["WordCount"])


def check_first(topology: type[Topology]) -> None:
    from millrace.workloads.wordcount import table_words

    store, table = default_store("default"), table_words()
    read = positions_of(open_store(store), graph_of(topology))
    spouts = len(read)
    lines = [table[(n * spouts + task.index) % len(table)] for task, position in read.items() for n in range(position)]
    assert lines
    assert counts_in(store, topology, "state") == Counter(word for line in lines for word in line)


def test_the_program_of_the_readme() -> None:
    (block,) = [block for block in typed_in(README, {}) if "ResidentEngine(" in block]
    run_printed(block)


def test_the_program_of_the_microbatch_page() -> None:
    (block,) = typed_in(MICROBATCH, {})
    run_printed(block)


# -- files of the pages ------------------------------------------------------------------------------------------------


def test_the_first_sample_of_the_readme(spark: SparkSession, directory: Path) -> None:
    """It writes the rows that the README shows."""
    printed = re.findall(r"```json\n(.*?)```", README.read_text(), re.S)[0].splitlines()
    (directory / "hello.py").write_text(put_in(blocks(README)[0], {"/tmp/hello": str(directory / "hello-files")}))
    module = imported("hello")
    with resident(spark, "hello") as engine:
        running = engine.submit(module.Hello)
        until(engine, lambda: running.measured(lambda observed: observed.total("files", "executed")) == len(printed))
        end(running)
    lines = [line for path in (directory / "hello-files").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(lines) == printed


def test_a_table_of_the_microbatch_page(spark: SparkSession, directory: Path) -> None:
    from millrace.workloads.wordcount import expected_counts

    target = directory / "counts"
    module = page_module(MICROBATCH, "to_table", directory, {"/tmp/counts": str(target)})
    with microbatch(spark, "to_table") as engine:
        running = engine.submit(module.ToTable, config={"limit": 300})
        until(engine, lambda: taken_in(running, "lines") == 300)
        end(running)
    counts: dict[str, int] = defaultdict(int)
    for row in spark.read.parquet(str(target)).collect():
        counts[row["word"]] = max(counts[row["word"]], row["count"])
    assert counts == expected_counts(1, 300)


def test_a_repeated_batch_is_in_the_database_once(spark: SparkSession, directory: Path) -> None:
    """Derby, which comes with Spark, stands in for other databases."""
    url = f"jdbc:derby:{directory / 'database'};create=true"
    module = page_module(MICROBATCH, "to_jdbc", directory, {"jdbc:postgresql://host/database?user=me": url})
    for batch, count in [(0, 1), (1, 2), (1, 2), (2, 3)]:
        module.write(spark.createDataFrame([("mill", count), ("race", count)], "word string, count long").repartition(2), batch)
    rows = spark.read.jdbc(url, "counts").collect()
    assert sorted((row["batch_id"], row["word"], row["count"]) for row in rows) \
        == [(batch, word, batch + 1) for batch in range(3) for word in ("mill", "race")]


def test_two_sources_of_the_spark_page(spark: SparkSession, directory: Path) -> None:
    new, old = text(random.Random(1)), text(random.Random(2))
    put(directory / "new" / "1.txt", new)
    put(directory / "old" / "1.txt", old)
    places = {"/tmp/new": str(directory / "new"), "/tmp/old": str(directory / "old")}
    module = page_module(SPARK, "two_sources", directory, places)
    with microbatch(spark, "two_sources") as engine:
        running = engine.submit(module.TwoSources)
        until(engine, lambda: taken_in(running, "new", "old") == len(new) + len(old))
        end(running)
        store = engine.master.checkpointing.place
    assert counts_in(store, module.TwoSources, "counts", of_batches=True) == words([*new, *old])


@on_both
def test_windows_that_spark_closes(start: Start, spark: SparkSession, directory: Path) -> None:
    incoming, target = directory / "device-events", directory / "per-minute"
    events = [(n * 7 % 600, f"d{n % 3}") for n in range(90)]
    truth = Counter((device, at - at % 60) for at, device in events)
    put(incoming / "1.json", [event_line(at, device) for at, device in events])
    put(incoming / "2.json", [event_line(3600, "d0")])  # moves the watermark past all of them
    module = page_module(SPARK, "per_minute", directory, {"/tmp/device-events": str(incoming), "/tmp/per-minute": str(target)})
    with start(spark, "per_minute") as engine:
        running = engine.submit(module.PerMinute)
        until(engine, lambda: taken_in(running, "minutes") == len(truth))
        end(running)
    rows = rows_in(target)
    assert len(rows) == len(truth)
    assert {(row["device"], row["start"]): row["count"] for row in rows} == truth


def event_line(at: int, device: str) -> str:
    return json.dumps({"device": device, "at": datetime.fromtimestamp(at, UTC).isoformat()})


def test_input_and_output_of_the_spark_page(spark: SparkSession, directory: Path) -> None:
    """A DataFrame feeds resident workers; then a stream is read as a DataFrame, and its state as a table."""
    lines = text(random.Random(3))
    put(directory / "incoming" / "1.txt", lines)
    files = page_module(SPARK, "from_files", directory, {"/tmp/incoming": str(directory / "incoming")})
    readable = page_module(SPARK, "readable", directory, {})
    register, read, show = typed_in(SPARK, {})
    with resident(spark, "from_files") as engine:
        names: dict[str, Any] = {"spark": spark}
        exec(register, names)
        running = engine.submit(files.FromFiles)
        until(engine, lambda: taken_in(running, "lines") == len(lines))
        end(running)
        assert counts_in(engine.master.checkpointing.place, files.FromFiles, "counts") == words(lines)
        running = engine.submit(readable.Readable, config={"limit": 200})
        exec(put_in(read, {"/tmp/read": str(directory / "read")}), names)
        until(engine, lambda: sum(running.positions().values()) == 200)  # everything committed is acked
        names["query"].stop()
        end(running)
        exec(show, names)
        check_readable(spark, names, directory / "read")


def check_readable(spark: SparkSession, names: Mapping[str, Any], read: Path) -> None:
    from millrace.workloads.wordcount import expected_counts

    truth = expected_counts(1, 200)
    rows = [(row["word"], row["count"]) for row in spark.read.parquet(str(read)).collect()]
    assert sorted(rows) == sorted((word, n + 1) for word, count in truth.items() for n in range(count))
    assert {row["key"]: row["value"] for row in names["state"].collect()} == truth


# -- examples/ ---------------------------------------------------------------------------------------------------------


def test_files_to_a_table(spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS", str(directory / "orders"))
    monkeypatch.setenv("TOTALS", str(directory / "totals"))
    module = imported("examples.files_to_table")
    rng = random.Random(4)
    orders = [(rng.choice("abcde"), rng.randrange(-500, 10_000)) for _ in range(300)]
    lines = [json.dumps({"customer": customer, "cents": cents}) for customer, cents in orders]
    put(directory / "orders" / "1.json", lines[:200])
    with microbatch(spark, "examples.files_to_table") as engine:
        running = engine.submit(module.Totals)
        until(engine, lambda: taken_in(running, "incoming") == 200)
        put(directory / "orders" / "2.json", lines[200:])
        until(engine, lambda: taken_in(running, "incoming") == 300)
        end(running)
    truth: dict[str, list[int]] = defaultdict(list)
    for customer, cents in orders:
        truth[customer].append(cents)
    totals = {row["customer"]: (row["orders"], row["cents"])
              for row in module.newest(spark.read.parquet(str(directory / "totals"))).collect()}
    assert totals == {customer: (len(all_cents), sum(all_cents)) for customer, all_cents in truth.items()}


def test_a_stream_that_spark_reads(spark: SparkSession, directory: Path) -> None:
    module = imported("examples.tapped")
    readings = 3000
    with resident(spark, "examples.tapped") as engine:
        running = engine.submit(module.Watch, config={"limit": readings})
        truth: dict[str, list[int]] = defaultdict(list)
        for n in range(readings):
            if n * 7919 % 101 > 90:
                truth[f"d{n % 20}"].append(n * 7919 % 101)
        alarms = sum(map(len, truth.values()))
        query = module.copy(spark, str(directory / "alarms"))
        until(engine, lambda: not query.isActive or rows_read(query) >= alarms)
        query.stop()
        assert query.exception() is None
        end(running)
    copied: dict[str, dict[int, int]] = defaultdict(dict)
    rows = spark.read.parquet(str(directory / "alarms")).collect()
    for row in rows:
        copied[row["device"]][row["number"]] = row["value"]
    assert len(rows) == alarms
    assert {device: sorted(values.values()) for device, values in copied.items()} \
        == {device: sorted(values) for device, values in truth.items()}
    assert all(set(values) == set(range(1, len(values) + 1)) for values in copied.values())


def rows_read(query: Any) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


@on_both
def test_windows_of_event_time(start: Start, spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTS", str(directory / "events" / "*.csv"))
    monkeypatch.setenv("MINUTES", str(directory / "minutes"))
    module = imported("examples.windows")
    rng = random.Random(5)
    events = [(max(0, n - rng.randrange(100)), rng.choice("abcd")) for n in range(1000)]  # none is too late
    put(directory / "events" / "1.csv", [f"{at},{device}" for at, device in events])
    truth = Counter((device, at - at % 60) for at, device in events)
    with start(spark, "examples.windows") as engine:
        running = engine.submit(module.PerMinute, "windows", {"topology.checkpoint.interval.secs": 0.5})
        until(engine, lambda: taken_in(running, "lines") == 1000)
        put(directory / "events" / "2.csv", [f"5000,{device}" for device in "abcd"])  # past the end of every window
        until(engine, lambda: taken_in(running, "windows") == len(truth))
        put(directory / "events" / "3.csv", ["7,a", "not an event"])
        until(engine, lambda: running.measured(lambda observed: observed.total("parse", "dead_letters")) == 1)
        end(running)
        graph = graph_of(module.PerMinute, "windows")
        kept = state_of(open_store(engine.master.checkpointing.place), batched(graph) if start is microbatch else graph)
    assert kept["windows"]["late"] == {"a": 1}
    rows = rows_in(directory / "minutes")
    assert len(rows) == len(truth)
    assert {(row["device"], row["start"]): row["events"] for row in rows} == truth
