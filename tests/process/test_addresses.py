"""Ports, names and keys that are taken, unknown or wrong are refused with a message that says what to do."""

from __future__ import annotations

import multiprocessing
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from millrace.config import CHECKPOINTS
from millrace.errors import AddressInUse, MasterUnreachable, MillraceError, UnknownTopology
from millrace.master.requests.client import ask, cluster_running, running_clusters
from millrace.master.requests.server import request_directory
from millrace.master.service import Master
from millrace.model.graph import graph_of
from millrace.runtime.wire.transport import Keys
from millrace.runtime.worker.process import WorkerSetup, run_worker
from millrace.spark.sources.state import StateOptions
from millrace.spark.sources.stream import TapOptions
from millrace.workloads.wordcount import WordCount
from support.processes.forked import ForkedCluster, forked
from support.topologies.audited import SECONDS
from support.topologies.tapped import Tapped


@pytest.fixture(autouse=True)
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Hide all clusters of this machine but those of the test."""
    directory = tempfile.mkdtemp(prefix="run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    yield Path(directory)
    shutil.rmtree(directory)


@pytest.fixture
def master() -> Iterator[Master]:
    master = Master("here")
    master.start()
    yield master
    master.stop()


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"port {port} on 127.0.0.1 is in use.*choose another"):
            Master("second", port=port)
    master = Master("second", port=port)  # the failure left nothing behind and freed the name
    master.stop()


@pytest.mark.parametrize("port", [-1, 65536, 70_000])
def test_an_invalid_port(port: int) -> None:
    with pytest.raises(MillraceError, match="not a port"):
        Master("second", port=port)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(MillraceError, match=r"cannot listen on 192\.0\.2\.1 .*address of this machine"):
        Master("second", host="192.0.2.1")


def test_two_clusters_with_one_name(master: Master) -> None:
    with pytest.raises(AddressInUse, match=r"'here' is running already \(process \d+\).*another name"):
        Master("here")
    assert ask("here", "status")["cluster"] == "here"


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", "x" * 200, "a\0b", "two\nlines"])
def test_an_invalid_name(name: str) -> None:
    with pytest.raises(MillraceError, match="cannot name a cluster"):
        Master(name)


def test_a_runtime_directory_too_deep_for_a_socket(runtime_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = runtime_directory / ("d" * 110)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(MillraceError, match=r"cannot listen at .*XDG_RUNTIME_DIR"):
        Master("deep")


def test_a_runtime_directory_that_others_can_enter(runtime_directory: Path) -> None:
    (runtime_directory / "millrace").mkdir(mode=0o755)
    with pytest.raises(MillraceError, match="not a private directory"):
        Master("open")


def test_ask_when_nothing_runs() -> None:
    with pytest.raises(MasterUnreachable, match=r"no Millrace cluster is running on this machine.*millrace run"):
        ask(None, "status")
    with pytest.raises(MasterUnreachable, match=r"no Millrace cluster named 'ghost'.*running: none"):
        ask("ghost", "status")


def test_ask_a_cluster_that_does_not_run(master: Master) -> None:
    with pytest.raises(MasterUnreachable, match=r"no Millrace cluster named 'ghost'.*running: here"):
        ask("ghost", "status")


def test_ask_without_a_name_among_several(master: Master) -> None:
    second = Master("there")
    second.start()
    try:
        assert running_clusters() == ["here", "there"]
        with pytest.raises(MasterUnreachable, match=r"2 clusters are running \(here, there\).*--cluster"):
            ask(None, "status")
        assert ask("there", "status")["cluster"] == "there"
    finally:
        second.stop()
    assert ask(None, "status")["cluster"] == "here"


def test_the_cluster_that_has_the_topology(master: Master, tmp_path: Path) -> None:
    """A tap's reader keeps the cluster it found first, even if others start or end on the machine."""
    with ForkedCluster(1, "there", settings={CHECKPOINTS.key: str(tmp_path)}) as other:
        other.master.submit(graph_of(Tapped, "readable", {"limit": 1}))
        tap = TapOptions({"topology": "readable", "stream": "out"})
        assert tap.find()[2] == ["number", "word"]
        assert StateOptions.of({"topology": "readable", "component": "out"}).store == str(tmp_path)
        with pytest.raises(MasterUnreachable, match=r"\(here, there\), and none of them runs .*'ghost'.*\.option\(.cluster"):
            cluster_running("ghost")
        with ForkedCluster(1, "again") as again:
            again.master.submit(graph_of(Tapped, "readable", {"limit": 1}))
            assert tap.find()[2] == ["number", "word"]
            with pytest.raises(MasterUnreachable, match=r"2 of them run a topology 'readable'.*\.option\(.cluster"):
                cluster_running("readable")
        assert cluster_running("readable") == "there"
    assert cluster_running("readable") == "here", "the only cluster: it reports itself that the topology is unknown"


def test_ask_for_an_unknown_topology_or_verb(master: Master) -> None:
    for verb in ("kill", "pause", "unpause", "load"):
        with pytest.raises(UnknownTopology, match="no topology named 'ghost' is running; running: none"):
            ask("here", verb, topology="ghost")
    with pytest.raises(MillraceError, match="unknown command 'dance'"):
        ask("here", "dance")
    with pytest.raises(MillraceError):
        ask("here", "kill", topology=["not", "a", "name"])
    assert ask("here", "status")["topologies"] == []


def die_with_a_master(pipe: Connection) -> None:
    Master("dead").start()
    pipe.send("up")
    pipe.recv()


def test_a_name_is_free_again_when_its_master_was_killed() -> None:
    mine, theirs = multiprocessing.Pipe()
    process = forked(die_with_a_master, theirs)
    assert mine.recv() == "up"
    assert running_clusters() == ["dead"]
    process.kill()
    process.join(SECONDS)
    assert (request_directory() / "dead.lock").exists(), "a killed master cannot clean up"
    assert running_clusters() == []
    with pytest.raises(MasterUnreachable, match="no Millrace cluster named 'dead'"):
        ask("dead", "status")
    again = Master("dead")
    again.start()
    assert ask(None, "status")["cluster"] == "dead"
    again.stop()


def try_worker(setup: WorkerSetup, pipe: Connection) -> None:
    """Run a worker and send its result or error through the pipe."""
    try:
        pipe.send(run_worker(setup, 0))
    except MillraceError as error:
        pipe.send(f"{type(error).__name__}: {error}")


def run_to_its_end(setup: WorkerSetup) -> str:
    mine, theirs = multiprocessing.Pipe()
    process = forked(try_worker, setup, theirs)
    theirs.close()
    outcome: str = mine.recv()
    process.join(SECONDS)
    assert process.exitcode == 0
    return outcome


def test_a_worker_with_a_wrong_key(master: Master) -> None:
    setup = replace(master.setup(), keys=Keys.make(), settings={"worker.hello.secs": 1.0})
    outcome = run_to_its_end(setup)
    assert outcome.startswith("MasterUnreachable: ") and master.endpoint in outcome and "the key is wrong" in outcome
    assert master.state.workers == {}
    assert master.wait_until(lambda: master.worker_port.refused > 0, SECONDS)


def test_a_worker_without_a_master() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        endpoint = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
    setup = WorkerSetup("none", endpoint, Keys.make(), settings={"worker.hello.secs": 0.5})
    outcome = run_to_its_end(setup)
    assert outcome.startswith("MasterUnreachable: ") and endpoint in outcome and "not reachable" in outcome


def test_keys_are_not_shown() -> None:
    keys = Keys.make()
    setup = WorkerSetup("c", "tcp://x:1", keys)
    for text in (repr(keys), repr(setup)):
        assert keys.secret.decode() not in text and keys.public.decode() not in text


def test_a_topology_of_the_same_name_is_refused() -> None:
    with ForkedCluster(1) as cluster:
        cluster.submit(WordCount, name="twin", config={"rate": 10})
        with pytest.raises(MillraceError, match=r"'twin' is running already.*another name"):
            cluster.submit(WordCount, name="twin")
        assert cluster.master.wait_until(lambda: cluster.master.state.topologies["twin"].status == "running", SECONDS)
