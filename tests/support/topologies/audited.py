"""An endless word count that proves what became of every word: for tests that break what it runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from millrace.api.topology import Topology
from millrace.bench.faults import stored_counts
from millrace.control.topology_state import TopologyState
from millrace.control.waves import IDLE, Waves
from millrace.master.service import Master
from millrace.model.graph import graph_of
from millrace.runtime.checkpoints.store import open_store
from millrace.workloads.audit import (
    RECORD,
    AuditedWordCount,
    AuditResult,
    AuditSink,
    StatefulWordCount,
    audit,
    true_counts,
)

SECONDS = 60.0  # a safety limit, never a measure
RATE = 4000  # lines a second, ten words each


class AuditedStream:
    """Submits AuditedWordCount, which begins anew unless `resume` says otherwise, and waits for conditions of it; `finish`
    drains it and looks for every word."""

    topology: type[Topology] = AuditedWordCount

    def __init__(self, master: Master, directory: Path, name: str = "audited", rate: float = RATE, resume: bool = False,
                 **config: object) -> None:
        self.master, self.directory, self.name = master, directory, name
        master.submit(graph_of(self.topology, name, {"path": str(directory), "rate": rate, **config}), resume)
        self.until(lambda: self.state.status == "running")

    @property
    def state(self) -> TopologyState:
        return self.master.state.topologies[self.name]

    def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        assert self.master.wait_until(condition, seconds), f"not reached in {seconds:g} s; {self.story()}"

    def story(self) -> str:
        return f"status {self.state.status}, positions {self.positions()}, the master said:\n" + "\n".join(
            event["text"] for event in self.master.events)

    def positions(self) -> dict[int, int]:
        """Spout task index → the position below which every line has been fully processed."""
        return {task.index: position for task, position in dict(self.state.positions).items()}

    def advance(self, lines: int = 1500) -> None:
        """Wait until every spout has got `lines` further: whatever was in flight before is fully processed then. A spout that
        had to begin again is behind what was sent before."""
        spouts = self.state.graph.component("lines").par
        before = max(self.sunk(), *self.positions().values(), 0)

        def further() -> bool:
            positions = self.positions()
            return len(positions) == spouts and min(positions.values()) >= before + lines

        self.until(further)

    def sunk(self) -> int:
        """The position after the last one that any sink has a word of."""
        files = [np.fromfile(path, RECORD) for path in self.directory.glob(f"part-*{AuditSink.suffix}")]
        return max((int(words["position"].max()) + 1 for words in files if len(words)), default=0)

    def slots(self) -> set[int]:
        """The slots that hold tasks of it."""
        return {place.slot for place in dict(self.state.places).values()}

    def drain(self) -> None:
        self.master.pause(self.name)
        self.until(lambda: self.master.state.drained(self.state))

    def end(self) -> None:
        self.master.kill(self.name, wait=0)
        assert self.master.wait_until(lambda: self.name not in self.master.state.topologies, SECONDS)

    def finish(self) -> AuditResult:
        self.drain()
        found = audit(self.directory, self.positions())
        self.end()
        return found


class StatefulStream(AuditedStream):
    """The same with keyed state and waves. `counts` is what its last checkpoint has."""

    topology = StatefulWordCount

    def __init__(self, master: Master, directory: Path, name: str = "stateful", guarantee: str = "exactly-once",
                 interval: float = 0.3, **options: Any) -> None:
        config = {"topology.guarantee": guarantee, "topology.checkpoint.interval.secs": interval,
                  "topology.message.timeout.secs": 5.0}
        super().__init__(master, directory, name, **{**config, **options})

    @property
    def waves(self) -> Waves:
        found = self.state.waves
        assert found is not None
        return found

    def wave(self, count: int = 1) -> None:
        """Wait until so many more waves are committed, everywhere."""
        target = self.waves.committed + count
        self.until(lambda: self.waves.committed >= target and self.waves.phase == IDLE and self.state.status != "starting")

    def drain(self) -> None:
        """Until all is worked off and committed: a worker that is gone by then has been missed."""
        self.master.pause(self.name)
        self.wave(2)
        self.until(lambda: self.state.status == "paused" and self.master.state.drained(self.state))
        self.wave()

    def counts(self) -> Counter[str]:
        return stored_counts(open_store(self.master.checkpointing.place), self.name)

    def finish_both(self) -> tuple[AuditResult, Counter[str], Counter[str]]:
        """What the sink has, what the state has, and what it must have."""
        self.drain()
        expected = self.positions()
        found, counts = audit(self.directory, expected), self.counts()
        self.end()
        return found, counts, true_counts(expected)


def assert_all_exact(result: tuple[AuditResult, Counter[str], Counter[str]]) -> None:
    found, counts, truth = result
    assert_exact(found)
    assert counts == truth


def assert_never_less(result: tuple[AuditResult, Counter[str], Counter[str]]) -> None:
    found, counts, truth = result
    assert_nothing_lost(found, ahead=True)
    assert counts >= truth


def assert_nothing_lost(found: AuditResult, ahead: bool = False) -> None:
    """At least once: every word is there, and nothing else; some may be there twice.

    `ahead`: a worker that was given up and did not know it yet may have sent lines that it is not the turn of.
    """
    assert found.tuples_in > 0
    assert (found.lost, found.wrong) == (0, 0), found
    assert found.beyond == 0 or ahead, found
    assert found.tuples_out == found.tuples_in + found.repeated + found.beyond, found


def assert_exact(found: AuditResult) -> None:
    assert_nothing_lost(found)
    assert found.repeated == 0, found
