"""BatchQuery with fakes in place of the master, the jobs and Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.util import handle_worker_exception

from millrace.control.assignment import Place
from millrace.control.batches.actions import BatchFailed
from millrace.control.batches.decisions import LACKING, REPAIR_ROUNDS, start_from
from millrace.control.batches.steps import RunAttempt
from millrace.control.events import Say
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import RUNNING, STOPPING
from millrace.errors import CheckpointMissing, CorruptCheckpoint, NotTheAuthor
from millrace.microbatch.work import Attempt, BatchWork, PartitionReport, TaskReport
from millrace.model.graph import TaskId, batched, graph_of
from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.meters import Meters
from millrace.runtime.wire.transport import Keys
from millrace.runtime.worker.process import WorkerSetup
from millrace.spark.batches import query
from millrace.spark.batches.offsets import SparkOffsets
from millrace.spark.batches.query import BatchQuery, Stopped
from millrace.spark.batches.tasks import run_commit, run_rewrite
from millrace.spark.cluster.placement import SparkTotals
from millrace.spark.session.errors import mark_missing_state
from millrace.state.checkpoint import PieceRef, TaskRecord, blob_name
from millrace.workloads.audit import StatefulWordCount

GRAPH = batched(graph_of(StatefulWordCount, "words", par={"count": 1}))
COUNT = TaskId("count", 0)


class FakeMaster:
    """Records its messages; calls run at once."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.superseded = ""
        self.batching = self
        self.topology = TopologyState(1, GRAPH, version=1, places={task: Place(0, 1) for task in GRAPH.tasks()})
        self.topology.become(RUNNING)
        self.state = SimpleNamespace(topologies={"words": self.topology}, workers={})
        self.messages: list[Say] = []
        self.committed_waves: list[int] = []
        self.batches: list[Any] = []
        self.deleted: list[Any] = []
        self.ends: list[tuple[str, str]] = []
        self.checkpointing = SimpleNamespace(collect=lambda name, epoch: self.deleted.append("all"),
                                             discard=lambda name, names: self.deleted.append(names))

    def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def say(self, message: Say) -> None:
        self.messages.append(message)

    def give_way(self, error: NotTheAuthor) -> None:
        self.superseded = str(error)

    def began(self, name: str) -> None: ...

    def committed(self, name: str, manifest: Any) -> None:
        self.committed_waves.append(manifest.wave)

    def take_report(self, report: Any) -> None: ...

    def note(self, name: str, record: Any) -> None:
        self.batches.append(record)

    def finish(self, name: str, how: str, uncommitted: str = "") -> None:
        self.ends.append((how, uncommitted))


class FakeJobs:
    """Each job fails with the next of `errors`, if there is one and it is not None."""

    def __init__(self, store: DirectoryStore) -> None:
        self.store = store
        self.errors: list[Exception | None] = []
        self.before: Callable[[], None] = lambda: None
        self.attempts: list[Attempt] = []
        self.published: list[tuple[int, list[str]]] = []  # the wave, and the manifests in the store at that time
        self.rewrites = 0
        self.losing = 0  # attempts whose blob the store loses

    def _fail_if_told(self) -> None:
        self.before()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def run(self, attempt: Attempt, dataframe: Any) -> list[PartitionReport]:
        self.attempts.append(attempt)
        self._fail_if_told()
        blob = blob_name("words", *COUNT, attempt.work.assignment.epoch, attempt.work.wave)
        if not self.losing:
            self.store.write(blob, [b"..."])
        self.losing = max(self.losing - 1, 0)
        record = TaskRecord(*COUNT, {0: [PieceRef(blob, 0, 3, 0, True)]})
        task = TaskReport(GRAPH.number(COUNT), {**Meters().report(), "emitted": 1}, {}, {}, record)
        return [PartitionReport(0, 0, 1, [task], [], {}, 0.0, 0.0, 0.0, 0, 0, 0, {})]

    def run_in_place(self, graph: Any, slots: Any, tasks: list[TaskId], work: Any, body: Any, *more: Any) -> list[bytes]:
        if body is run_rewrite:
            self.rewrites += 1
            return []
        assert body is run_commit and {task.component for task in tasks} == {"sink"}
        self._fail_if_told()
        self.published.append((work.wave, [name for name in self.store.names("") if name.endswith(".manifest")]))
        return []


class Fixture:
    """A query, and everything around it."""

    def __init__(self, directory: Path, resume: bool = False, epochs: int = 1) -> None:
        self.store = DirectoryStore(directory)
        self.master, self.jobs = FakeMaster(), FakeJobs(self.store)
        numbers = itertools.count(epochs)
        context = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
        self.executors = SimpleNamespace(look=lambda: None, by_id=lambda: {"0": 0}, several=False,
                                         totals=lambda: SparkTotals(0.0, 0))
        engine: Any = SimpleNamespace(
            master=self.master, executors=self.executors, next_epoch=lambda: next(numbers), runs=lambda: ["run"], spark=context,
            setup=WorkerSetup("cluster", "", Keys(b"", b"")), free_cores=None, lost="",
            placement=SimpleNamespace(delete_beside=lambda place, names: None), number=0)
        checkpoints = Checkpoints(self.store, "words")
        checkpoints.take_over(f"run {epochs}")
        start = start_from(checkpoints.latest() if resume else None, next(numbers))
        jobs: Any = self.jobs
        self.query = BatchQuery(engine, GRAPH, {}, f"run {epochs}", checkpoints, start, "place", [], jobs)
        self.query.number = 1
        self.query._store.begin(start.committed)

    def offer(self, number: int) -> None:
        dataframe: Any = None
        self.query.on_batch(dataframe, number)

    def texts(self) -> str:
        return "\n".join(message.text for message in self.master.messages)


@pytest.fixture
def words(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_batch_query_commits_before_it_publishes(words: Fixture) -> None:
    for number in range(3):
        words.offer(number)
    assert words.master.committed_waves == [1, 2, 3]
    assert [(wave, len(manifests)) for wave, manifests in words.jobs.published] == [(1, 1), (2, 2), (3, 3)]
    assert [record.batch for record in words.master.batches] == [0, 1, 2] and not words.master.messages
    assert words.master.deleted[:2] == ["all", "all"] and len(words.master.deleted[2]) == 2, "a manifest and its blob"


def test_batch_query_runs_a_failed_attempt_again_as_a_whole(words: Fixture) -> None:
    words.offer(0)
    words.jobs.errors = [BatchFailed("a task died"), OSError("no room")]
    words.offer(1)
    second = words.jobs.attempts[1:]
    assert [attempt.work.again for attempt in second] == [False, True, True]
    epochs = [attempt.work.assignment.epoch for attempt in second]
    assert epochs == sorted(set(epochs)) and {attempt.work.wave for attempt in second} == {2}
    assert {attempt.work.assignment.restore[0] for attempt in second} == {1}
    assert "attempt 1 at the batch failed; retrying in 0.1 s: a task died" in words.texts()
    assert words.master.batches[-1].attempts == 3 and words.master.committed_waves == [1, 2]


def test_batch_query_publishes_again_until_the_sinks_have_committed(words: Fixture) -> None:
    words.jobs.errors = [None, LookupError("the table is locked")]
    words.offer(0)
    assert len(words.jobs.attempts) == 1 and [wave for wave, _ in words.jobs.published] == [1]
    assert "cannot commit the prepared output of the sinks; retrying in 0.1 s: the table is locked" in words.texts()


def test_batch_query_says_that_there_is_no_plan_when_the_wait_for_it_fails(words: Fixture) -> None:
    errors = [OSError("no executors known"), OSError("nor now")]

    def look() -> None:
        if errors:
            raise errors.pop(0)

    words.executors.look = look
    words.offer(0)
    assert words.texts().splitlines() == ["no plan; retrying in 0.1 s: no executors known",
                                          "no plan; retrying in 0.2 s: nor now"]
    assert words.master.batches[-1].attempts == 1 and words.master.committed_waves == [1]


class CachedRows:
    """A DataFrame that notes whether it is cached, and fails to be freed if told so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None

    def persist(self) -> None:
        self.calls.append("persist")

    def unpersist(self) -> None:
        self.calls.append("unpersist")
        if self.error is not None:
            raise self.error


@pytest.fixture
def rows(words: Fixture, monkeypatch: pytest.MonkeyPatch) -> CachedRows:
    """The batch of a topology with several sources."""
    sources: Any = {"left": None, "right": None}
    words.query._sources = sources
    monkeypatch.setattr(query, "schema_of", lambda dataframe: b"")
    monkeypatch.setattr(query, "rows_of", lambda *which: None)
    return CachedRows()


def test_rows_are_freed_once_they_are_committed_and_before_sinks_publish(words: Fixture, rows: CachedRows) -> None:
    words.jobs.errors = [BatchFailed("a task died")]
    words.jobs.before = lambda: rows.calls.append("job")
    dataframe: Any = rows
    words.query.on_batch(dataframe, 0)
    assert rows.calls == ["persist", "job", "job", "unpersist", "job"]


def test_rows_are_freed_when_the_batch_is_not_committed(words: Fixture, rows: CachedRows) -> None:
    words.jobs.errors = [ZeroDivisionError("a bug")]
    dataframe: Any = rows
    with pytest.raises(ZeroDivisionError):
        words.query.on_batch(dataframe, 0)
    assert rows.calls == ["persist", "unpersist"]


def test_a_committed_batch_is_published_though_its_rows_cannot_be_freed(words: Fixture, rows: CachedRows) -> None:
    rows.error = Py4JError("the JVM does not answer")
    dataframe: Any = rows
    words.query.on_batch(dataframe, 0)
    assert rows.calls == ["persist", "unpersist"] and [wave for wave, _ in words.jobs.published] == [1]


def test_an_error_that_is_not_about_the_attempt_ends_the_query(words: Fixture) -> None:
    words.jobs.errors = [ZeroDivisionError("a bug")]
    with pytest.raises(ZeroDivisionError):
        words.offer(0)
    assert not words.master.committed_waves


class EndedQuery:
    """Spark's query, ended by this error or still active."""

    runId = "1"

    def __init__(self, error: Exception | None) -> None:
        self.error, self.isActive = error, error is None

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None: ...


def end_of(words: Fixture, number: int) -> tuple[str, str]:
    """Offer the batch, and return what is reported when the query has ended: by its error, or because it is killed."""
    error: Exception | None = None
    try:
        words.offer(number)
        end(words, STOPPING)
    except Exception as raised:
        error = raised
    words.query._query = EndedQuery(error)
    words.query._watch()
    [ended] = words.master.ends
    return ended


def test_a_query_that_is_killed_between_two_batches_has_committed_its_last(words: Fixture) -> None:
    assert end_of(words, 0) == ("its last batch is committed", "")
    assert not words.master.messages


def test_a_query_that_is_killed_before_it_begins_a_batch_has_committed_its_last(words: Fixture) -> None:
    words.offer(0)
    end(words, STOPPING)
    assert end_of(words, 1) == ("its last batch is committed", "")


@pytest.mark.parametrize("killed", [False, True])
def test_a_query_that_an_error_ends_has_failed(words: Fixture, killed: bool) -> None:
    words.offer(0)
    words.jobs.errors = [ZeroDivisionError("a bug")]
    words.jobs.before = lambda: end(words, STOPPING) if killed else None
    how, uncommitted = end_of(words, 1)
    assert how == "its query has failed" and uncommitted.startswith("the query ended: ") and "a bug" in uncommitted
    assert [(message.text, message.level) for message in words.master.messages] == [(uncommitted, "error")]


def test_a_query_that_is_killed_when_its_batch_fails_says_that_it_is_not_committed(words: Fixture) -> None:
    words.offer(0)
    words.jobs.errors = [BatchFailed("a task died")]
    words.jobs.before = lambda: end(words, STOPPING)
    assert end_of(words, 1) == (
        "its last batch is not finished", "it ended before its last batch was committed and published: a task died. --resume "
        "continues from the last committed batch")


def test_a_query_that_ends_before_rows_are_written_says_so(words: Fixture) -> None:
    words.offer(0)
    words.query._unwritten = "write the rows kept by the sinks"
    words.query._watch_query = lambda: None  # type: ignore[method-assign]
    words.query._watch()
    [(how, uncommitted)] = words.master.ends
    assert how == "its last batch is committed, but not written"
    assert uncommitted.startswith("it ended before it could write the rows kept by the sinks; ")


@pytest.mark.parametrize("status", [STOPPING, None])
def test_a_killed_topology_does_not_run_a_failed_attempt_again(words: Fixture, status: str | None) -> None:
    words.jobs.errors = [BatchFailed("a task died")]
    words.jobs.before = lambda: end(words, status)
    with pytest.raises(Stopped):
        words.offer(0)
    assert len(words.jobs.attempts) == 1 and not words.master.committed_waves


def end(words: Fixture, status: str | None) -> None:
    if status is None:
        words.master.state.topologies.clear()
    else:
        words.master.topology.become(status)


def test_a_killed_topology_finishes_its_batch(words: Fixture) -> None:
    words.jobs.before = lambda: end(words, STOPPING)
    words.offer(0)
    assert words.master.committed_waves == [1] and [wave for wave, _ in words.jobs.published] == [1]


def test_a_topology_that_is_gone_commits_nothing(words: Fixture) -> None:
    words.jobs.before = lambda: end(words, None)
    with pytest.raises(Stopped):
        words.offer(0)
    assert not words.master.committed_waves and not words.jobs.published


def test_a_run_that_is_replaced_commits_nothing(words: Fixture, tmp_path: Path) -> None:
    words.offer(0)
    later = Fixture(tmp_path, resume=True, epochs=100)
    with pytest.raises(NotTheAuthor):
        words.offer(1)
    assert "another driver took over 'words'" in words.master.superseded
    later.offer(1)
    assert [wave for wave, _ in later.jobs.published] == [1, 2], "first what was committed before it"


def test_a_resumed_query_does_not_run_a_committed_batch_again(words: Fixture, tmp_path: Path) -> None:
    words.offer(0)
    later = Fixture(tmp_path, resume=True, epochs=100)
    later.offer(0)
    assert not later.jobs.attempts and [wave for wave, _ in later.jobs.published] == [1]
    with pytest.raises(CorruptCheckpoint, match="continues 'words' with batch 5"):
        later.offer(5)


def test_a_blob_that_is_lost_and_not_rewritten_fails_the_attempt_and_the_next_writes_all(words: Fixture) -> None:
    words.offer(0)
    words.jobs.losing = 1
    words.offer(1)
    assert words.jobs.rewrites == REPAIR_ROUNDS
    assert [attempt.work.whole for attempt in words.jobs.attempts] == [False, False, True]
    assert "0 of 1 affected tasks have rewritten their state" in words.texts()
    assert words.master.committed_waves == [1, 2] and words.master.batches[-1].attempts == 2


def test_state_that_attempts_miss_and_the_store_has_lost_ends_the_query(words: Fixture) -> None:
    words.offer(0)
    words.store.delete(words.store.names("words/count/"))
    words.jobs.errors = [job_error(CheckpointMissing("no such blob"))] * LACKING
    with pytest.raises(CheckpointMissing, match=r"the state of count\[0\] of 'words' as of wave 1 is lost: no process"):
        words.offer(1)
    assert len(words.jobs.attempts) == 1 + LACKING


def job_error(raised: Exception) -> Py4JError:
    """The error with which Spark's job fails when this is raised in a Python process."""
    sent = BytesIO()
    try:
        try:
            raise raised
        except Exception as error:
            mark_missing_state(error)
            raise
    except Exception as error:
        handle_worker_exception(error, sent)
    return Py4JError(f"An error occurred while calling o1.collect.\n: SparkException: {sent.getvalue()[8:].decode()}\n\tat x")


def test_an_error_of_the_users_that_merely_names_missing_state_is_an_ordinary_failure(words: Fixture) -> None:
    words.offer(0)
    words.store.delete(words.store.names("words/count/"))
    words.jobs.errors = [job_error(ValueError("CheckpointMissing: a part of the state is missing, I think"))] * LACKING
    words.jobs.before = lambda: end(words, STOPPING) if len(words.jobs.attempts) > LACKING else None
    with pytest.raises(Stopped):
        words.offer(1)
    assert "attempt 4 at the batch failed; retrying in 0.8 s: ValueError: CheckpointMissing: " in words.texts()


def test_an_attempt_waits_for_a_plan_that_arrives_before_it_begins(words: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    words.offer(0)
    prepare, versions = words.query._prepare, iter([4, 5])

    def prepare_late(step: RunAttempt) -> BatchWork:
        words.master.topology.version = next(versions, 5)
        return prepare(step)

    monkeypatch.setattr(words.query, "_prepare", prepare_late)
    words.offer(1)
    assert [attempt.work.assignment.version for attempt in words.jobs.attempts] == [1, 5]
    assert words.master.batches[-1].attempts == 1 and not words.master.messages


def test_spark_s_offsets_are_on_the_disk_before_the_manifest_that_has_their_digest(tmp_path: Path) -> None:
    fixture, place = Fixture(tmp_path / "store"), tmp_path / "place"
    (place / "offsets").mkdir(parents=True)
    (place / "offsets" / "0").write_text("v1\n{}\n17")
    manifests: list[int] = []  # in the store, at each sync

    class Noted(SparkOffsets):
        def sync(self, batch: int, digest: str) -> None:
            manifests.append(sum(name.endswith(".manifest") for name in fixture.store.names("")))
            super().sync(batch, digest)

    fixture.query._offsets = Noted(SimpleNamespace(), place.as_uri())
    fixture.offer(0)
    assert manifests == [0]
    committed = fixture.query.decider.committed
    assert committed is not None and committed.offsets_digest == fixture.query._offsets.digest(0) != ""
    again = Fixture(tmp_path / "store", resume=True, epochs=10)
    again.query._offsets = fixture.query._offsets
    (place / "offsets" / "0").write_text("v1\n{}\n18")
    with pytest.raises(CorruptCheckpoint, match="batch 0 of 'words' is committed"):
        again.offer(0)
