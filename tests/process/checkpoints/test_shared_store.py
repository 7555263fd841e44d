"""Workers try whether they share the checkpoint store: the same path may be another directory on each host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.config import CHECKPOINTS
from millrace.errors import StoreNotShared
from millrace.model.graph import graph_of
from millrace.workloads.audit import AuditedWordCount, StatefulWordCount
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, StatefulStream, assert_all_exact


@pytest.fixture
def home_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Sets the home directory of this process and of those that it starts from then on."""
    def home_of(host: str) -> Path:
        home = tmp_path / host
        home.mkdir(exist_ok=True)
        monkeypatch.setenv("HOME", str(home))
        return home

    return home_of


@pytest.fixture
def cluster(home_of: Callable[[str], Path]) -> Iterator[ForkedCluster]:
    """Two workers. The second has another home, and so another directory under the store's name."""
    home_of("first")
    with ForkedCluster(1, settings={CHECKPOINTS.key: "~/store"}, nodes=2) as cluster:
        home_of("second")
        cluster.start(1)
        cluster.master.wait_for_workers(2, SECONDS)
        home_of("first")
        yield cluster


def marks(tmp_path: Path) -> list[Path]:
    return [*tmp_path.glob("*/store/.trial-*")]


def test_a_directory_of_each_host_is_refused_with_what_to_set(cluster: ForkedCluster, tmp_path: Path) -> None:
    with pytest.raises(StoreNotShared, match=r"(?s)worker 1 on node1: the driver's test file is not there: .*"
                       r"Set checkpoint\.store to .*redis://.*s3://"):
        cluster.master.submit(graph_of(StatefulWordCount, "refused", {"path": str(tmp_path)}))
    assert not cluster.master.state.topologies and not marks(tmp_path)


def test_a_topology_without_state_needs_no_store(cluster: ForkedCluster, tmp_path: Path) -> None:
    cluster.master.submit(graph_of(AuditedWordCount, "stateless", {"path": str(tmp_path)}))
    assert cluster.master.wait_until(lambda: cluster.master.state.topologies["stateless"].status == "running", SECONDS)


def test_a_shared_directory_is_accepted_whatever_its_path(cluster: ForkedCluster, tmp_path: Path) -> None:
    """Refused first; then the second host mounts the directory of the first."""
    with pytest.raises(StoreNotShared):
        cluster.master.submit(graph_of(StatefulWordCount, "stateful", {"path": str(tmp_path)}))
    second = tmp_path / "second" / "store"
    second.rmdir()
    second.symlink_to(tmp_path / "first" / "store")
    output = tmp_path / "output"
    output.mkdir()
    stream = StatefulStream(cluster.master, output)
    stream.wave(2)
    assert_all_exact(stream.finish_both())
    assert not marks(tmp_path)


def test_auto_continues_the_run_that_a_refused_start_was_to_replace(home_of: Callable[[str], Path], tmp_path: Path) -> None:
    settings = {CHECKPOINTS.key: "~/store"}
    home_of("first")
    output = tmp_path / "output"
    output.mkdir()
    with ForkedCluster(1, settings=settings) as earlier:
        StatefulStream(earlier.master, output, "stateful", rate=1500, interval=0.1).wave(2)
        earlier.master.kill("stateful", wait=SECONDS)
        assert earlier.master.wait_until(lambda: "stateful" not in earlier.master.state.topologies, SECONDS)
    with ForkedCluster(1, settings=settings, nodes=2) as hasty:
        home_of("second")
        hasty.start(1)
        hasty.master.wait_for_workers(2, SECONDS)
        home_of("first")
        with pytest.raises(StoreNotShared):
            hasty.master.submit(graph_of(StatefulWordCount, "stateful", {"path": str(output)}), resume=False)
    with ForkedCluster(1, settings=settings) as supervised:
        stream = StatefulStream(supervised.master, output, "stateful", rate=1500, interval=0.1, resume="auto")
        stream.wave(2)
        assert_all_exact(stream.finish_both())


def test_a_store_that_a_worker_cannot_write_to_is_refused(cluster: ForkedCluster, tmp_path: Path) -> None:
    """The worker has a file where the store's directory should be."""
    (tmp_path / "second" / "store").write_text("not a directory")
    with pytest.raises(StoreNotShared, match="worker 1 on node1: StoreUnreachable"):
        cluster.master.submit(graph_of(StatefulWordCount, "refused", {"path": str(tmp_path)}))
    assert not marks(tmp_path)
