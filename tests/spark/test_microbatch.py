"""The microbatch engine on Spark: counts and output stay exact through kills and new plans."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.api.topology import Topology
from millrace.control.batches.steps import CommitSinks
from millrace.errors import MillraceError, TopologyError, UnknownName
from millrace.model.graph import TaskId, graph_of
from millrace.runtime.checkpoints.store import open_store
from millrace.spark.batches import reports as batch_reports
from millrace.spark.microbatch import MicrobatchEngine
from millrace.state.checkpoint import manifest_names
from millrace.workloads.audit import StatefulWordCount
from millrace.workloads.wordcount import SEED, CombinedWordCount, CombinedWordCountArrow, WordCount, expected_counts
from support.processes.family import executor_of, python_workers
from support.suites.kept_state import state_of
from support.topologies.batched import SECONDS, BatchedStream, kill

EXECUTORS = 2


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicrobatchEngine]:
    store = tmp_path_factory.mktemp("store")
    with MicrobatchEngine(f"local-cluster[{EXECUTORS},1,700]", EXECUTORS, name=f"batches-{os.getpid()}", code=["support"],
                          settings={"checkpoint.store": str(store), "history.url": "none", "load.period.secs": 1}) as engine:
        yield engine


def commits_seen(engine: MicrobatchEngine, name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Records the wave in the store and the one that the master shows, whenever the sinks are about to commit."""
    query, seen = engine._queries[name], list[tuple[int, int]]()
    commit_sinks = query.commit_sinks

    def watched(step: CommitSinks) -> None:
        stored, shown = query._store.checkpoints.latest(), engine.master.state.topologies[name].checkpoint
        if stored is not None and shown is not None:
            seen.append((stored.wave, shown.wave))
        commit_sinks(step)

    monkeypatch.setattr(query, "commit_sinks", watched)
    return seen


def test_tasks_run_where_the_plan_says_and_plans_change_between_batches(engine: MicrobatchEngine, tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    stream = BatchedStream(engine, tmp_path, "planned")
    stream.advance(3)
    assert not any(record.misplaced for record in stream.records)
    assert all(record.resident and not record.restored for record in stream.records[1:])
    stream.running.scale({"count": 5})
    stream.until(lambda: stream.records[-1].tasks > stream.records[0].tasks)
    version = stream.records[-1].plan_version
    task = next(task for task in stream.master.state.topologies["planned"].places if task.component == "count")
    slot = 1 - stream.master.state.topologies["planned"].places[task].slot
    stream.running.move(task, slot)
    stream.until(lambda: stream.records[-1].plan_version > version)
    load = stream.running.load()
    assert load.traffic and sum(load.key_groups["count"]) == sum(
        tuples for (_, target), tuples in load.traffic.items() if target.component == "count")
    stream.running.scale({"count": 2})
    stream.advance(2)
    assert not any(record.misplaced for record in stream.records) and not stream.retried()
    owners = stream.master.state.topologies["planned"].key_groups
    stream.finish()
    again = BatchedStream(engine, tmp_path, "planned", resume=True)
    assert again.graph.component("count").par == 2 and stream.master.state.topologies["planned"].key_groups == owners
    assert "resumes with count x 2, as it was scaled" in [event["text"] for event in list(engine.master.events)]
    again.advance(1)
    seen = commits_seen(engine, "planned", monkeypatch)
    again.advance(2)
    assert seen and all(stored == shown for stored, shown in seen)
    again.finish()


def test_a_python_process_is_killed_in_a_batch(engine: MicrobatchEngine, tmp_path: Path) -> None:
    stream = BatchedStream(engine, tmp_path, "processes")
    stream.advance(1)
    kill(stream.held()[0])
    stream.hold.end()
    stream.until(lambda: stream.retried() == 1)
    stream.advance(1)
    stream.finish()


def test_an_executor_is_killed_in_a_batch_with_the_state_that_it_held(engine: MicrobatchEngine, tmp_path: Path) -> None:
    stream = BatchedStream(engine, tmp_path, "executors")
    stream.advance(2)
    victim = executor_of(stream.held()[0])
    assert victim is not None
    kill(victim)
    stream.hold.end()
    stream.until(lambda: stream.retried() == 1)
    stream.until(lambda: len(engine.executors) == EXECUTORS)  # Spark has started another one
    stream.advance(2)
    stream.finish()


def test_all_processes_are_gone_after_a_pause(engine: MicrobatchEngine, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends Python processes that are idle for a minute: state and fragments are lost at the same time."""
    stream = BatchedStream(engine, tmp_path, "idle")
    stream.advance(2)
    assert stream.records[-1].restored == 0
    assert stream.running.drain(SECONDS)
    for pid in python_workers(os.getpid()):
        kill(pid)
    before = len(stream.records)
    monkeypatch.setattr(batch_reports, "PROCESS_SECONDS", 0.0)
    stream.running.unpause()
    stream.advance(1)
    monkeypatch.undo()
    first = stream.records[before]
    assert (first.attempts, first.resident) == (1, 0) and first.restored
    stream.advance(2)
    assert stream.records[-1].restored == 0
    stream.finish()


def test_a_new_plan_while_a_batch_runs(engine: MicrobatchEngine, tmp_path: Path) -> None:
    """The running batch keeps its plan; the next one uses the new plan."""
    stream = BatchedStream(engine, tmp_path, "replanned")
    stream.advance(1)
    before = stream.records[-1].plan_version
    stream.held()
    stream.running.scale({"count": 4})
    stream.running.move("count[0]", 1 - stream.master.state.topologies["replanned"].places[TaskId("count", 0)].slot)
    count = len(stream.records)
    stream.hold.end()
    stream.advance(3)
    versions = [record.plan_version for record in stream.records[count:]]
    assert versions[0] == before and versions[1] == before + 2 and not stream.retried()
    stream.finish()


@pytest.mark.parametrize(("topology", "size"), [(CombinedWordCount, 1), (CombinedWordCountArrow, 50)])
def test_words_are_combined_before_the_shuffle(engine: MicrobatchEngine, topology: type[Topology], size: int) -> None:
    """Processes die with what they have combined."""
    lines, master = 3000, engine.master
    running = engine.submit(topology, f"combined-{size}", {
        "limit": lines, "batch": size, "words": 200, "topology.batch.tuples": lines // 12, "topology.batch.interval.ms": 0})
    assert master.wait_until(lambda: bool(running.positions()), SECONDS)
    for pid in python_workers(os.getpid()):
        kill(pid)
    assert master.wait_until(lambda: sum(running.positions().values()) == lines // size, SECONDS)
    graph = running.observed().graph
    assert running.measured(lambda observed: observed.total("split", "merged")) > lines, "of ten words in each line"
    running.kill(wait=SECONDS)
    assert running.wait(SECONDS)
    kept = state_of(open_store(str(master.settings["checkpoint.store"])), graph)
    assert kept["count"]["counts"] == expected_counts(SEED, lines, 200)


def manifests(engine: MicrobatchEngine, name: str) -> set[str]:
    return set(manifest_names(open_store(engine.master.checkpointing.place).names(f"{name}/")))


def test_checkpoints_of_an_earlier_run_are_resumed_or_deleted_as_submitted(engine: MicrobatchEngine, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    stream = BatchedStream(engine, first, "earlier")
    stream.advance(2)
    stream.finish()
    before = manifests(engine, "earlier")
    with pytest.raises(TopologyError, match=r"checkpoints of 'earlier', the last of batch \d+ \(wave \d+\), made 20.*"
                                            r"--resume \(resume=True\).*--fresh \(resume=False\)"):
        BatchedStream(engine, first, "earlier", resume=None)
    assert "earlier" not in engine.master.state.topologies and manifests(engine, "earlier") == before
    again = BatchedStream(engine, first, "earlier", resume=True)
    again.advance(1)
    again.finish()
    old = manifests(engine, "earlier")
    fresh = BatchedStream(engine, second, "earlier", resume=False)
    fresh.advance(2)
    fresh.until(lambda: not old & manifests(engine, "earlier"))
    fresh.finish()


def test_invalid_requests_are_refused(engine: MicrobatchEngine, tmp_path: Path) -> None:
    stream = BatchedStream(engine, tmp_path, "refusals")
    stream.advance(1)
    for name, par, error, words in [("lines", 3, TopologyError, "spout"), ("count", 0, MillraceError, "from 1 to"),
                                    ("count", 500, TopologyError, "128 key groups"), ("cuont", 2, UnknownName, "split")]:
        with pytest.raises(error, match=words):
            stream.running.scale({name: par})
    with pytest.raises(UnknownName, match="no worker 7"):
        stream.running.move("count[0]", 7)
    with pytest.raises(TopologyError, match="running already"):
        BatchedStream(engine, tmp_path, "refusals")
    with pytest.raises(TopologyError, match="no checkpoint of 'never'"):
        engine.submit(StatefulWordCount, "never", resume=True)
    stream.finish()
    with pytest.raises(TopologyError, match=r"128 key groups.* now has 64"):
        engine.submit(StatefulWordCount, "refusals", {"topology.key.groups": 64}, resume=True)
    with pytest.raises(TopologyError, match="has the components"):
        engine.submit(graph_of(WordCount, "refusals"), resume=True)
