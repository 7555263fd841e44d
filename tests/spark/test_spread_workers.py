"""Resident workers on several executors: each gets its share, however late it registered. Executors with their own directory
under the store's name are found out."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest
from pyspark import SparkContext

from millrace.errors import StoreNotShared
from millrace.spark.engine import ResidentEngine
from millrace.spark.microbatch import MicrobatchEngine
from millrace.workloads.audit import StatefulWordCount

DRIVER_AND_EXECUTORS = 4
HELD_SECONDS = 5.0  # longer than spark.locality.wait, after which Spark starts a worker on any other executor of the host


@pytest.fixture
def held_file() -> Iterator[str]:
    """The URL of a file that the last executor receives late. Executors fetch Spark's files after they have registered, and
    accept tasks after that."""
    requests = count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if next(requests) == DRIVER_AND_EXECUTORS:
                time.sleep(HELD_SECONDS)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/held"
        server.shutdown()
    # PySpark's JVM outlives the session, and may have got the setting when it started.
    SparkContext._jvm.java.lang.System.clearProperty("spark.files")


def test_an_executor_that_registers_long_before_it_takes_tasks_gets_its_share(held_file: str) -> None:
    with ResidentEngine("local-cluster[3,2,700]", 3, name=f"late-{os.getpid()}", settings={"history.url": "none"},
                        spark_settings={"spark.files": held_file}) as engine:
        assert Counter(worker["executor"] for worker in engine.status()["workers"]) == Counter("012")


def test_every_executor_gets_its_share_of_the_workers() -> None:
    with ResidentEngine("local-cluster[3,2,700]", 3, name=f"spread-{os.getpid()}", settings={"history.url": "none"}) as engine:
        status = engine.status()
        assert Counter(worker["executor"] for worker in status["workers"]) == Counter("012")
        assert engine.master.hosts.keys() == set("012") and status["hosts_without_workers"] == []
        engine.master.note_hosts({"0": "a", "1": "b", "2": "b", "3": "c"})
        assert engine.status()["hosts_without_workers"] == ["c"]


def test_batches_on_executors_with_their_own_store_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "executor").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "driver"))
    with MicrobatchEngine("local-cluster[1,1,700]", 1, name=f"apart-{os.getpid()}",
                          settings={"checkpoint.store": "~/store", "history.url": "none"},
                          spark_settings={"spark.executorEnv.HOME": str(tmp_path / "executor")}) as engine:
        with pytest.raises(StoreNotShared, match=r"(?s)executor 0 on .*test file is not there.*Set checkpoint\.store"):
            engine.submit(StatefulWordCount, config={"path": str(tmp_path)})
        assert not [*tmp_path.glob("*/store/.trial-*")]
        (tmp_path / "executor" / "store").rmdir()
        (tmp_path / "executor" / "store").symlink_to(tmp_path / "driver" / "store")
        running = engine.submit(StatefulWordCount, config={"path": str(tmp_path)})
        assert running.wait_running()
