"""Plans that go through a real ZooKeeper: in normal operation, while it is down, and when another master takes over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from millrace.control.assignment import Stamp
from millrace.errors import AddressInUse, NotTheAuthor
from millrace.model.graph import ACKER, TaskId, graph_of
from millrace.runtime.plans.agent import node_directory
from millrace.runtime.plans.coordination import ZooKeeperStore, _cut, _Published, _znode
from millrace.runtime.plans.plan_store import PlanStore
from millrace.runtime.plans.signed_parts import PartSigner
from millrace.runtime.wire.transport import private_directory
from millrace.workloads.audit import AuditedWordCount
from support.processes.forked import ForkedCluster
from support.servers.ports import free_port
from support.servers.zookeeper import ZooKeeperServer
from support.topologies.audited import SECONDS, UNHURRIED, AuditedStream, assert_exact, assert_nothing_lost, reached

SLOTS, NODES = 3, 2
SILENCE = 2.0  # seconds after which a master takes ZooKeeper to be away, where a test stops it
PATIENT = 20.0  # the same everywhere else: a busy ZooKeeper is not away
CONFIG: dict[str, object] = {"topology.message.timeout.secs": 5.0}  # for streams that lose workers; others must be exact


@pytest.fixture(autouse=True, scope="module")
def _patient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ZooKeeperStore.__init__, "__defaults__", (PATIENT,))
        yield


@pytest.fixture
def soon_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters made in this test soon take ZooKeeper to be away."""
    monkeypatch.setattr(ZooKeeperStore.__init__, "__defaults__", (SILENCE,))


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
    """The cluster with all slots alive, no topologies and no events."""
    for slot in set(range(SLOTS)) - set(shared_cluster.processes):
        shared_cluster.start(slot)
    shared_cluster.master.wait_for_workers(SLOTS, SECONDS)
    for name in list(shared_cluster.master.state.topologies):  # left by a test that failed
        shared_cluster.master.kill(name, wait=0)
    assert shared_cluster.master.wait_until(lambda: not shared_cluster.master.state.topologies, SECONDS)
    shared_cluster.master.call(shared_cluster.master.events.clear)
    return shared_cluster


@pytest.fixture
def own_cluster(server: ZooKeeperServer, soon_away: None) -> Iterator[ForkedCluster]:
    with start(server) as cluster:
        yield cluster


def run(cluster: ForkedCluster, directory: Path, **config: object) -> AuditedStream:
    stream = AuditedStream(cluster.master, directory, **config)
    stream.advance(300)
    return stream


def has_event(cluster: ForkedCluster, what: str) -> bool:
    return any(what in event["text"] for event in list(cluster.master.events))


def test_tasks_move_and_a_dead_agent_is_replaced(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = run(cluster, tmp_path, **CONFIG)
    for component in ("split", "count", "sink", ACKER):
        stream.move_on(component)
        stream.until(lambda: reached(cluster.master))
    victim = cluster.master.state.agents["node0"]
    cluster.kill(victim)
    stream.move_on()
    stream.until(lambda: victim not in cluster.master.state.workers and reached(cluster.master))
    cluster.start(victim)
    stream.until(lambda: victim in cluster.master.state.workers and reached(cluster.master))
    stream.advance(300)
    assert not cluster.master.superseded and not has_event(cluster, "plans cannot be published")
    assert_nothing_lost(stream.finish())


def test_the_stream_continues_and_plans_wait_while_zookeeper_is_down(server: ZooKeeperServer, own_cluster: ForkedCluster,
                                                                     tmp_path: Path) -> None:
    cluster = own_cluster
    stream = run(cluster, tmp_path, **UNHURRIED)
    stream.until(lambda: reached(cluster.master))
    before = {task: stream.state.places[task].slot for task in (TaskId("count", 0), TaskId("split", 0))}
    server.stop()
    stream.move_on()
    stream.until(lambda: has_event(cluster, "plans cannot be published"))
    stream.advance(300)
    assert stream.state.losses == 0 and not reached(cluster.master)
    stream.move_on("split")
    server.start()
    stream.until(lambda: has_event(cluster, "the coordination store is available again") and reached(cluster.master))
    stream.advance(300)
    assert stream.state.losses == 0
    assert all(stream.state.places[task].slot != slot for task, slot in before.items())
    assert_exact(stream.finish())


def test_a_worker_that_dies_while_zookeeper_is_down_is_replaced_later(server: ZooKeeperServer, own_cluster: ForkedCluster,
                                                                      tmp_path: Path) -> None:
    cluster = own_cluster
    stream = run(cluster, tmp_path, **CONFIG)
    victim = cluster.master.state.agents["node0"]
    server.stop()
    cluster.kill(victim)
    stream.until(lambda: victim not in cluster.master.state.workers)
    server.start()
    stream.until(lambda: reached(cluster.master))
    stream.advance(300)
    assert_nothing_lost(stream.finish())


def test_everything_can_be_stopped_while_zookeeper_is_down(server: ZooKeeperServer, soon_away: None) -> None:
    threads = set(threading.enumerate())
    with start(server, 2) as cluster:
        directory = Path(cluster.setup().directory())
        server.stop()
        cluster.kill(cluster.master.state.agents["node0"])  # needs another plan, and another agent to read it
        assert cluster.master.wait_until(lambda: "node0" not in cluster.master.state.agents, SECONDS)
        left = list(cluster.processes.values())
    assert [process.exitcode for process in left] == [0]
    assert not directory.exists()
    for thread in set(threading.enumerate()) - threads:
        thread.join(SECONDS)
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def stranger(server: ZooKeeperServer) -> Iterator[KazooClient]:
    with server.stranger(PATIENT) as client:
        yield client


def test_workers_do_not_follow_a_plan_that_a_stranger_has_written(own_cluster: ForkedCluster, stranger: KazooClient,
                                                                  tmp_path: Path) -> None:
    """The plan in force, with the stamp of a later one: everything in it is right but the signature."""
    cluster = own_cluster
    stream = run(cluster, tmp_path)
    stream.until(lambda: reached(cluster.master))
    forged = Stamp(cluster.master.state.author, cluster.master.state.revision + 1000)
    published = cluster.master.distribution.publisher._last
    assert published is not None
    signer = PartSigner(b"of another run", cluster.master.name)
    root = f"/millrace/{_znode(cluster.master.name)}"
    right, _ = stranger.get(f"{root}/current")
    [piece] = _cut(signer.sign(forged, "node0", zlib.compress(published[1]["node0"])))
    stranger.create(f"{root}/plans/{forged}/node0+0", piece, makepath=True)
    stranger.set(f"{root}/current", _Published(forged, "digest").encode())
    agent = cluster.master.state.agents["node0"]
    stream.until(lambda: cluster.master.connections[agent].counters["agent_errors"] > 0
                 and has_event(cluster, "plans cannot be published"))
    newest = PlanStore(node_directory(Path(cluster.setup().directory()), "node0")).newest()
    assert newest is not None and newest[0] < forged
    stream.advance(300)
    stranger.set(f"{root}/current", right)  # as an operator would
    stream.until(lambda: has_event(cluster, "the coordination store is available again"))
    assert_exact(stream.finish())


@pytest.fixture
def runtime_directory_patch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A patch that sets another runtime directory, in which a second master may use a name that is taken."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield monkeypatch


def test_another_master_takes_over_and_the_first_steps_down(server: ZooKeeperServer, tmp_path: Path,
                                                            runtime_directory_patch: pytest.MonkeyPatch) -> None:
    """The first master notices although it has nothing to plan."""
    name = f"taken-{time.monotonic_ns()}"
    with start(server, 2, name) as first:
        old = run(first, tmp_path / "old")
        old.until(lambda: reached(first.master))
        with tempfile.TemporaryDirectory() as runtime_directory:
            runtime_directory_patch.setenv("XDG_RUNTIME_DIR", runtime_directory)
            with start(server, 2, name) as second:
                assert second.master.state.author > first.master.state.author
                assert first.master.wait_until(lambda: bool(first.master.superseded), SECONDS)
                assert has_event(first, "another master has taken over")
                for process in first.processes.values():
                    process.join(SECONDS)
                    assert process.exitcode == 0
                for order in (lambda: first.master.submit(graph_of(AuditedWordCount, "more", {"path": str(tmp_path)})),
                              lambda: first.master.pause("audited"),
                              lambda: first.master.move("audited", TaskId("count", 0), 1)):
                    with pytest.raises(NotTheAuthor):
                        order()
                first.start(0)  # as Spark would if it took the exit for a failure
                first.processes[0].join(SECONDS)
                assert first.processes[0].exitcode == 0
                new = run(second, tmp_path / "new")
                new.move_on()
                new.until(lambda: reached(second.master))
                new.advance(300)
                assert not second.master.superseded
                assert_exact(new.finish())


def test_workers_of_the_first_master_never_run_a_plan_of_the_second(server: ZooKeeperServer, tmp_path: Path,
                                                                    runtime_directory_patch: pytest.MonkeyPatch) -> None:
    """Even if nothing stops them, with the same nodes, slots and generations, and the second master's plan in their store."""
    name = f"deaf-{time.monotonic_ns()}"
    with start(server, 2, name) as first:
        runtime_directory_patch.setattr(first.master, "give_way", lambda error: None)
        old = run(first, tmp_path / "old")
        old.until(lambda: reached(first.master))
        revision = first.master.state.revision
        with tempfile.TemporaryDirectory() as runtime_directory:
            runtime_directory_patch.setenv("XDG_RUNTIME_DIR", runtime_directory)
            with start(server, 2, name) as second:
                new = run(second, tmp_path / "new")
                new.move_on()
                new.until(lambda: reached(second.master))
                # Their agents refuse it, since another run has signed it. The workers would not run it either.
                old.until(lambda: all(first.master.connections[slot].counters["agent_errors"] for slot in range(2)))
                published = second.master.distribution.publisher._last
                assert published is not None
                for node, part in published[1].items():
                    store = PlanStore(node_directory(private_directory(first.setup().directory()), node))
                    assert store.write(published[0], part)
                old.advance(300)
                new.advance(300)
                assert [worker.revision for worker in first.master.state.workers.values()] == [revision] * 2
                assert len(first.master.state.workers) == 2 and old.state.losses == 0
                assert_exact(new.finish())


def test_a_master_whose_name_is_taken_does_not_disturb_the_running_one(server: ZooKeeperServer, cluster: ForkedCluster,
                                                                       tmp_path: Path) -> None:
    stream = run(cluster, tmp_path)
    with pytest.raises(AddressInUse):
        start(server, 2, cluster.master.name)
    stream.move_on()
    stream.until(lambda: reached(cluster.master))
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

refused("warm")  # opens what stays open, such as ZeroMQ's context
before = held()
message = refused("lonely")
deadline = time.monotonic() + 30
while held() != before and time.monotonic() < deadline:  # ZeroMQ's own threads end later
    time.sleep(0.05)
left = [name for name in running_clusters() if name == "lonely"]
print(message, "| left behind:", left if held() == before else (before, held(), left))
"""


def test_a_master_that_cannot_reach_zookeeper_reports_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Run in a separate interpreter, so that leftovers of other tests are not counted."""
    port = free_port()
    command = [sys.executable, "-c", LONELY, f"zookeeper://127.0.0.1:{port}"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    assert re.search(rf"127.0.0.1:{port}.*check that it is running.*left behind: \[\]", output), output
