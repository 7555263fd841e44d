"""Faults at every step between a plan and the workers of a node, while a stream runs: the next agent or plan recovers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest

from millrace.config import LEASE
from millrace.control.assignment import Stamp
from millrace.control.events import Distribute
from millrace.errors import TopologyError
from millrace.model.graph import ACKER, TaskId
from millrace.runtime.plans import agent, plan_store
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import private_directory
from support.processes.ending import presumed_dead
from support.processes.forked import ForkedCluster
from support.processes.rigged import RiggedCluster
from support.processes.small_disk import mount_small_disk
from support.servers.needed import NotTested
from support.topologies.audited import SECONDS, UNHURRIED, AuditedStream, assert_exact, assert_nothing_lost, reached

SLOTS, NODES = 4, 2
CONFIG: dict[str, object] = {"topology.message.timeout.secs": 5.0}  # for streams that lose workers; others must be exact


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[ForkedCluster]:
    """A cluster with long leases for stopped processes."""
    with ForkedCluster(SLOTS, nodes=NODES, settings={LEASE.key: SECONDS}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: ForkedCluster) -> ForkedCluster:
    """The cluster with all slots alive."""
    shared_cluster.make_whole(SLOTS, SECONDS)
    return shared_cluster


@pytest.fixture
def stream(cluster: ForkedCluster, tmp_path: Path) -> AuditedStream:
    stream = AuditedStream(cluster.master, tmp_path, **CONFIG)
    stream.advance(500)
    return stream


@pytest.fixture
def exact(cluster: ForkedCluster, tmp_path: Path) -> AuditedStream:
    """A stream for tests that lose no worker: its timeout is long, so even a slow machine causes no replay."""
    stream = AuditedStream(cluster.master, tmp_path, **UNHURRIED)
    stream.advance(500)
    return stream


def agent_of(cluster: ForkedCluster, node: int) -> int:
    return cluster.master.state.agents[f"node{node}"]


def plan_directory(cluster: ForkedCluster, node: int) -> Path:
    return agent.node_directory(private_directory(cluster.setup().directory()), f"node{node}")


def has_reported(cluster: ForkedCluster, slot: int) -> bool:
    return slot in cluster.master.connections and "agent_errors" in cluster.master.connections[slot].counters


def lose_replies(cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop all messages from the master to agents."""
    reply = cluster.master.worker_port.reply

    def some(identity: bytes, message: Any) -> None:
        if not isinstance(message, wire.Agency):
            reply(identity, message)

    monkeypatch.setattr(cluster.master.worker_port, "reply", some)


# ---- agent failures ----


def test_another_worker_becomes_agent_and_delivers_the_pending_moves(cluster: ForkedCluster, stream: AuditedStream) -> None:
    victim = agent_of(cluster, 0)
    os.kill(cluster.processes[victim].pid, signal.SIGKILL)
    for index, component in enumerate(("split", "count", "sink", ACKER)):
        stream.move_on(component, index % 2)
    cluster.kill(victim)  # already dead: reaps the process
    stream.until(lambda: victim not in cluster.master.state.workers)
    assert agent_of(cluster, 0) not in (victim, agent_of(cluster, 1))
    stream.move_on()
    stream.until(lambda: reached(cluster.master))
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_the_agents_of_both_nodes_at_once(cluster: ForkedCluster, stream: AuditedStream) -> None:
    victims = {agent_of(cluster, 0), agent_of(cluster, 1)}
    for victim in victims:
        os.kill(cluster.processes[victim].pid, signal.SIGKILL)
    for victim in victims:
        cluster.kill(victim)
    stream.move_on()
    stream.until(lambda: not victims & set(cluster.master.state.workers))
    stream.until(lambda: reached(cluster.master))
    assert not victims & set(cluster.master.state.agents.values())
    for victim in victims:
        cluster.start(victim)
    stream.until(lambda: victims <= set(cluster.master.state.workers))
    stream.move_on()
    stream.until(lambda: reached(cluster.master))
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def test_a_node_that_loses_all_its_workers_recovers(cluster: ForkedCluster, stream: AuditedStream) -> None:
    victims = [slot for slot in range(SLOTS) if slot % NODES == 1]
    for victim in victims:
        cluster.kill(victim)
    stream.until(lambda: "node1" not in cluster.master.state.agents)
    stream.move_on()
    stream.until(lambda: reached(cluster.master))
    for victim in reversed(victims):
        cluster.start(victim)
    stream.until(lambda: set(victims) <= set(cluster.master.state.workers))
    stream.until(lambda: reached(cluster.master))
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def dies_before_writing(mark: Path) -> None:
    """Kill the agent that finds the mark before it writes the plan; the mark is removed."""
    write = agent.PlanStore.write

    def instead(store: agent.PlanStore, stamp: Stamp, part: bytes) -> bool:
        with contextlib.suppress(FileNotFoundError):
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return write(store, stamp, part)

    agent.PlanStore.write = instead  # type: ignore[method-assign]


def dies_after_writing(mark: Path) -> None:
    """Kill the agent that finds the mark after it has written the plan and before it announces it."""
    write = agent.PlanStore.write

    def instead(store: agent.PlanStore, stamp: Stamp, part: bytes) -> bool:
        written = write(store, stamp, part)
        with contextlib.suppress(FileNotFoundError):
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    agent.PlanStore.write = instead  # type: ignore[method-assign]


def stops_while_writing(mark: Path) -> None:
    """Stop the agent that finds the mark in the middle of writing a plan; the mark gets its process id."""
    checksum = plan_store._checksum

    def instead(stamp: Stamp, part: bytes) -> int:
        if sys._getframe(1).f_code.co_name == "_add" and mark.exists():
            mark.rename(mark.with_name(str(os.getpid())))
            os.kill(os.getpid(), signal.SIGSTOP)
        return checksum(stamp, part)

    plan_store._checksum = instead


def test_an_agent_that_is_stopped_while_it_writes_is_replaced_and_returns_as_a_plain_worker(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with RiggedCluster(SLOTS, NODES, stops_while_writing, mark, settings={LEASE.key: SECONDS}) as cluster:
        stream = AuditedStream(cluster.master, tmp_path / "audit", **CONFIG)
        stream.advance(500)
        mark.touch()
        stream.move_on()
        pids = {slot: process.pid for slot, process in cluster.processes.items()}
        stream.until(lambda: any(mark.with_name(str(pid)).exists() for pid in pids.values()))
        (victim,) = [slot for slot, pid in pids.items() if mark.with_name(str(pid)).exists()]
        stream.until(presumed_dead(cluster.master, victim))
        pid = pids[victim]
        try:
            stream.move_on("split")
            stream.until(lambda: reached(cluster.master))
        finally:
            os.kill(pid, signal.SIGCONT)
        stream.until(lambda: victim in cluster.master.state.workers)
        assert victim not in cluster.master.state.agents.values()
        assert cluster.master.connections[victim].hello.pid == pid
        # The old agent removed it when it was fenced.
        stream.until(lambda: agent.news_path(plan_directory(cluster, victim % NODES)).exists())
        stream.move_on()
        stream.until(lambda: reached(cluster.master))
        stream.advance(500)
        assert_nothing_lost(stream.finish(), ahead=True)


@pytest.mark.parametrize("rig", [dies_before_writing, dies_after_writing])
def test_an_agent_that_dies_while_it_writes_a_plan(tmp_path: Path, rig: Callable[..., None]) -> None:
    mark = tmp_path / "mark"
    with RiggedCluster(SLOTS, NODES, rig, mark) as cluster:
        stream = AuditedStream(cluster.master, tmp_path / "audit", **CONFIG)
        stream.advance(300)
        agents = set(cluster.master.state.agents.values())
        mark.touch()
        wanted = stream.move_on()
        stream.until(lambda: len(cluster.master.state.workers) == SLOTS - 1)
        (victim,) = set(range(SLOTS)) - set(cluster.master.state.workers)
        assert victim in agents and not mark.exists()
        stream.until(lambda: reached(cluster.master))
        assert cluster.master.state.revision > wanted
        stream.advance(300)
        assert_nothing_lost(stream.finish())


# ---- lost messages ----


def only_publish(cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the master push no plans."""

    def publish(command: Distribute) -> None:
        parts = {node: wire.encode(part) for node, part in command.parts.items()}
        cluster.master.distribution.publisher.publish(command.assignment.stamp, parts)

    monkeypatch.setattr(cluster.master.distribution, "distribute", publish)


def test_agents_poll_for_plans_that_are_not_pushed(cluster: ForkedCluster, stream: AuditedStream,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    only_publish(cluster, monkeypatch)
    stream.move_on()
    stream.until(lambda: reached(cluster.master))
    victim = agent_of(cluster, 1)
    cluster.kill(victim)
    stream.until(lambda: victim not in cluster.master.state.workers)
    stream.until(lambda: reached(cluster.master))  # the next agent learns of its role by polling
    stream.advance(500)
    assert_nothing_lost(stream.finish())


def write_without_announcing() -> None:
    """Make agents write plans without announcing them."""

    def write_only(self: agent.Agent, stamp: Stamp, part: bytes) -> None:
        if self._store is not None:
            self._store.write(stamp, part)

    agent.Agent._write = write_only  # type: ignore[method-assign]


def test_workers_poll_for_plans_that_are_not_announced(tmp_path: Path) -> None:
    with RiggedCluster(3, NODES, write_without_announcing) as cluster:
        stream = AuditedStream(cluster.master, tmp_path, **UNHURRIED)
        stream.move_on()
        stream.until(lambda: reached(cluster.master))
        stream.advance(300)
        assert_exact(stream.finish())


def test_the_periods_of_polls_change_while_topologies_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans reach the workers by polls only; by the settings, these come once an hour."""
    hourly = {"agent.poll.secs": 3600.0, "worker.poll.secs": 3600.0, "history.url": "none"}
    with RiggedCluster(2, 1, write_without_announcing, settings=hourly) as cluster:
        only_publish(cluster, monkeypatch)
        answer = cluster.master.set_scheduler("off", {}, {"agent_poll": 0.1, "worker_poll": 0.05})
        assert (answer["policy"]["agent_poll"], answer["policy"]["worker_poll"]) == (0.1, 0.05)
        stream = AuditedStream(cluster.master, tmp_path, **CONFIG)
        stream.advance(300)
        cluster.start(2)
        stream.until(lambda: 2 in cluster.master.state.workers)
        for index in range(2):
            stream.move_on("count", index)
        stream.until(lambda: reached(cluster.master))
        stream.advance(300)
        assert_nothing_lost(stream.finish())


def test_a_deleted_announcement_socket_is_recreated(cluster: ForkedCluster, stream: AuditedStream) -> None:
    path = agent.news_path(plan_directory(cluster, 0))
    path.unlink()
    stream.until(path.exists)
    slot = next(slot for slot in range(0, SLOTS, NODES) if slot != agent_of(cluster, 0))
    cluster.kill(slot)
    stream.until(lambda: slot not in cluster.master.state.workers)
    cluster.start(slot)
    stream.until(lambda: slot in cluster.master.state.workers)
    stream.move_on()
    stream.until(lambda: reached(cluster.master))
    stream.advance(300)
    assert_nothing_lost(stream.finish())


def test_a_restarted_worker_ignores_plans_for_its_predecessor(
        cluster: ForkedCluster, stream: AuditedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.until(lambda: reached(cluster.master))
    slot = next(slot for slot in range(SLOTS) if slot not in cluster.master.state.agents.values())
    with monkeypatch.context() as patch:
        lose_replies(cluster, patch)  # the node's plan store keeps the plan with the dead worker
        cluster.kill(slot)
        stream.until(lambda: slot not in cluster.master.state.workers)
        cluster.start(slot)
        stream.until(lambda: has_reported(cluster, slot))
        assert cluster.master.state.workers[slot].revision == 0
        handover = stream.state.handover
        returning = {task for task, wanted in handover.waiting.items() if wanted.slot == slot} | {
            moving.task for moving in handover.batch if moving.new.slot == slot}
        assert returning, "its tasks should return there"
        assert stream.state.starting[slot] == 0, f"it has started {returning}, whose plan it cannot know"
        handed = {task for task, place in dict(stream.state.places).items() if place.slot == slot and task.component != ACKER}
        assert not handed, "only ackers return without a hand-over"
    stream.until(lambda: reached(cluster.master))
    assert {stream.state.places[task].slot for task in returning} == {slot}
    stream.advance(500)
    assert_nothing_lost(stream.finish())


# ---- the disk ----


def cut(path: Path) -> None:
    os.truncate(path, 0)


def cut_in_the_middle(path: Path) -> None:
    os.truncate(path, 100)


def replace_with_noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(1 << 20))


def delete(path: Path) -> None:
    path.unlink()


def test_a_damaged_plan_store_is_repaired_by_the_next_plan(cluster: ForkedCluster, exact: AuditedStream) -> None:
    for damage in (cut, cut_in_the_middle, replace_with_noise, delete):
        exact.until(lambda: reached(cluster.master))
        for node in range(NODES):
            for path in plan_directory(cluster, node).glob("plan-*"):
                with contextlib.suppress(FileNotFoundError):  # an agent has noticed, and has just finished writing this one
                    damage(path)
        exact.move_on()
        exact.until(lambda: reached(cluster.master))
        exact.advance(300)
        assert exact.state.losses == 0, damage.__name__
    assert_exact(exact.finish())


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 1 MB for the temporary files of this process and its children; `tmp_path` is elsewhere."""
    directory = Path(tempfile.mkdtemp(prefix="small-"))
    try:
        mount_small_disk(directory, "size=1m,mode=0700")
    except NotTested:
        directory.rmdir()
        raise
    ensure_running()  # its socket stays where it is made, and must outlive this file system
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


def test_a_full_disk_delays_plans_and_kills_no_worker(small_disk: Path, tmp_path: Path) -> None:
    with ForkedCluster(3, nodes=NODES, settings={"agent.poll.secs": 0.1}) as cluster:
        assert small_disk in Path(cluster.setup().directory()).parents
        stream = AuditedStream(cluster.master, tmp_path, **CONFIG)
        stream.advance(300)
        assert agent_errors(cluster) == 0
        fill(small_disk / "filler")
        for _ in range(20):  # the first plans may still fit into freed pages
            stream.move_on()
            stream.until(lambda: reached(cluster.master) or agent_errors(cluster) > 0)
            if agent_errors(cluster):
                break
        assert agent_errors(cluster) > 0 and not reached(cluster.master)
        stream.advance(300)
        assert stream.state.losses == 0 and len(cluster.master.state.workers) == 3
        cluster.kill(2)
        cluster.start(2)
        stream.until(lambda: stream.state.losses == 1 and has_reported(cluster, 2))
        assert len(cluster.master.state.workers) == 3
        (small_disk / "filler").unlink()
        stream.until(lambda: reached(cluster.master))
        stream.advance(300)
        assert_nothing_lost(stream.finish())
    assert list(small_disk.glob("millrace-????????????")) == []


# ---- several topologies, many moves ----


def test_two_topologies(cluster: ForkedCluster, exact: AuditedStream, tmp_path: Path) -> None:
    other = AuditedStream(cluster.master, tmp_path / "other", "other", **CONFIG)
    for turn in range(4):
        exact.move_on("count", turn % 2)
        other.move_on("split", turn % 2)
        exact.until(lambda: exact.state.handover.at_rest and other.state.handover.at_rest)
    exact.advance(300)
    assert_exact(exact.finish())
    victim = agent_of(cluster, 0)
    cluster.kill(victim)
    other.move_on()
    other.until(lambda: victim not in cluster.master.state.workers)
    other.until(lambda: reached(cluster.master))
    other.advance(300)
    assert_nothing_lost(other.finish())


def test_a_hundred_moves_in_quick_succession(cluster: ForkedCluster, exact: AuditedStream) -> None:
    """Moves of tasks that are being moved are refused, others wait. Some ackers return before any worker learned that they had
    moved."""
    choice = random.Random(1)
    tasks = sorted(exact.state.places)
    wanted: dict[TaskId, int] = {}
    for _ in range(100):
        task, slot = choice.choice(tasks), choice.randrange(SLOTS)
        try:
            cluster.master.move(exact.name, task, slot)
            wanted[task] = slot
        except TopologyError as error:
            assert f"{task} is being moved" in str(error)
    exact.until(lambda: reached(cluster.master))
    assert {task: exact.state.places[task].slot for task in wanted} == wanted
    exact.advance(500)
    assert exact.state.losses == 0
    assert_exact(exact.finish())


def test_ackers_that_move_away_and_back_unnoticed_forget_nothing(tmp_path: Path) -> None:
    """No worker sees the plan in between; with the long timeout, a forgotten tuple would stall the stream."""
    with ForkedCluster(3, nodes=NODES) as cluster:
        stream = AuditedStream(cluster.master, tmp_path, **{"topology.message.timeout.secs": 600.0})
        stream.advance(300)
        ackers = [task for task in stream.state.places if task.component == ACKER]

        def move_away_and_back() -> None:
            for acker in ackers:
                slot = stream.state.places[acker].slot
                cluster.master.move(stream.name, acker, (slot + 1) % 3)
                cluster.master.move(stream.name, acker, slot)

        for _ in range(5):
            cluster.master.call(move_away_and_back)
            stream.until(lambda: reached(cluster.master))
        stream.advance(300)
        assert_exact(stream.finish())


def test_the_cluster_leaves_no_files(tmp_path: Path) -> None:
    with ForkedCluster(3, nodes=NODES) as cluster:
        directory = Path(cluster.setup().directory())
        stream = AuditedStream(cluster.master, tmp_path, **CONFIG)
        cluster.kill(agent_of(cluster, 0))
        stream.until(lambda: len(cluster.master.state.workers) == 2 and reached(cluster.master))
        assert {path.name for path in directory.glob("node-*")} == {plan_directory(cluster, node).name for node in range(NODES)}
    assert not directory.exists()
