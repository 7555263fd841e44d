"""The batches of a topology on the microbatch engine, as the master has recorded them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from millrace.bench.topology_runs import end_run
from millrace.config import BATCH_INTERVAL, BATCH_SECONDS, BATCH_TUPLES
from millrace.control.topology_status import ENDED
from millrace.errors import MillraceError
from millrace.master.batch_log import BatchRecord
from millrace.spark.microbatch import MicrobatchEngine
from millrace.spark.running_topology import RunningTopology

LIMIT_SECONDS = 300.0  # time limit of every wait
NEVER_SECONDS = 600.0  # batches are closed by their tuples alone
LOOK_SECONDS = 0.05


class RecordedBatches:
    """The batches of a running topology."""

    def __init__(self, engine: MicrobatchEngine, running: RunningTopology) -> None:
        self._engine, self._running = engine, running

    @property
    def records(self) -> list[BatchRecord]:
        records: list[BatchRecord] = self._engine.master.call(self._recorded)
        return records

    def _recorded(self) -> list[BatchRecord]:
        log = self._engine.master.batch_logs.get(self._running.name)
        return list(log.records) if log is not None else []

    def wait(self, enough: Callable[[list[BatchRecord]], bool]) -> None:
        """Wait until `enough` is true of the records."""
        records = self.records
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (records and enough(records)):
            if self._running.status == ENDED or time.monotonic() > deadline:
                raise MillraceError(f"{self._running.name} did not get far enough within {LIMIT_SECONDS:g} s: "
                                    f"{len(records)} batches, last events {self._engine.status()['events'][-3:]}")
            time.sleep(LOOK_SECONDS)
            records = self.records

    def end(self) -> None:
        """End the topology without finishing the current batch: the last commit is the result."""
        end_run(self._running, drain=0)


def ended(record: BatchRecord) -> float:
    return record.started + record.seconds


def mean_batch(records: Sequence[BatchRecord]) -> dict[str, Any]:
    """The mean batch: its time, the time of its Spark tasks as Spark reports it, and that of its tasks."""
    count = len(records)
    return {"batches": count, "stages": records[-1].stages, "lines_in_a_batch": sum(r.tuples_in for r in records) // count,
            "batch_ms": round(sum(r.seconds for r in records) / count * 1e3),
            "spark_run_ms": round(sum(r.spark_run_seconds for r in records) / count * 1e3),
            "own_busy_ms": round(sum(r.own_busy_seconds for r in records) / count * 1e3),
            "shuffle_kb": sum(r.spark_shuffle_bytes for r in records) // count // 1024}


def batches_of_size(tuples: int) -> dict[str, Any]:
    """Settings for batches without a pause, each closed by its number of tuples for each spout task."""
    return {BATCH_INTERVAL.key: 0.0, BATCH_SECONDS.key: NEVER_SECONDS, BATCH_TUPLES.key: tuples}
