"""Plans that go through a real ZooKeeper: while all is well, while it is away, and when another master takes over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.errors import AddressInUse, NotTheAuthor
from millrace.model.graph import ACKER, TaskId, graph_of
from millrace.runtime.plans.agent import node_directory
from millrace.runtime.plans.coordination import ZooKeeperStore
from millrace.runtime.plans.plan_store import PlanStore
from millrace.runtime.wire.transport import private_directory
from millrace.workloads.audit import AuditedWordCount
from support.processes.forked import ForkedCluster
from support.servers.ports import free_port
from support.servers.zookeeper import ZooKeeperServer
from support.topologies.audited import SECONDS, AuditedStream, assert_exact, assert_nothing_lost

SLOTS, NODES = 3, 2
SILENCE = 2.0  # seconds after which a master takes ZooKeeper to be away
CONFIG: dict[str, object] = {"topology.message.timeout.secs": 5.0}  # for streams that lose workers; others must be exact


@pytest.fixture(autouse=True, scope="module")
def _soon_away() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ZooKeeperStore.__init__, "__defaults__", (SILENCE,))
        yield


@pytest.fixture
def server(zookeeper_server: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    yield zookeeper_server
    if zookeeper_server.process is None:
        zookeeper_server.start()


def start(server: ZooKeeperServer, workers: int = SLOTS, name: str | None = None) -> ForkedCluster:
    return ForkedCluster(workers, name, nodes=NODES, settings={"coordination.store": server.url})


@pytest.fixture(scope="module")
def shared_cluster(zookeeper_server: ZooKeeperServer) -> Iterator[ForkedCluster]:
    with start(zookeeper_server) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: ForkedCluster) -> ForkedCluster:
    """All slots alive, and nothing said yet."""
    for slot in set(range(SLOTS)) - set(shared_cluster.processes):
        shared_cluster.start(slot)
    shared_cluster.master.wait_for_workers(SLOTS, SECONDS)
    for name in list(shared_cluster.master.state.topologies):  # of a test that failed
        shared_cluster.master.kill(name, wait=0)
    assert shared_cluster.master.wait_until(lambda: not shared_cluster.master.state.topologies, SECONDS)
    shared_cluster.master.call(shared_cluster.master.events.clear)
    return shared_cluster


def run(cluster: ForkedCluster, directory: Path, **config: object) -> AuditedStream:
    stream = AuditedStream(cluster.master, directory, **config)
    stream.advance(300)
    return stream


def move(cluster: ForkedCluster, stream: AuditedStream, component: str = "count", index: int = 0) -> None:
    task = TaskId(component, index)

    def order() -> None:
        alive = sorted(cluster.master.state.workers)
        now = alive.index(stream.state.places[task].slot)
        cluster.master.move(stream.name, task, alive[(now + 1) % len(alive)])

    cluster.master.call(order)  # on its thread, or it may be in the middle of placing tasks anew


def reached(cluster: ForkedCluster) -> bool:
    state = cluster.master.state
    return bool(state.workers) and all(worker.revision == state.revision for worker in state.workers.values())


def said(cluster: ForkedCluster, what: str) -> bool:
    return any(what in event["text"] for event in list(cluster.master.events))


def test_tasks_move_and_a_dead_agent_is_replaced(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = run(cluster, tmp_path, **CONFIG)
    for component in ("split", "count", "sink", ACKER):
        move(cluster, stream, component)
        stream.until(lambda: reached(cluster))
    victim = cluster.master.state.agents["node0"]
    cluster.kill(victim)
    move(cluster, stream)
    stream.until(lambda: victim not in cluster.master.state.workers and reached(cluster))
    cluster.start(victim)
    stream.until(lambda: victim in cluster.master.state.workers and reached(cluster))
    stream.advance(300)
    assert not cluster.master.superseded and not said(cluster, "plans wait")
    assert_nothing_lost(stream.finish())


def test_while_it_is_away_the_stream_goes_on_and_plans_wait(server: ZooKeeperServer, cluster: ForkedCluster,
                                                           tmp_path: Path) -> None:
    stream = run(cluster, tmp_path)
    stream.until(lambda: reached(cluster))
    server.stop()
    move(cluster, stream)
    stream.until(lambda: said(cluster, "plans wait"))
    stream.advance(300)
    assert stream.state.losses == 0 and not reached(cluster)
    move(cluster, stream, "split")
    server.start()
    stream.until(lambda: said(cluster, "the coordination store is back") and reached(cluster))
    stream.advance(300)
    assert stream.state.losses == 0
    # Not exact: the nodes may hear of the move further apart than the task that moved stays for what still comes to it.
    assert_nothing_lost(stream.finish())


def test_a_worker_that_dies_while_it_is_away_is_replaced_afterwards(server: ZooKeeperServer, cluster: ForkedCluster,
                                                                   tmp_path: Path) -> None:
    stream = run(cluster, tmp_path, **CONFIG)
    victim = cluster.master.state.agents["node0"]
    server.stop()
    cluster.kill(victim)
    stream.until(lambda: victim not in cluster.master.state.workers)
    server.start()
    stream.until(lambda: reached(cluster))
    stream.advance(300)
    assert_nothing_lost(stream.finish())


def test_all_can_be_stopped_while_it_is_away(server: ZooKeeperServer) -> None:
    threads = set(threading.enumerate())
    with start(server, 2) as cluster:
        directory = Path(cluster.setup().directory())
        server.stop()
        cluster.kill(cluster.master.state.agents["node0"])  # another plan to write, and another agent that looks for it
        assert cluster.master.wait_until(lambda: "node0" not in cluster.master.state.agents, SECONDS)
        left = list(cluster.processes.values())
    assert [process.exitcode for process in left] == [0]
    assert not directory.exists()
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def other_desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Within it a master with a name that is taken on this machine may start, as it could on another one."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield monkeypatch


def test_another_master_takes_over_and_the_first_one_gives_up(server: ZooKeeperServer, tmp_path: Path,
                                                             other_desk: pytest.MonkeyPatch) -> None:
    """It has nothing to plan when that happens, and finds out all the same."""
    name = f"taken-{time.monotonic_ns()}"
    with start(server, 2, name) as first:
        old = run(first, tmp_path / "old")
        old.until(lambda: reached(first))
        with tempfile.TemporaryDirectory() as desk:
            other_desk.setenv("XDG_RUNTIME_DIR", desk)
            with start(server, 2, name) as second:
                assert second.master.state.author > first.master.state.author
                assert first.master.wait_until(lambda: bool(first.master.superseded), SECONDS)
                assert said(first, "another master has taken over")
                for process in first.processes.values():
                    process.join(SECONDS)
                    assert process.exitcode == 0
                for order in (lambda: first.master.submit(graph_of(AuditedWordCount, "more", {"path": str(tmp_path)})),
                              lambda: first.master.pause("audited"),
                              lambda: first.master.move("audited", TaskId("count", 0), 1)):
                    with pytest.raises(NotTheAuthor):
                        order()
                first.start(0)  # as Spark would, had it taken the end for a failure
                first.processes[0].join(SECONDS)
                assert first.processes[0].exitcode == 0
                new = run(second, tmp_path / "new")
                move(second, new)
                new.until(lambda: reached(second))
                new.advance(300)
                assert not second.master.superseded
                assert_exact(new.finish())


def test_workers_of_the_first_master_never_run_a_plan_of_the_second(server: ZooKeeperServer, tmp_path: Path,
                                                                   other_desk: pytest.MonkeyPatch) -> None:
    """Even if nobody stops them, with the same nodes, slots and generations, and the second one's plan in their store."""
    name = f"deaf-{time.monotonic_ns()}"
    with start(server, 2, name) as first:
        other_desk.setattr(first.master, "give_way", lambda error: None)
        old = run(first, tmp_path / "old")
        old.until(lambda: reached(first))
        revision = first.master.state.revision
        with tempfile.TemporaryDirectory() as desk:
            other_desk.setenv("XDG_RUNTIME_DIR", desk)
            with start(server, 2, name) as second:
                new = run(second, tmp_path / "new")
                move(second, new)
                new.until(lambda: reached(second))
                for node in range(NODES):
                    store = PlanStore(node_directory(private_directory(first.setup().directory()), f"node{node}"), writer=False)

                    def there(store: PlanStore = store) -> bool:
                        found = store.newest()
                        return found is not None and found[0] == (second.master.state.author, second.master.state.revision)

                    old.until(there)
                    store.close()
                old.advance(300)
                new.advance(300)
                assert [worker.revision for worker in first.master.state.workers.values()] == [revision] * 2
                assert len(first.master.state.workers) == 2 and old.state.losses == 0
                assert_exact(new.finish())


def test_a_master_whose_name_is_taken_does_not_end_the_one_that_has_it(server: ZooKeeperServer, cluster: ForkedCluster,
                                                                      tmp_path: Path) -> None:
    stream = run(cluster, tmp_path)
    with pytest.raises(AddressInUse):
        start(server, 2, cluster.master.name)
    move(cluster, stream)
    stream.until(lambda: reached(cluster))
    assert not cluster.master.superseded
    stream.advance(300)
    assert_exact(stream.finish())


LONELY = """
import os, sys, threading, time
from millrace.errors import StoreUnreachable
from millrace.master.requests.client import running_clusters
from millrace.master.service import Master
from millrace.runtime.plans.coordination import ZooKeeperStore

ZooKeeperStore.__init__.__defaults__ = (0.5,)

def held():
    files = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
    threads = sorted(thread.name for thread in threading.enumerate())
    return threads, sum(file.startswith("socket:") for file in files), len(files)

def refused(name):
    try:
        Master(name, settings={"coordination.store": sys.argv[1]})
    except StoreUnreachable as error:
        return str(error)

refused("warm")  # what a first master opens for good, such as ZeroMQ's own context
before = held()
said = refused("lonely")
deadline = time.monotonic() + 30
while held() != before and time.monotonic() < deadline:  # ZeroMQ's own threads take their time to end
    time.sleep(0.05)
left = [name for name in running_clusters() if name == "lonely"]
print(said, "| left behind:", left if held() == before else (before, held(), left))
"""


def test_a_master_that_cannot_reach_it_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """In an interpreter of its own: what other tests leave to the garbage collector is not counted."""
    port = free_port()
    command = [sys.executable, "-c", LONELY, f"zookeeper://127.0.0.1:{port}"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    assert re.search(rf"127.0.0.1:{port}.*check that it runs.*left behind: \[\]", said), said
