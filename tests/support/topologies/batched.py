"""A word count on the microbatch engine that accounts for every word, for tests that break the cluster under it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.control.submission import Resume
from millrace.master.batch_log import BatchRecord
from millrace.model.graph import TopologyGraph
from millrace.runtime.checkpoints.store import open_store
from millrace.spark.microbatch import MicrobatchEngine
from millrace.workloads.audit import audit, true_counts
from support.suites.kept_state import state_of
from support.topologies.audited import assert_exact
from support.topologies.standing_still import HeldWordCount, Hold

SECONDS = 120.0  # a safety limit, never a measure


class BatchedStream:
    """Submits a word count, fresh unless `resume` is set, and waits for conditions on it. `finish` drains it and compares its
    output and counts with its input."""

    def __init__(self, engine: MicrobatchEngine, directory: Path, name: str, resume: Resume = False,
                 **config: Any) -> None:
        self.engine, self.master, self.directory, self.name = engine, engine.master, directory, name
        self.hold = Hold(directory)
        self.running = engine.submit(HeldWordCount, name, {"path": str(directory), "topology.batch.tuples": 500,
                                                               "topology.batch.interval.ms": 0, **config}, resume=resume)

    @property
    def graph(self) -> TopologyGraph:
        return self.master.state.topologies[self.name].graph

    @property
    def records(self) -> list[BatchRecord]:
        return list(self.master.batch_logs[self.name].records) if self.name in self.master.batch_logs else []

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.master.wait_until(condition, SECONDS), "not reached; the master said:\n" + "\n".join(
            event["text"] for event in list(self.master.events))

    def advance(self, batches: int = 2) -> None:
        count = len(self.records)
        self.until(lambda: len(self.records) >= count + batches)

    def held(self) -> list[int]:
        """Block the topology in the middle of a batch; returns the processes that run it."""
        self.hold.begin()
        self.until(lambda: bool(self.hold.held()))
        return self.hold.held()

    def retried(self) -> int:
        return sum(record.attempts > 1 for record in self.records)

    def finish(self) -> None:
        assert self.running.drain(SECONDS)
        sent = {task.index: position for task, position in self.running.positions().items()}
        graph = self.graph
        self.running.kill(wait=SECONDS)
        assert self.running.wait(SECONDS)
        assert_exact(audit(self.directory, sent))
        kept = state_of(open_store(str(self.master.settings["checkpoint.store"])), graph)
        assert kept["count"]["counts"] == true_counts(sent)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.kill(pid, signal.SIGKILL)
