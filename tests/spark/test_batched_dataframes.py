"""DataFrames at both ends of a batched topology, and a driver that is killed and resumes from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.errors import MasterUnreachable, MillraceError, TopologyError
from millrace.master.requests.client import ask
from millrace.model.graph import batched, graph_of
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.spark.engine import check_code
from millrace.spark.microbatch import MicrobatchEngine
from millrace.workloads.audit import StatefulWordCount, audit, true_counts
from millrace.workloads.wordcount import expected_counts
from support.processes.family import in_session
from support.suites.kept_state import state_of
from support.topologies.audited import assert_exact
from support.topologies.dataframe_parts import (
    SOURCE,
    TARGET,
    DataFrameCount,
    Forgotten,
    FromKafka,
    Misfit,
    Mixed,
    NotStreaming,
    OddDataFrame,
    TappedCount,
    WrongSchema,
)
from support.topologies.text_files import TextFiles

SECONDS = 120.0
LOOK_SECONDS = 0.1


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TextFiles, Path]:
    monkeypatch.setenv(SOURCE, str(tmp_path / "source"))
    monkeypatch.setenv(TARGET, str(tmp_path / "target"))
    return TextFiles(tmp_path / "source"), tmp_path / "target"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[[], MicrobatchEngine]]:
    made: list[MicrobatchEngine] = []

    def make() -> MicrobatchEngine:
        made.append(MicrobatchEngine("local[2]", name=f"dataframes-{os.getpid()}", code=["support"],
                                     settings={"checkpoint.store": str(tmp_path / "store"), "history.url": "none"}))
        return made[-1]

    yield make
    for engine in made:
        engine.stop()


def counted(engine: MicrobatchEngine, name: str, rows: int) -> None:
    """Wait until `rows` words have been counted and their results written."""
    def done() -> bool:
        log = engine.master.batch_logs.get(name)
        return log is not None and sum(record.tuples_in for record in log.records) >= rows

    assert engine.master.wait_until(done, SECONDS), [event["text"] for event in list(engine.master.events)]


def test_from_files_to_a_table_and_resumed_after_a_restart(places: tuple[TextFiles, Path],
                                                           engine: Callable[[], MicrobatchEngine], tmp_path: Path) -> None:
    files, target = places
    first = engine()
    files.write(5)
    running = first.submit(DataFrameCount, "dataframes")
    counted(first, "dataframes", 200)
    running.scale({"lines": 3})
    files.write(3)
    counted(first, "dataframes", 320)
    running.kill(wait=SECONDS)
    assert running.wait(SECONDS)
    first.stop()
    files.write(4)
    second = engine()
    with pytest.raises(TopologyError, match="key groups"):
        second.submit(DataFrameCount, "dataframes", {"topology.key.groups": 7}, resume=True)
    running = second.submit(DataFrameCount, "dataframes", resume=True)
    assert second.master.state.topologies["dataframes"].graph.parallelism["lines"] == 3, "as it was scaled"
    running.scale({"lines": 1})
    counted(second, "dataframes", 160)
    kept = state_of(open_store(str(tmp_path / "store")), batched(graph_of(DataFrameCount, "dataframes")))
    assert kept["count"]["counts"] == files.counts
    written = second.spark.read.parquet(str(target)).collect()
    assert len(written) == files.counts.total()  # every update once
    last: dict[str, int] = {}
    for row in written:
        last[row["word"]] = max(row["count"], last.get(row["word"], 0))
    assert last == files.counts
    check_refusals(second, target)
    check_several_sources(second, files, tmp_path)
    check_dead_letters(second, files, tmp_path)


def check_several_sources(engine: MicrobatchEngine, files: TextFiles, tmp_path: Path) -> None:
    others = TextFiles(files.directory.with_name("source-others"))
    others.write(2)
    running = engine.submit(Mixed, "mixed")
    counted(engine, "mixed", (files.counts.total() + others.counts.total()) // 10 + 100)
    kept = state_of(open_store(str(tmp_path / "store")), batched(graph_of(Mixed, "mixed")))
    assert kept["count"]["counts"] == files.counts + others.counts + expected_counts(1, 100)
    running.kill(wait=SECONDS)


def check_refusals(engine: MicrobatchEngine, target: Path) -> None:
    for topology, words in [(NotStreaming, "is not streaming"), (Misfit, "text"), (WrongSchema, r"has the schema word.*line"),
                            (FromKafka, r"the DataFrame that from_kafka returns.*Failed to find data source: kafka"
                                        r".*dataframe_parts.py.*--set spark.jars.packages.*spark_settings.*spark-sql-kafka"),
                            (Forgotten, r"forgotten returns, but that raised KeyError: 'no such key' \(.*dataframe_parts.py:")]:
        with pytest.raises(TopologyError, match=words):
            engine.submit(topology, topology.__name__)
    with pytest.raises(TopologyError, match=r"topology.key.gruops: there is no such setting; did you mean topology.key.groups"):
        engine.submit(DataFrameCount, "misspelt", {"topology.key.gruops": 7})
    with pytest.raises(TopologyError, match="reads a DataFrame, and none was given"):
        engine.submit(graph_of(DataFrameCount, "without"))
    with pytest.raises(TopologyError, match="works on the resident engine only"):
        engine.submit(TappedCount, "tapped")
    with pytest.raises(TopologyError, match="works on the microbatch engine only"):
        check_code(graph_of(DataFrameCount), "resident")


def check_dead_letters(engine: MicrobatchEngine, files: TextFiles, tmp_path: Path) -> None:
    """Only rows that do not fit the schema go to the dead letters."""
    (files.directory / "odd.txt").write_text("one odd none three")
    engine.submit(OddDataFrame, "odd", {"path": str(tmp_path / "letters")})
    counted(engine, "odd", files.counts.total() // 10 + 1)
    letters = [json.loads(line) for path in (tmp_path / "letters").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert [letter["values"] for letter in letters] == [["odd", "a text"], ["none", None]]


def test_the_driver_is_killed_and_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millrace.cli.main", "run", "millrace.workloads.audit:StatefulWordCount", "--engine",
               "microbatch", "--master", "local[2]", "--name", "driven", "--cluster", "driven", "--json",
               "--set", f"checkpoint.store={tmp_path / 'store'}", "--set", "history.url=none",
               "--set", f"path={tmp_path / 'output'}", "--set", "topology.batch.tuples=300"]

    def start(*more: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, *more], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True)

    def committed(process: subprocess.Popen[str], after: int) -> int:
        deadline = time.monotonic() + SECONDS
        while True:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            try:
                shown = ask("driven", "state")["topologies"]
            except (MasterUnreachable, MillraceError):
                shown = []
            if shown and shown[0]["wave"] > after:
                return int(shown[0]["wave"])
            time.sleep(LOOK_SECONDS)

    first = start()
    try:
        wave = committed(first, 2)
    finally:
        for pid in in_session(first.pid):
            os.kill(pid, signal.SIGKILL)
        first.communicate()
    second = start("--resume")
    try:
        committed(second, wave + 2)
        os.kill(second.pid, signal.SIGINT)
        out, err = second.communicate(timeout=SECONDS)
        assert second.returncode == 0 and "Traceback" not in err, err
        final = json.loads(out)
        assert final["engine"] == "microbatch"
        # Two cores mean several Python processes: tasks still return to their own.
        assert final["batches"]["restored"] == 3 and final["batches"]["resident"] >= 3
    finally:
        for pid in in_session(second.pid):
            os.kill(pid, signal.SIGKILL)
    store = open_store(str(tmp_path / "store"))
    manifest = Checkpoints(store, "driven").latest()
    assert manifest is not None and manifest.wave > wave + 2
    sent = {task.index: position for task, position in manifest.positions().items()}
    assert_exact(audit(tmp_path / "output", sent))
    assert state_of(store, batched(graph_of(StatefulWordCount, "driven")))["count"]["counts"] == true_counts(sent)
