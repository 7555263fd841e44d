"""A word count on the microbatch engine that proves what became of every word: for tests that break what it runs on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.master.batch_log import BatchRecord
from millrace.model.graph import TopologyGraph
from millrace.runtime.checkpoints.store import open_store
from millrace.spark.microbatch import MicrobatchEngine
from millrace.workloads.audit import audit, true_counts
from support.suites.kept_state import state_of
from support.topologies.standing_still import HeldWordCount, Hold

SECONDS = 120.0  # a safety limit, never a measure


class BatchedStream:
    """Submits a word count, which begins anew unless `resume` says otherwise, and waits for conditions of it; `finish` drains
    it and looks for every word and count."""

    def __init__(self, engine: MicrobatchEngine, directory: Path, name: str, resume: bool | None = False,
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
        return list(self.master.batches[self.name].records) if self.name in self.master.batches else []

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.master.wait_until(condition, SECONDS), "not reached; the master said:\n" + "\n".join(
            event["text"] for event in self.master.events)

    def advance(self, batches: int = 2) -> None:
        count = len(self.records)
        self.until(lambda: len(self.records) >= count + batches)

    def held(self) -> list[int]:
        """Stop in the middle of a batch; the processes that are in it."""
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
        found = audit(self.directory, sent)
        assert found.tuples_in > 0 and (found.lost, found.repeated, found.wrong, found.beyond) == (0, 0, 0, 0), found
        kept = state_of(open_store(str(self.master.settings["checkpoint.store"])), graph)
        assert kept["count"]["counts"] == true_counts(sent)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, signal.SIGKILL)
