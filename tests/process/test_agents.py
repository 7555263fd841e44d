"""The way of a plan to the workers of a node, broken at every step while a stream runs: the next one finishes the job."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.config import HEARTBEAT_TIMEOUT, LEASE
from millrace.control.assignment import Stamp
from millrace.control.events import Distribute
from millrace.model.graph import ACKER, TaskId
from millrace.runtime.plans import agent
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import private_directory
from millrace.runtime.worker.process import WorkerSetup
from millrace.testing.processes import run_worker_on
from support.processes.forked import ForkedCluster, forked
from support.processes.small_disk import mount_small_disk
from support.servers.needed import NotTested
from support.topologies.audited import SECONDS, AuditedStream, assert_exact, assert_nothing_lost

SLOTS, NODES = 4, 2
CONFIG: dict[str, object] = {"topology.message.timeout.secs": 5.0}  # for streams that lose workers; others must be exact


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[ForkedCluster]:
    """Stopped processes keep their lease, and a heartbeat that is late on a busy machine is not a fault."""
    with ForkedCluster(SLOTS, nodes=NODES, settings={LEASE.key: SECONDS, HEARTBEAT_TIMEOUT.key: 5.0}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: ForkedCluster) -> ForkedCluster:
    """All slots alive, whatever the test before has left."""
    shared_cluster.make_whole(SLOTS, SECONDS)
    return shared_cluster


@pytest.fixture
def stream(cluster: ForkedCluster, tmp_path: Path) -> AuditedStream:
    stream = AuditedStream(cluster.master, tmp_path, **CONFIG)
    stream.advance(500)
    return stream


@pytest.fixture
def exact(cluster: ForkedCluster, tmp_path: Path) -> AuditedStream:
    """A stream that loses nobody: on a machine that is slow as well, nothing is sent again for the time it took."""
    stream = AuditedStream(cluster.master, tmp_path)
    stream.advance(500)
    return stream


def agent_of(cluster: ForkedCluster, node: int) -> int:
    return cluster.master.state.agents[f"node{node}"]


def meeting(cluster: ForkedCluster, node: int) -> Path:
    return agent.node_directory(private_directory(cluster.setup().directory()), f"node{node}")


def move(cluster: ForkedCluster, stream: AuditedStream, component: str = "count", index: int = 0) -> int:
    """To the next worker; returns the revision that says so."""
    task = TaskId(component, index)

    def order() -> int:
        alive = sorted(cluster.master.state.workers)
        now = alive.index(stream.state.places[task].slot)
        cluster.master.move(stream.name, task, alive[(now + 1) % len(alive)])
        return cluster.master.state.revision

    return int(cluster.master.call(order))


def reached(cluster: ForkedCluster) -> Callable[[], bool]:
    """Every worker that there is has carried out the newest plan."""
    state = cluster.master.state
    return lambda: bool(state.workers) and all(worker.revision == state.revision for worker in state.workers.values())


def has_reported(cluster: ForkedCluster, slot: int) -> bool:
    return slot in cluster.master.connections and "agent_errors" in cluster.master.connections[slot].counters


def lose_replies(cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent hears anything of the master's from now on."""
    reply = cluster.master.worker_port.reply

    def some(identity: bytes, message: Any) -> None:
        if not isinstance(message, wire.Agency):
            reply(identity, message)

    monkeypatch.setattr(cluster.master.worker_port, "reply", some)


# ---- agents that die ----


def test_another_worker_takes_over_and_brings_the_moves_made_meanwhile(cluster: ForkedCluster, stream: AuditedStream) -> None:
    victim = agent_of(cluster, 0)
    os.kill(cluster.processes[victim].pid, signal.SIGKILL)
    for index, component in enumerate(("split", "count", "sink", ACKER)):
        move(cluster, stream, component, index % 2)
    cluster.kill(victim)  # dead already: collects what is left of it
    stream.until(lambda: victim not in cluster.master.state.workers)
    assert agent_of(cluster, 0) not in (victim, agent_of(cluster, 1))
    move(cluster, stream)
    stream.until(reached(cluster))
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_the_agents_of_both_nodes_at_once(cluster: ForkedCluster, stream: AuditedStream) -> None:
    victims = {agent_of(cluster, 0), agent_of(cluster, 1)}
    for victim in victims:
        os.kill(cluster.processes[victim].pid, signal.SIGKILL)
    for victim in victims:
        cluster.kill(victim)
    move(cluster, stream)
    stream.until(lambda: not victims & set(cluster.master.state.workers))
    stream.until(reached(cluster))
    assert not victims & set(cluster.master.state.agents.values())
    for victim in victims:
        cluster.start(victim)
    stream.until(lambda: victims <= set(cluster.master.state.workers))
    move(cluster, stream)
    stream.until(reached(cluster))
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_a_node_that_loses_all_its_workers_begins_again(cluster: ForkedCluster, stream: AuditedStream) -> None:
    victims = [slot for slot in range(SLOTS) if slot % NODES == 1]
    for victim in victims:
        cluster.kill(victim)
    stream.until(lambda: "node1" not in cluster.master.state.agents)
    move(cluster, stream)
    stream.until(reached(cluster))
    for victim in reversed(victims):
        cluster.start(victim)
    stream.until(lambda: set(victims) <= set(cluster.master.state.workers))
    stream.until(reached(cluster))
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_an_agent_that_stands_still_is_replaced_and_comes_back_as_a_worker_like_others(cluster: ForkedCluster,
                                                                                      stream: AuditedStream) -> None:
    victim = agent_of(cluster, 0)
    pid = cluster.processes[victim].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        move(cluster, stream)
        stream.until(lambda: victim not in cluster.master.state.workers)
        move(cluster, stream, "split")
        stream.until(reached(cluster))
    finally:
        os.kill(pid, signal.SIGCONT)
    stream.until(lambda: victim in cluster.master.state.workers)
    assert agent_of(cluster, 0) != victim
    assert cluster.master.connections[victim].hello.pid == pid
    stream.until(lambda: agent.news_path(meeting(cluster, 0)).exists())  # it took that with it when it found out
    move(cluster, stream)
    stream.until(reached(cluster))
    stream.advance(500)
    assert_nothing_lost(stream.finish(), ahead=True)


class Rigged(ForkedCluster):
    """Workers whose agents are changed by a function before they start."""

    def __init__(self, rig: Callable[..., None], *arguments: object, workers: int = SLOTS, **options: Any) -> None:
        self._rig, self._arguments = rig, arguments
        super().__init__(workers, nodes=NODES, **options)

    def start(self, slot: int) -> None:
        self.processes[slot] = forked(run_rigged, self._rig, self._arguments, self.setup(), slot, f"node{slot % NODES}")


def run_rigged(rig: Callable[..., None], arguments: tuple[object, ...], setup: WorkerSetup, slot: int, node: str) -> str:
    rig(*arguments)
    return run_worker_on(setup, slot, node, False)


def dies_before_writing(mark: Path) -> None:
    """The agent that finds the mark takes it away and dies, with the plan in its hands."""
    write = agent.PlanStore.write

    def instead(store: agent.PlanStore, stamp: Stamp, part: bytes) -> bool:
        with contextlib.suppress(FileNotFoundError):
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return write(store, stamp, part)

    agent.PlanStore.write = instead  # type: ignore[method-assign]


def dies_after_writing(mark: Path) -> None:
    """The same, but the plan is written, and nobody is told."""
    write = agent.PlanStore.write

    def instead(store: agent.PlanStore, stamp: Stamp, part: bytes) -> bool:
        written = write(store, stamp, part)
        with contextlib.suppress(FileNotFoundError):
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    agent.PlanStore.write = instead  # type: ignore[method-assign]


@pytest.mark.parametrize("rig", [dies_before_writing, dies_after_writing])
def test_an_agent_that_dies_with_the_plan_in_its_hands(tmp_path: Path, rig: Callable[..., None]) -> None:
    mark = tmp_path / "mark"
    with Rigged(rig, mark) as cluster:
        stream = AuditedStream(cluster.master, tmp_path / "audit", **CONFIG)
        stream.advance(300)
        agents = set(cluster.master.state.agents.values())
        mark.touch()
        wanted = move(cluster, stream)
        stream.until(lambda: len(cluster.master.state.workers) == SLOTS - 1)
        (victim,) = set(range(SLOTS)) - set(cluster.master.state.workers)
        assert victim in agents and not mark.exists()
        stream.until(reached(cluster))
        assert cluster.master.state.revision > wanted
        stream.advance(300)
        assert_nothing_lost(stream.finish())


# ---- what gets lost on the way ----


def test_without_pushes_the_agents_own_looks_bring_the_plan(cluster: ForkedCluster, stream: AuditedStream,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    master = cluster.master

    def only_publish(command: Distribute) -> None:
        parts = {node: wire.encode(part) for node, part in command.parts.items()}
        master.distribution.publisher.publish(command.assignment.stamp, parts)

    monkeypatch.setattr(master.distribution, "distribute", only_publish)
    move(cluster, stream)
    stream.until(reached(cluster))
    victim = agent_of(cluster, 1)
    cluster.kill(victim)
    stream.until(lambda: victim not in cluster.master.state.workers)
    stream.until(reached(cluster))  # the next agent finds out that it is the one by asking
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def says_nothing() -> None:
    """Plans are written and not announced."""

    def write_only(self: agent.Agent, stamp: Stamp, part: bytes) -> None:
        if self._store is not None:
            self._store.write(stamp, part)

    agent.Agent._write = write_only  # type: ignore[method-assign]


def test_without_announcements_the_workers_own_looks_find_the_plan(tmp_path: Path) -> None:
    with Rigged(says_nothing, workers=3) as cluster:
        stream = AuditedStream(cluster.master, tmp_path)
        move(cluster, stream)
        stream.until(reached(cluster))
        stream.advance(300)
        assert_exact(stream.finish())


def test_an_announcements_socket_whose_file_is_gone_is_put_back(cluster: ForkedCluster, stream: AuditedStream) -> None:
    path = agent.news_path(meeting(cluster, 0))
    path.unlink()
    stream.until(path.exists)
    slot = next(slot for slot in range(0, SLOTS, NODES) if slot != agent_of(cluster, 0))
    cluster.kill(slot)
    stream.until(lambda: slot not in cluster.master.state.workers)
    cluster.start(slot)
    stream.until(lambda: slot in cluster.master.state.workers)
    move(cluster, stream)
    stream.until(reached(cluster))
    stream.advance(300)
    assert_nothing_lost(stream.finish())


def test_a_worker_that_was_started_again_does_nothing_about_plans_for_the_one_before(
        cluster: ForkedCluster, stream: AuditedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.until(reached(cluster))
    slot = next(slot for slot in range(SLOTS) if slot not in cluster.master.state.agents.values())
    with monkeypatch.context() as patch:
        lose_replies(cluster, patch)  # the plan store of the node stays as it is, with the dead worker in it
        cluster.kill(slot)
        stream.until(lambda: slot not in cluster.master.state.workers)
        cluster.start(slot)
        stream.until(lambda: has_reported(cluster, slot))
        assert cluster.master.state.workers[slot].revision == 0
        assert slot in stream.slots(), "its tasks are meant to go back there"
        tasks = [task for task in stream.state.places if stream.state.places[task].slot == slot]
        assert stream.state.starting[slot] == 0, f"it has begun {tasks}, whose plan it cannot know"
    stream.until(reached(cluster))
    stream.advance(500)
    assert_nothing_lost(stream.finish())


# ---- the disk ----


def cut(path: Path) -> None:
    os.truncate(path, 0)


def cut_in_the_middle(path: Path) -> None:
    os.truncate(path, 8192)


def replace_with_noise(path: Path) -> None:
    other = path.with_name("noise")
    other.write_bytes(random.Random(1).randbytes(1 << 20))
    other.rename(path)


def take_away(path: Path) -> None:
    path.unlink()


def garble_records(path: Path) -> None:
    """Every page but the two that LMDB begins with, which has the records' bytes wrong and its own structure right."""
    with path.open("r+b") as file:
        file.seek(2 * 4096)
        pages = file.read(64 * 4096)
        for number in range(0, len(pages), 4096):
            if any(pages[number:number + 4096]):
                file.seek(2 * 4096 + number + 3000)
                file.write(b"\x55" * 64)


def test_a_damaged_plan_store_is_in_order_with_the_next_plan(cluster: ForkedCluster, exact: AuditedStream) -> None:
    exact.until(reached(cluster))
    for damage in (cut, cut_in_the_middle, replace_with_noise, take_away, garble_records):
        for node in range(NODES):
            damage(meeting(cluster, node) / "data.mdb")
        move(cluster, exact)
        exact.until(reached(cluster))
        exact.advance(300)
        assert exact.state.losses == 0, damage.__name__
    assert_exact(exact.finish())


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 1 MB, on which this process and its children keep what is temporary; `tmp_path` is elsewhere."""
    directory = Path(tempfile.mkdtemp(prefix="small-"))
    try:
        mount_small_disk(directory, "size=1m,mode=0700")
    except NotTested:
        directory.rmdir()
        raise
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


def agent_errors(cluster: ForkedCluster) -> int:
    return sum(worker["counters"].get("agent_errors", 0) for worker in cluster.master.status()["workers"])


def fill(file: Path) -> None:
    size = 64 << 10
    with file.open("ab", buffering=0) as out:
        while size:
            try:
                out.write(b"\0" * size)
            except OSError:
                size //= 2


def test_a_full_disk_holds_plans_up_and_ends_nobody(small_disk: Path, tmp_path: Path) -> None:
    with ForkedCluster(3, nodes=NODES, settings={"agent.poll.secs": 0.1}) as cluster:
        assert small_disk in Path(cluster.setup().directory()).parents
        stream = AuditedStream(cluster.master, tmp_path, **CONFIG)
        stream.advance(300)
        assert agent_errors(cluster) == 0
        fill(small_disk / "filler")
        for _ in range(20):  # pages that are in use no longer are written again: the first plans may still find room
            move(cluster, stream)
            stream.until(lambda: reached(cluster)() or agent_errors(cluster) > 0)
            if agent_errors(cluster):
                break
        assert agent_errors(cluster) > 0 and not reached(cluster)()
        stream.advance(300)
        assert stream.state.losses == 0 and len(cluster.master.state.workers) == 3
        cluster.kill(2)
        cluster.start(2)
        stream.until(lambda: stream.state.losses == 1 and has_reported(cluster, 2))
        assert len(cluster.master.state.workers) == 3
        (small_disk / "filler").unlink()
        stream.until(reached(cluster))
        stream.advance(300)
        assert_nothing_lost(stream.finish())
    assert list(small_disk.glob("millrace-????????????")) == []


# ---- more of everything ----


def test_two_topologies(cluster: ForkedCluster, exact: AuditedStream, tmp_path: Path) -> None:
    other = AuditedStream(cluster.master, tmp_path / "other", "other", **CONFIG)
    for turn in range(4):
        move(cluster, exact, "count", turn % 2)
        move(cluster, other, "split", turn % 2)
    exact.until(reached(cluster))
    exact.advance(300)
    assert_exact(exact.finish())
    victim = agent_of(cluster, 0)
    cluster.kill(victim)
    move(cluster, other)
    other.until(lambda: victim not in cluster.master.state.workers)
    other.until(reached(cluster))
    other.advance(300)
    assert_nothing_lost(other.finish())


def test_a_hundred_moves_as_fast_as_they_can_be_asked_for(cluster: ForkedCluster, stream: AuditedStream) -> None:
    """Most plans are skipped on the way; tasks come back before anyone knew that they were gone."""
    choice = random.Random(1)
    tasks = sorted(stream.state.places)
    before = cluster.master.state.revision
    for _ in range(100):
        task = choice.choice(tasks)
        move(cluster, stream, task.component, task.index)
    assert cluster.master.state.revision == before + 100
    stream.until(reached(cluster))
    stream.advance(500)
    assert stream.state.losses == 0
    assert_nothing_lost(stream.finish())


def test_ackers_that_go_and_come_back_unnoticed_forget_nothing(tmp_path: Path) -> None:
    """Nobody sees the plan in between, and nothing is sent again though the timeout is far away."""
    with ForkedCluster(3, nodes=NODES) as cluster:
        stream = AuditedStream(cluster.master, tmp_path, **{"topology.message.timeout.secs": 600.0})
        stream.advance(300)
        ackers = [task for task in stream.state.places if task.component == ACKER]

        def there_and_back() -> None:
            for acker in ackers:
                slot = stream.state.places[acker].slot
                cluster.master.move(stream.name, acker, (slot + 1) % 3)
                cluster.master.move(stream.name, acker, slot)

        for _ in range(5):
            cluster.master.call(there_and_back)
            stream.until(reached(cluster))
        stream.advance(300)
        assert_exact(stream.finish())


def test_nothing_of_the_cluster_is_left_on_the_disk(tmp_path: Path) -> None:
    with ForkedCluster(3, nodes=NODES) as cluster:
        directory = Path(cluster.setup().directory())
        stream = AuditedStream(cluster.master, tmp_path, **CONFIG)
        cluster.kill(agent_of(cluster, 0))
        stream.until(lambda: len(cluster.master.state.workers) == 2 and reached(cluster)())
        assert {path.name for path in directory.glob("node-*")} == {meeting(cluster, node).name for node in range(NODES)}
    assert not directory.exists()
