"""Several engines on one Spark session: they share its cores and its Python processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.errors import NotEnoughSlots
from millrace.master.service import Master
from millrace.runtime.node import this_node
from millrace.spark.cluster.executors import Executors
from millrace.spark.cluster.free_cores import FreeCores
from millrace.spark.cluster.placement import Placement
from millrace.spark.engine import ResidentEngine
from millrace.spark.microbatch import MicrobatchEngine
from millrace.spark.session.session import make_session
from millrace.workloads.wordcount import WordCount
from support.topologies.batched import SECONDS, BatchedStream

CORES = 4


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session(f"local[{CORES}]", "neighbours", 2, {"spark.stage.maxConsecutiveAttempts": "1"})
    yield session
    session.stop()


def settings(store: Path) -> dict[str, str]:
    return {"checkpoint.store": str(store), "history.url": "none"}


def test_batches_of_two_engines_keep_their_state_in_the_same_processes(spark: SparkSession, tmp_path: Path) -> None:
    engines = [MicrobatchEngine(spark=spark, name=f"neighbour-{number}-{os.getpid()}", code=["support"],
                                settings=settings(tmp_path / f"store-{number}")) for number in range(2)]
    try:
        streams = []
        for number, engine in enumerate(engines):
            (tmp_path / str(number)).mkdir()
            streams.append(BatchedStream(engine, tmp_path / str(number), f"words-{number}"))
        for stream in streams:
            stream.advance(3)
        assert len(set(engines[0].runs())) == 2
        for stream in streams:
            assert not any(record.restored for record in stream.records[-2:])
            stream.finish()
    finally:
        for engine in engines:
            engine.stop()


def test_cores_that_workers_of_any_engine_hold_are_not_free(spark: SparkSession, tmp_path: Path) -> None:
    cores = FreeCores(spark.sparkContext)
    assert (cores.held(), cores.count()) == (0, CORES)
    with ResidentEngine(slots=2, spark=spark, name=f"first-{os.getpid()}", settings=settings(tmp_path / "first")) as first:
        assert (cores.held(), cores.count()) == (2, CORES - 2)
        with ResidentEngine(slots=1, spark=spark, name=f"second-{os.getpid()}", settings=settings(tmp_path / "second")):
            assert FreeCores(spark.sparkContext, lambda: 2).count() == FreeCores(spark.sparkContext).count() == 1
            with MicrobatchEngine(spark=spark, name=f"third-{os.getpid()}", settings=settings(tmp_path / "third")) as third:
                batched, resident = third.submit(WordCount), first.submit(WordCount)
                assert third.master.wait_until(lambda: any(log.records for log in third.master.batch_logs.values()), SECONDS), \
                    "a batch found the last core"
                assert resident.wait_running(SECONDS)
                batched.kill(wait=SECONDS)
                assert batched.wait(SECONDS)
            with ResidentEngine(slots=1, spark=spark, name=f"fourth-{os.getpid()}", settings=settings(tmp_path / "fourth")), \
                    pytest.raises(NotEnoughSlots, match=f"workers .* hold {CORES} of its {CORES} cores"):
                MicrobatchEngine(spark=spark, name=f"fifth-{os.getpid()}", settings=settings(tmp_path / "fifth"))


def test_a_busy_executor_does_not_block_the_master(spark: SparkSession, tmp_path: Path) -> None:
    """The master asks it for its node, and adds it when it answers."""
    go, context = tmp_path / "go", spark.sparkContext

    def hold(_: object) -> None:
        import pathlib
        import time

        while not pathlib.Path(go).exists():
            time.sleep(0.01)

    busy = threading.Thread(target=lambda: context.parallelize(range(CORES), CORES).foreach(hold))
    busy.start()
    master = Master(f"busy-{os.getpid()}", settings=settings(tmp_path / "store"))
    try:
        master.start()
        executors = Executors(Placement(context), master.batching, master.settings)
        while not context.statusTracker().getActiveStageIds():
            busy.join(0.05)
        executors.look()
        executors.look()
        assert len(executors) == 0
        go.touch()
        executors.wait_for(1, SECONDS)
        assert master.state.workers[0].node.name == this_node(master.settings, "driver").name
    finally:
        go.touch()
        busy.join()
        master.stop()
