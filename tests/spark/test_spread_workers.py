"""Resident workers on several executors: each gets its share, however late it registered. Executors with their own directory
under the store's name are found out."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from millrace.errors import StoreNotShared
from millrace.spark.engine import ResidentEngine
from millrace.spark.microbatch import MicrobatchEngine
from millrace.workloads.audit import StatefulWordCount


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
