"""Manifests name the output that sinks have prepared, and a resumed topology does not start without it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.control.batches.steps import CommitSinks
from millrace.errors import OutputMissing
from millrace.model.graph import TopologyGraph, batched, graph_of
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.testing.local_batches import LocalBatches
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from millrace.workloads.audit import NumberedLines, StatefulWordCount

NAME = "words"


def words(directory: Path, **config: float) -> TopologyGraph:
    return graph_of(StatefulWordCount, NAME, {"path": str(directory), "topology.guarantee": "exactly-once",
                                              "topology.checkpoint.interval.secs": 0.1, **config})


def batches_on(tmp_path: Path, resume: bool = False) -> LocalBatches:
    """Batches with output in `out`; the first does not read everything."""
    return LocalBatches(batched(words(tmp_path / "out", limit=6000)), str(tmp_path / "store"), resume=resume)


def cluster_on(store: MemoryStore, directory: Path, resume: bool | None = None) -> LocalCluster:
    """A cluster whose spouts send lines for two virtual seconds."""
    cluster = LocalCluster(2, store=store)
    NumberedLines.clock = NumberedLines.wall_clock = staticmethod(cluster.clock.now)  # type: ignore[method-assign]
    cluster.submit(words(directory, limit=2000, rate=1000.0), resume=resume)
    return cluster


@pytest.fixture(autouse=True)
def own_clock() -> Iterator[None]:
    """The spout's clock is its own again afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NumberedLines, "clock", NumberedLines.clock)
        yield


def hidden(directory: Path) -> Path:
    [found] = directory.glob(".staged-*")
    return found


def run_until_committed(store: MemoryStore, directory: Path) -> LocalCluster:
    """A driver that dies after its second commit, before any sink has published that wave."""
    cluster = cluster_on(store, directory)
    waves = cluster.master.topologies[NAME].waves
    assert waves is not None
    cluster.run_until(lambda: waves.committed == 1 and waves.phase == "idle")
    cluster.lose = lambda message: getattr(getattr(message, "mark", None), "kind", "") == "commit"
    cluster.run_until(lambda: waves.committed == 2)
    return cluster


def test_a_topology_does_not_resume_without_its_prepared_output(tmp_path: Path) -> None:
    store = MemoryStore()
    run_until_committed(store, tmp_path / "out")
    manifest = Checkpoints(store, NAME).latest()
    assert manifest is not None and manifest.wave == 2
    tokens = [token for record in manifest.records for token in record.prepared]
    assert tokens
    saved = tmp_path / "saved"
    shutil.copytree(hidden(tmp_path / "out"), saved)
    for path in hidden(tmp_path / "out").iterdir():
        path.unlink()
    again = cluster_on(store, tmp_path / "out", resume=True)
    again.run_until(lambda: any("neither staged nor published" in text for text in again.said))
    [text] = [text for text in again.said if "neither staged nor published" in text]
    assert "wave 2 is committed" in text and any(token in text for token in tokens)
    assert again.master.topologies[NAME].status == "starting"
    shutil.copytree(saved, hidden(tmp_path / "out"), dirs_exist_ok=True)  # someone brings them back
    again.run_until(lambda: again.master.topologies[NAME].status == "running")


def test_published_output_may_be_moved_away(tmp_path: Path) -> None:
    store = MemoryStore()
    cluster = cluster_on(store, tmp_path / "out")
    waves = cluster.master.topologies[NAME].waves
    assert waves is not None
    cluster.run_until(lambda: waves.committed == 2 and waves.phase == "idle")
    assert any(record.prepared for record in cluster.master.topologies[NAME].checkpoint.records)
    for path in (tmp_path / "out").glob("part-*"):
        path.unlink()
    again = cluster_on(store, tmp_path / "out", resume=True)
    again.run_until(lambda: again.master.topologies[NAME].status == "running")


def test_batches_do_not_resume_without_their_prepared_output(tmp_path: Path) -> None:
    def die() -> None:
        raise OSError("the driver dies here")

    batches = batches_on(tmp_path)
    batches.batch()
    batches.before_publishing = die
    with pytest.raises(OSError, match="the driver dies here"):
        batches.batch()
    for path in hidden(tmp_path / "out").iterdir():
        path.unlink()
    again = batches_on(tmp_path, resume=True)
    with pytest.raises(OutputMissing, match="neither staged nor published: wave 2, "):
        again.batch()
    assert not isinstance(again.decider.step, CommitSinks)  # it rests, and tries again


def test_a_fresh_run_of_batches_publishes_what_the_earlier_one_committed(tmp_path: Path) -> None:
    def die() -> None:
        raise OSError("the driver dies here")

    batches = batches_on(tmp_path)
    batches.batch()
    batches.before_publishing = die
    with pytest.raises(OSError, match="the driver dies here"):
        batches.batch()
    seen = {path.name for path in (tmp_path / "out").glob("part-*")}
    prepared = [path for path in hidden(tmp_path / "out").iterdir() if "-published" not in path.name]
    assert prepared
    contents = sorted(path.read_bytes() for path in prepared)
    fresh = batches_on(tmp_path)
    fresh.batch()
    new = [path for path in (tmp_path / "out").glob("part-*") if path.name not in seen]
    assert [content for content in contents if content not in [path.read_bytes() for path in new]] == []


def test_a_fresh_run_without_a_sink_of_the_earlier_one_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    batches = batches_on(tmp_path)
    batches.batch()
    graph = batches.graph
    without = replace(graph, components=tuple(each for each in graph.components if each.name != "sink"))
    LocalBatches(without, str(tmp_path / "store"))
    assert [text for text in caplog.messages if "without the sinks sink of its earlier run" in text]
