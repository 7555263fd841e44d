"""A Spark cluster that runs on its own: a standalone master and worker on the loopback."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from millrace.errors import MasterUnreachable
from millrace.spark.engine import ResidentEngine
from millrace.spark.session.environment import spark_home
from millrace.spark.session.java import ensure_java
from support.processes.executors import listed_executors
from support.topologies.audited import SECONDS, StatefulStream, assert_all_exact

DEPLOY = "org.apache.spark.deploy"
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def daemon(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Spark's own processes, ended by its pid."""
    home = spark_home({})
    environment = {**os.environ, "JAVA_HOME": str(ensure_java()), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
                   "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SMALL}
    with log.open("wb") as output:
        process = subprocess.Popen([str(home / "bin" / "spark-class"), *arguments], env=environment, stdout=output,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(SECONDS)


def wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["tail", "-n", "+1", "-f", f"--pid={process.pid}", str(log)], stdout=subprocess.PIPE,
                          text=True) as tail:
        assert tail.stdout is not None
        assert any(text in line for line in tail.stdout), f"no {text!r} in {log.read_text()}"
        tail.terminate()


@contextmanager
def spark_worker(directory: Path, url: str, cores: int) -> Iterator[None]:
    """A worker of Spark's own cluster; Spark starts executors there."""
    log = directory / "worker.log"
    with daemon(log, f"{DEPLOY}.worker.Worker", "--host", "127.0.0.1", "--cores", str(cores), "--memory", "1g", "--webui-port",
                "0", "--work-dir", str(directory / "work"), url) as process:
        wait_for(log, "Successfully registered with master", process)
        yield


@pytest.fixture(scope="module")
def spark_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("spark")
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master = stack.enter_context(daemon(directory / "master.log", f"{DEPLOY}.master.Master", "--host", "127.0.0.1",
                                            "--port", str(port), "--webui-port", "0"))
        wait_for(directory / "master.log", "I have been elected leader", master)
        stack.enter_context(spark_worker(directory, url, 4))
        yield url


def test_every_word_exactly_once(spark_url: str, tmp_path: Path) -> None:
    with ResidentEngine(spark_url, 2, name=f"standalone-{os.getpid()}",
                        spark_settings={"spark.executor.memory": "600m"}) as engine:
        assert {worker["executor"] for worker in engine.status()["workers"]} == {"0"}
        stream = StatefulStream(engine.master, tmp_path)
        stream.wave(2)
        assert stream.slots() == {0, 1}
        assert_all_exact(stream.finish_both())


def test_a_spark_worker_that_joins_later_is_used(spark_url: str, tmp_path: Path) -> None:
    """Without a restart. When its executor is empty again, it is given back."""
    with ResidentEngine(spark_url, 2, name=f"grows-{os.getpid()}", settings={"history.url": "none"},
                        spark_settings={"spark.executor.memory": "600m"}) as engine:
        stream = StatefulStream(engine.master, tmp_path / "out", rate=1000)
        stream.wave(1)
        (tmp_path / "second").mkdir()
        with spark_worker(tmp_path / "second", spark_url, 2):
            assert engine.add_workers(4) == [2, 3, 4, 5]
            where = {worker["slot"]: worker["executor"] for worker in engine.workers()}
            assert sorted(where.values()) == ["0"] * 4 + ["1"] * 2
            near, far = ([slot for slot in where if where[slot] == executor] for executor in ("0", "1"))
            assert engine.restart_worker(far[0])["slot"] == far[0]
            for slot in near[:2]:
                assert not engine.remove_worker(slot)["executor_given_back"]
            assert stream.slots() & set(far), "some of their tasks were handed over to the new executor"
            assert [engine.remove_worker(slot)["executor_given_back"] for slot in far] == [False, True]
            stream.wave(1)
            assert stream.state.losses == 0, stream.story()
        assert_all_exact(stream.finish_both())


def test_the_number_of_workers_follows_its_limits(spark_url: str, tmp_path: Path) -> None:
    """`workers auto` gets a second executor from Spark when it joins, and gives executors back that are empty again."""
    with ResidentEngine(spark_url, 2, name=f"auto-{os.getpid()}", settings={"history.url": "none", "load.period.secs": 1.0},
                        spark_settings={"spark.executor.memory": "600m"}) as engine:
        stream = StatefulStream(engine.master, tmp_path / "out", rate=1000)
        stream.wave(1)

        def executors() -> list[str]:
            return sorted(worker.executor for worker in engine.master.state.workers.values())

        (tmp_path / "second").mkdir()
        with spark_worker(tmp_path / "second", spark_url, 2):
            assert engine.set_auto_workers("6..6", cool_down=0.1)["on"]
            stream.until(lambda: executors() == ["0"] * 4 + ["1"] * 2)
            stream.wave(1)
            engine.set_auto_workers("1..2")
            stream.until(lambda: len(executors()) == 2 and stream.state.handover.at_rest)
            stream.until(lambda: listed_executors(engine) == set(executors()))
            assert len(set(executors())) == 1, "the other executor is empty and given back"
            assert stream.slots() <= set(engine.master.state.workers)
            stream.wave(1)
            assert stream.state.losses == 0, stream.story()
            assert_all_exact(stream.finish_both())


def test_a_master_that_does_not_answer() -> None:
    port = free_port()
    with pytest.raises(MasterUnreachable, match=rf"spark://127.0.0.1:{port} does not answer.*Check that it is running"):
        ResidentEngine(f"spark://127.0.0.1:{port}", 2, name=f"nobody-{os.getpid()}")
