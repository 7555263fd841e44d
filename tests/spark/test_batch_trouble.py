"""The microbatch engine on Spark with faults: a store that loses blobs, user code that does not return."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.control.batches.actions import BatchFailed
from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.runtime.checkpoints.store import open_store
from millrace.spark.batches.jobs import BatchJobs
from millrace.spark.batches.offsets import SparkOffsets
from millrace.spark.microbatch import MicrobatchEngine
from millrace.state.checkpoint import manifest_names
from millrace.workloads.wordcount import table_words
from support.topologies.batched import SECONDS, BatchedStream, kill
from support.topologies.dataframe_parts import TARGET, Refused


class Engines:
    """The module's engine, made again after a test has stopped it."""

    def __init__(self, store: Path) -> None:
        self._settings = {"checkpoint.store": str(store), "history.url": "none"}
        self._engine: MicrobatchEngine | None = None

    def running(self) -> MicrobatchEngine:
        if self._engine is None:
            self._engine = MicrobatchEngine("local[2]", name=f"trouble-{os.getpid()}", code=["support"],
                                            settings=self._settings)
        return self._engine

    def stop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    engines = Engines(tmp_path_factory.mktemp("store"))
    yield engines
    engines.stop()


@pytest.fixture
def engine(engines: Engines) -> Iterator[MicrobatchEngine]:
    running = engines.running()
    yield running
    if running.master.state.topologies:  # the test has failed: the next one must find the cores free
        engines.stop()


def lose_blobs(stream: BatchedStream) -> dict[str, bytes]:
    """Delete all blobs of the topology but its manifests; returns them."""
    store = open_store(str(stream.master.settings["checkpoint.store"]))
    names = store.names(f"{stream.name}/")
    lost = {name: store.read(name) for name in set(names).difference(manifest_names(names))}
    store.delete(lost)
    return lost


def read_up_to(stream: BatchedStream) -> list[Path]:
    """Spark's directories of read positions, one for each run."""
    return list((Path(str(stream.master.settings["checkpoint.store"])) / ".spark" / stream.name).iterdir())


def events_with(stream: BatchedStream, words: str) -> list[dict[str, Any]]:
    return [event for event in list(stream.master.events) if event["topology"] == stream.name and words in event["text"]]


def test_lost_blobs_are_written_again_and_names_are_not_listed(engine: MicrobatchEngine, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    stream = BatchedStream(engine, tmp_path, "mended")
    stream.advance(3)
    stream.held()
    lose_blobs(stream)
    stream.hold.end()
    stream.until(lambda: bool(events_with(stream, "tasks have rewritten their state")))
    stream.advance(2)
    assert not stream.retried()
    listed: list[str] = []
    names = DirectoryStore.names
    monkeypatch.setattr(DirectoryStore, "names", lambda self, prefix: listed.append(prefix) or names(self, prefix))
    stream.advance(4)
    assert not listed
    assert stream.running.drain(SECONDS)
    before = len(events_with(stream, "tasks have rewritten their state"))
    lose_blobs(stream)
    stream.running.scale({"count": 2})  # from three: one task ends in its process
    stream.running.unpause()
    stream.advance(1)
    assert len(events_with(stream, "tasks have rewritten their state")) == before + 1 and not stream.retried()
    stream.finish()
    [place] = read_up_to(stream)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    fresh = BatchedStream(engine, tmp_path, "mended")
    fresh.until(lambda: not place.exists())  # the positions of the previous run
    assert len(read_up_to(fresh)) == 1
    fresh.finish()


def test_lost_state_ends_the_topology_with_an_error_that_names_it(engine: MicrobatchEngine, tmp_path: Path) -> None:
    stream = BatchedStream(engine, tmp_path, "nowhere")
    stream.advance(2)
    held = stream.held()
    lost = lose_blobs(stream)
    for pid in held:
        kill(pid)
    stream.hold.end()
    assert stream.running.wait(SECONDS)
    ended = events_with(stream, "the query ended")[-1]
    assert ended["level"] == "error" and "the store has lost" in ended["text"] and "nowhere/count/" in ended["text"]
    store = open_store(str(stream.master.settings["checkpoint.store"]))
    for name, data in lost.items():
        store.write(name, [data])
    again = BatchedStream(engine, tmp_path, "nowhere", resume=True)
    again.advance(1)
    again.finish()


def test_a_fresh_start_that_spark_refuses_leaves_the_earlier_run(engine: MicrobatchEngine, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    stream = BatchedStream(engine, tmp_path, "left")
    stream.advance(2)
    assert stream.running.drain(SECONDS)
    last = stream.records[-1].wave
    stream.running.kill(wait=SECONDS)
    assert stream.running.wait(SECONDS)
    with monkeypatch.context() as patch:
        patch.setattr(SparkOffsets, "make", refuse)
        with pytest.raises(OSError, match="no room"):
            BatchedStream(engine, tmp_path, "left")
    again = BatchedStream(engine, tmp_path, "left", resume="auto")
    again.advance(1)
    assert again.records[0].wave > last, "it has started fresh"
    again.finish()


def refuse(*arguments: object) -> None:
    raise OSError("no room")


def test_a_function_that_cannot_write_is_named_and_its_rows_wait(engine: MicrobatchEngine, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "table"
    monkeypatch.setenv(TARGET, str(target))

    def status() -> dict[str, Any]:
        return next(topology for topology in engine.status()["topologies"] if topology["name"] == "refused")

    def last_error() -> dict[str, Any] | None:
        return next(row["last_error"] for row in status()["components"] if row["name"] == "table")

    def writes() -> bool:
        """True if the long batch that is reported, from time to time, has come to its rows."""
        now = status()["batches"]["running"]
        return bool(now and now["committed"] and now["doing"] == "write the rows kept by the sinks")

    running = engine.submit(Refused, "refused", {"topology.batch.tuples": 60})
    assert engine.master.wait_until(lambda: bool(last_error() and writes()), SECONDS)
    error = last_error()
    assert error is not None and error["task"] == "table"
    assert "dataframe_parts:refused" in error["error"] and "the sink 'table'" in error["error"]
    assert "LookupError: there is no table (" in error["error"] and "topologies/dataframe_parts.py:" in error["error"]
    assert "in refused" in error["traceback"]
    running.kill(wait=10 * SECONDS)
    assert running.wait(SECONDS), "the end does not wait for a function that fails"
    assert any("it ended before it could write the rows kept by the sinks" in event["text"]
               for event in list(engine.master.events))
    target.mkdir()
    again = engine.submit(Refused, "refused", {"topology.batch.tuples": 60}, resume=True)
    assert engine.master.wait_until(lambda: sum(again.positions().values()) == 100 and any(target.glob("*/_SUCCESS")), SECONDS)
    again.kill(wait=SECONDS)
    assert again.wait(SECONDS)
    written = [row.line for row in engine.spark.read.parquet(str(target)).collect()]
    assert sorted(written) == sorted(" ".join(words) for words in table_words()[:100])


def test_a_hanging_batch_can_be_inspected_and_killed(engine: MicrobatchEngine, tmp_path: Path) -> None:
    stream = BatchedStream(engine, tmp_path, "hanging")
    stream.advance(1)
    stream.held()

    def running() -> dict[str, Any] | None:
        return engine.status()["topologies"][0]["batches"]["running"]

    stream.until(lambda: (batch := running()) is not None and any("count[" in task for task in batch["tasks"]))
    batch = running()
    assert batch is not None and batch["seconds"] > 0 and (batch["attempt"], batch["doing"]) == (1, "run its tasks")
    assert not any("split" in task for task in batch["tasks"])
    stream.running.scale({"count": 2})
    stream.running.pause()
    stream.running.unpause()
    stream.running.kill(wait=0.1)
    assert stream.running.wait(SECONDS) and stream.hold.held(), "it still hangs"
    stream.hold.end()
    again = BatchedStream(engine, tmp_path, "hanging", resume=True)
    again.advance(1)
    assert engine.status()["topologies"][0]["batches"]["running"] is None
    again.finish()


def test_data_that_a_job_carries_is_deleted(engine: MicrobatchEngine, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark itself would keep the files of large data until it ends."""
    context = engine.spark.sparkContext
    before = set(Path(str(context._temp_dir)).iterdir())
    with engine.placement.carried(b"small") as carried:
        assert carried == b"small"
    monkeypatch.setattr(engine.placement, "_large", 0)
    stream = BatchedStream(engine, tmp_path, "large")
    stream.advance(2)
    stream.held()
    assert len(set(Path(str(context._temp_dir)).iterdir()) - before) == 1, "one for all stages"
    stream.hold.end()
    stream.advance(1)
    stream.finish()
    assert set(Path(str(context._temp_dir)).iterdir()) == before


def test_the_status_shows_failed_attempts_and_their_error(engine: MicrobatchEngine, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    stream = BatchedStream(engine, tmp_path, "streak")
    stream.advance(1)
    monkeypatch.setattr(BatchJobs, "run", lambda *arguments: (_ for _ in ()).throw(BatchFailed("an injected failure")))

    def running() -> dict[str, Any]:
        return engine.status()["topologies"][0]["batches"]["running"] or {"attempt": 0}

    stream.until(lambda: running()["attempt"] > 2)
    assert (batch := running())["error"] == "an injected failure" and batch["seconds"] > 0 and not batch["committed"]
    monkeypatch.undo()
    stream.advance(1)
    stream.until(lambda: running()["attempt"] == 0)
    stream.finish()


def test_an_engine_stops_although_a_batch_hangs(engines: Engines, tmp_path: Path) -> None:
    stream = BatchedStream(engines.running(), tmp_path, "left")
    stream.advance(1)
    held = [psutil.Process(pid) for pid in stream.held()]
    engines.stop()
    assert stream.hold.held(), "it still hangs"
    assert not psutil.wait_procs(held, SECONDS)[1]
