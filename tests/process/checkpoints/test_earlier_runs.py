"""A topology is submitted where an earlier run left checkpoints: they are resumed or deleted, as requested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.config import CHECKPOINTS, HEARTBEAT_TIMEOUT
from millrace.control.submission import AUTO
from millrace.errors import CorruptCheckpoint, TopologyError
from millrace.model.graph import TopologyGraph, graph_of
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import manifest_names
from millrace.testing.processes import ProcessCluster
from millrace.workloads.audit import StatefulWordCount
from millrace.workloads.wordcount import WordCount
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, StatefulStream, assert_all_exact

NAME = "stateful"
GENTLE = {"rate": 1500, "interval": 0.1}
REFUSED = rf"checkpoints of '{NAME}', the last of wave \d+, made 20.*--resume \(resume=True\).*--fresh \(resume=False\)"


def cluster_on(store: Path) -> ProcessCluster:
    return ForkedCluster(2, settings={HEARTBEAT_TIMEOUT.key: SECONDS, CHECKPOINTS.key: str(store)})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with cluster_on(tmp_path_factory.mktemp("store")) as made:
        yield made


def names(cluster: ProcessCluster) -> list[str]:
    return sorted(open_store(cluster.master.checkpointing.place).names(f"{NAME}/"))


def manifests(cluster: ProcessCluster) -> set[str]:
    return set(manifest_names(names(cluster)))


def run_once(cluster: ProcessCluster, directory: Path) -> None:
    """Run the topology and kill it in order, with a last wave."""
    stream = StatefulStream(cluster.master, directory, NAME, **GENTLE)
    stream.wave(2)
    cluster.master.kill(NAME, wait=SECONDS)
    assert cluster.master.wait_until(lambda: NAME not in cluster.master.state.topologies, SECONDS)


def words(directory: Path) -> TopologyGraph:
    return graph_of(StatefulWordCount, NAME, {"path": str(directory), "topology.guarantee": "exactly-once"})


def test_a_submission_without_a_choice_is_refused_and_changes_nothing(cluster: ProcessCluster, tmp_path: Path) -> None:
    run_once(cluster, tmp_path)
    with pytest.raises(TopologyError, match=REFUSED):  # waits until the first run has deleted its old blobs
        cluster.master.submit(words(tmp_path))
    before = names(cluster)
    with pytest.raises(TopologyError, match=REFUSED):
        cluster.master.submit(words(tmp_path))
    assert NAME not in cluster.master.state.topologies and names(cluster) == before
    with cluster_on(Path(cluster.master.checkpointing.place)) as other:  # the lock is released, so another cluster may use it
        stream = StatefulStream(other.master, tmp_path, NAME, resume=True, **GENTLE)
        stream.wave(2)
        assert_all_exact(stream.finish_both())


def test_a_fresh_start_deletes_old_checkpoints(cluster: ProcessCluster, tmp_path: Path) -> None:
    run_once(cluster, tmp_path / "first")
    old = manifests(cluster)
    stream = StatefulStream(cluster.master, tmp_path / "second", NAME, resume=False, **GENTLE)
    stream.wave(2)  # as many waves as are kept
    stream.until(lambda: not old & manifests(cluster))
    assert_all_exact(stream.finish_both())


def test_auto_starts_and_resumes_as_there_is_need(cluster: ProcessCluster, tmp_path: Path) -> None:
    """The first start, a restart after a clean stop, and a topology that has nothing to resume."""
    with cluster_on(tmp_path / "store") as first:
        stream = StatefulStream(first.master, tmp_path, NAME, resume="auto", **GENTLE)
        stream.wave(2)
        first.master.kill(NAME, wait=SECONDS)
        assert first.master.wait_until(lambda: NAME not in first.master.state.topologies, SECONDS)
    with cluster_on(tmp_path / "store") as second:
        stream = StatefulStream(second.master, tmp_path, NAME, resume="auto", **GENTLE)
        stream.wave(2)
        assert_all_exact(stream.finish_both())
    for _ in range(2):
        assert cluster.master.submit(graph_of(WordCount, "stateless"), "auto") is False
        cluster.master.kill("stateless", wait=0)
        assert cluster.master.wait_until(lambda: "stateless" not in cluster.master.state.topologies, SECONDS)


def test_a_running_topology_is_reported_as_running(cluster: ProcessCluster, tmp_path: Path) -> None:
    stream = StatefulStream(cluster.master, tmp_path, NAME, **GENTLE)
    stream.wave(1)
    for resume in (None, True, False):
        with pytest.raises(TopologyError, match=rf"'{NAME}' is running already: kill it first"):
            cluster.master.submit(words(tmp_path), resume)
    stream.wave(1)
    assert_all_exact(stream.finish_both())


def test_unreadable_checkpoints_need_a_decision(cluster: ProcessCluster, tmp_path: Path) -> None:
    run_once(cluster, tmp_path / "first")
    store = open_store(cluster.master.checkpointing.place)
    for name in manifests(cluster):
        store.write(name, [b"torn"])
    for resume in (None, True, AUTO):
        with pytest.raises(CorruptCheckpoint, match=r"none can be used; .* without state with --fresh \(resume=False\)"):
            cluster.master.submit(words(tmp_path), resume)
    stream = StatefulStream(cluster.master, tmp_path / "second", NAME, resume=False, **GENTLE)
    stream.wave(2)
    assert_all_exact(stream.finish_both())
    assert Checkpoints(store, NAME).latest() is not None
