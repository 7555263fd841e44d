"""Workers whose master ends, is killed, or stops for a while."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from millrace.master.requests.server import request_directory
from millrace.master.service import Master
from millrace.model.graph import graph_of
from millrace.runtime.worker.process import WorkerSetup, run_worker
from support.processes.ending import presumed_dead
from support.processes.forked import ForkedCluster, forked
from support.topologies.audited import SECONDS, AuditedStream, assert_exact, assert_nothing_lost
from support.topologies.stuck import Stuck

WORKERS = 3
ENDED_ITSELF = 3  # exit code
SHORT_LEASE = 5.0  # seconds: a busy master is not silent for so long


def serve(pipe: Connection, directory: str, settings: dict[str, Any]) -> None:
    """Run a master with an audited stream, and answer the test's requests from the pipe."""
    master = Master(f"gone-{os.getpid()}", settings=settings)
    master.start()
    pipe.send(master.setup())
    master.wait_for_workers(WORKERS, SECONDS)
    stream = AuditedStream(master, Path(directory))
    while (question := pipe.recv()) != "end":
        if question == "advance":
            stream.advance(500)
            pipe.send(stream.state.losses)
        else:
            pipe.send(stream.finish())
    master.stop()


class MasterProcess:
    """The master's process. Workers are not its children, so only the lease can end them."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = forked(serve, theirs, str(directory), settings)
        self.setup: WorkerSetup = self.pipe.recv()
        self.workers = [forked(run_worker, self.setup, slot) for slot in range(WORKERS)]

    def ask(self, question: str) -> Any:
        self.pipe.send(question)
        assert self.pipe.poll(2 * SECONDS), f"the master's process did not answer to {question!r}"
        return self.pipe.recv()

    def exit_codes(self) -> list[int | None]:
        for worker in self.workers:
            worker.join(SECONDS)
        return [worker.exitcode for worker in self.workers]

    def close(self) -> None:
        for process in [self.process, *self.workers]:
            if process.is_alive():
                process.kill()
            process.join()
        shutil.rmtree(self.setup.directory(), ignore_errors=True)  # left by a killed master
        for path in request_directory().glob(f"gone-{self.process.pid}.*"):
            path.unlink()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[MasterProcess]:
    master = MasterProcess(tmp_path, {"worker.lease.secs": SHORT_LEASE})
    try:
        yield master
    finally:
        master.close()


def test_workers_end_by_themselves_when_the_master_is_killed(apart: MasterProcess) -> None:
    assert apart.ask("advance") == 0
    apart.process.kill()
    assert apart.exit_codes() == [ENDED_ITSELF] * WORKERS


def test_the_next_run_sweeps_what_a_killed_one_has_left(apart: MasterProcess) -> None:
    assert apart.ask("advance") == 0
    left = Path(apart.setup.directory())
    files = [request_directory() / f"gone-{apart.process.pid}{suffix}" for suffix in (".lock", ".ipc")]
    with ForkedCluster(1):
        assert all(path.exists() for path in (left, *files)), "nothing of a run that lives is swept"
    apart.process.kill()
    apart.exit_codes()
    assert all(path.exists() for path in (left, *files)), "a killed process cannot clean up"
    with ForkedCluster(1):
        assert not any(path.exists() for path in (left, *files))


def test_a_stopped_master_keeps_its_workers(tmp_path: Path) -> None:
    """A master that swaps, or is stopped with Ctrl-Z, must not presume its healthy workers dead."""
    timeout = 4.0  # seconds
    master = MasterProcess(tmp_path, {"worker.lease.secs": SECONDS, "worker.heartbeat.timeout.secs": timeout})
    try:
        assert master.ask("advance") == 0
        for _ in range(2):
            os.kill(master.process.pid, signal.SIGSTOP)
            master.workers[0].join(timeout + 0.3)  # length of the pause; no worker may end during it
            os.kill(master.process.pid, signal.SIGCONT)
            assert master.ask("advance") == 0, "no worker may be lost"
        assert_exact(master.ask("finish"))
        master.pipe.send("end")
        assert master.exit_codes() == [0] * WORKERS
    finally:
        master.close()


LEFTOVERS = f"leftovers-{os.getpid()}"


def leftovers(setup: WorkerSetup) -> list[Path]:
    return [path for path in [Path(setup.directory()), *request_directory().glob(f"{LEFTOVERS}*")] if path.exists()]


def test_an_orderly_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    with ForkedCluster(WORKERS, name=LEFTOVERS) as cluster:
        stream = AuditedStream(cluster.master, tmp_path)
        stream.advance(100)
        cluster.kill(1)  # leaves its socket's file for the master to remove
        stream.advance(500)
        setup, processes = cluster.setup(), list(cluster.processes.values())
        assert len(leftovers(setup)) == 3
    assert leftovers(setup) == []
    assert [process.exitcode for process in processes] == [0, 0]


def test_the_last_worker_on_another_host_cleans_up_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another directory for temporary files stands in for another host: the master cannot clean it up."""
    with tempfile.TemporaryDirectory(prefix="host") as other, ForkedCluster(0) as cluster:
        monkeypatch.setenv("TMPDIR", other)
        for slot in range(2):
            cluster.start(slot)
        cluster.master.wait_for_workers(2, SECONDS)
        assert len(list(Path(other).glob("millrace-*/w*.ipc"))) == 2
        cluster.master.stop()
        for process in cluster.processes.values():
            process.join(SECONDS)
        assert list(Path(other).iterdir()) == []


def test_a_long_path_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A socket's path is limited to 107 characters; directories in containers may be longer."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with ForkedCluster(0) as cluster:
        monkeypatch.setenv("TMPDIR", str(long))
        for slot in range(2):
            cluster.start(slot)
        cluster.master.wait_for_workers(2, SECONDS)
        stream = AuditedStream(cluster.master, tmp_path / "audit")
        stream.advance(500)
        assert_exact(stream.finish())


def test_a_worker_stuck_in_user_code_is_alive_and_ends_with_its_master(tmp_path: Path) -> None:
    with ForkedCluster(1, settings={"worker.lease.secs": SHORT_LEASE}) as cluster:
        stuck = cluster.processes[0]
        cluster.master.submit(graph_of(Stuck, "stuck", {"path": str(tmp_path)}))
        assert cluster.master.wait_until(lambda: (tmp_path / "reached").exists(), SECONDS)
        heard = cluster.master.connections[0].heard
        assert cluster.master.wait_until(lambda: cluster.master.connections[0].heard > heard + 2.0, SECONDS)
        assert cluster.master.state.topologies["stuck"].losses == 0
        assert cluster.master.wait_until(lambda: cluster.master.state.workers[0].long_calls != (), SECONDS)
        [call] = cluster.master.status()["workers"][0]["long_calls"]
        assert call["what"].startswith("process of stuck[0] of 'stuck' (stuck.py:")
        cluster.master.stop(wait=0.1)
        stuck.join(SECONDS)
        assert stuck.exitcode == ENDED_ITSELF


def test_a_worker_stuck_in_user_code_ends_after_the_limit_for_calls(tmp_path: Path) -> None:
    with ForkedCluster(1, settings={"worker.call.limit.secs": 1.0}) as cluster:
        stuck = cluster.processes[0]
        cluster.master.submit(graph_of(Stuck, "stuck", {"path": str(tmp_path)}))
        stuck.join(SECONDS)
        assert stuck.exitcode == ENDED_ITSELF
        assert cluster.master.wait_until(lambda: not cluster.master.state.workers, SECONDS)
        [lost] = [event["text"] for event in cluster.master.events if "lost" in event["text"]]
        assert lost.startswith("worker 0 lost: process of stuck[0] of 'stuck' (stuck.py:"), lost


def test_a_worker_is_stopped_while_it_restarts(tmp_path: Path) -> None:
    """The master stops while a worker that was presumed dead restarts."""
    with ForkedCluster(2, settings={"worker.lease.secs": SHORT_LEASE}) as cluster:
        stream = AuditedStream(cluster.master, tmp_path)
        stream.advance(500)
        os.kill(cluster.processes[1].pid, signal.SIGSTOP)
        stream.until(presumed_dead(cluster.master, 1))
        stream.advance(500)
        assert_nothing_lost(stream.finish())
        processes = list(cluster.processes.values())
        cluster.master.stop()
        os.kill(cluster.processes[1].pid, signal.SIGCONT)
        for process in processes:
            process.join(SECONDS)
        assert [process.exitcode for process in processes] == [0, ENDED_ITSELF]
