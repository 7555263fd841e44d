"""An endless word count that accounts for every word, for tests that break the cluster under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from millrace.api.topology import Topology
from millrace.bench.stored_counts import stored_counts
from millrace.config import HANDOVER_PREPARE_LIMIT, HANDOVER_SWITCH_LIMIT
from millrace.control.submission import Resume
from millrace.control.topology_state import TopologyState
from millrace.control.waves import IDLE, Waves
from millrace.master.service import Master
from millrace.model.graph import TaskId, graph_of
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
# Moves must be exact, however slow the machine is.
UNHURRIED: dict[str, Any] = {HANDOVER_PREPARE_LIMIT.key: 600.0, HANDOVER_SWITCH_LIMIT.key: 600.0}


def reached(master: Master) -> bool:
    """True if every live worker has enacted the newest plan, and no task is being moved."""
    state = master.state
    return (bool(state.workers) and all(worker.revision == state.revision for worker in state.workers.values())
            and all(topology.handover.at_rest for topology in state.topologies.values()))


class AuditedStream:
    """Submits AuditedWordCount, fresh unless `resume` is set, and waits for conditions on it. `finish` drains it and compares
    its output with its input. `par` overrides the parallelism of components."""

    topology: type[Topology] = AuditedWordCount

    def __init__(self, master: Master, directory: Path, name: str = "audited", rate: float = RATE, resume: Resume = False,
                 par: dict[str, int] | None = None, **config: object) -> None:
        self.master, self.directory, self.name = master, directory, name
        master.submit(graph_of(self.topology, name, {"path": str(directory), "rate": rate, **config}, par), resume)
        self.until(lambda: self.state.status == "running")

    @property
    def state(self) -> TopologyState:
        return self.master.state.topologies[self.name]

    def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        assert self.master.wait_until(condition, seconds), f"not reached in {seconds:g} s; {self.story()}"

    def story(self) -> str:
        return f"status {self.state.status}, positions {self.positions()}, the master said:\n" + "\n".join(
            event["text"] for event in list(self.master.events))

    def positions(self) -> dict[int, int]:
        """Spout task index → the position below which every line has been fully processed."""
        return {task.index: position for task, position in dict(self.state.positions).items()}

    def advance(self, lines: int = 1500) -> None:
        """Wait until every spout is `lines` further: everything in flight before is fully processed then. A restarted spout
        begins behind what was sent before."""
        spout = self.state.graph.component("lines")
        spouts = spout.splits or spout.par
        before = max(self.sunk(), *self.positions().values(), 0)

        def further() -> bool:
            positions = self.positions()
            return len(positions) == spouts and min(positions.values()) >= before + lines

        self.until(further)

    def sunk(self) -> int:
        """The position after the last one of which any sink has a word."""
        files = [np.fromfile(path, RECORD) for path in self.directory.glob(f"part-*{AuditSink.suffix}")]
        return max((int(words["position"].max()) + 1 for words in files if len(words)), default=0)

    def slots(self) -> set[int]:
        """The slots that run its tasks."""
        return {place.slot for place in dict(self.state.places).values()}

    def move_on(self, component: str = "count", index: int = 0) -> int:
        """Move a task to the next worker, after any move that it is in: it may be on its way home. Returns the revision of
        the plan."""
        task = TaskId(component, index)
        ordered: list[int] = []

        def order() -> bool:
            if not ordered and self.state.handover.moving(task) is None:
                alive = sorted(self.master.state.workers)
                now = alive.index(self.state.places[task].slot)
                self.master.move(self.name, task, alive[(now + 1) % len(alive)])
                ordered.append(self.master.state.revision)
            return bool(ordered)

        self.until(order)
        return ordered[0]

    def drain(self) -> None:
        self.master.pause(self.name)
        self.until(lambda: self.master.state.drained(self.state))

    def end(self) -> None:
        self.master.kill(self.name, wait=0)
        assert self.master.wait_until(lambda: self.name not in self.master.state.topologies, SECONDS)

    def finish(self) -> AuditResult:
        self.drain()
        result = audit(self.directory, self.positions())
        self.end()
        return result


class StatefulStream(AuditedStream):
    """The same with keyed state and waves. `counts` reads the counts in its last checkpoint."""

    topology = StatefulWordCount

    def __init__(self, master: Master, directory: Path, name: str = "stateful", guarantee: str = "exactly-once",
                 interval: float = 0.3, **options: Any) -> None:
        config = {"topology.guarantee": guarantee, "topology.checkpoint.interval.secs": interval,
                  "topology.message.timeout.secs": 5.0}
        super().__init__(master, directory, name, **{**config, **options})

    @property
    def waves(self) -> Waves:
        waves = self.state.waves
        assert waves is not None
        return waves

    def story(self) -> str:
        waves = self.waves
        return (f"wave {waves.wave} in phase {waves.phase} waits for {sorted(waves.waiting)}, {waves.committed} is committed, "
                f"{waves.abandoned} were abandoned, trouble {self.state.troubled!r}, {super().story()}")

    def in_phase(self, phase: str, action: Callable[[], None], slot: int, component: str = "",
                 first: Callable[[], None] = lambda: None) -> int:
        """Run `action` on the master's thread while a wave is in this phase and the master has no ack of a task on this slot
        (of this component). The phase does not end if `action` is `kill_and_wait` for that worker. Returns the last committed
        wave of that moment. `first` is called before, on the master's thread too, so that the phase cannot be missed."""
        reached: list[int] = []
        before = [first]

        def act() -> bool:
            if before:
                before.pop()()
            places = self.state.places
            awaited = any(task in places and places[task].slot == slot and component in ("", task.component)
                          for task in self.waves.waiting)
            if not reached and self.waves.phase == phase and awaited:
                reached.append(self.waves.committed)
                action()
            return bool(reached)

        self.until(act)
        return reached[0]

    def wave(self, count: int = 1) -> None:
        """Wait until so many more waves are committed by every task."""
        target = self.waves.committed + count
        self.until(lambda: self.waves.committed >= target and self.waves.phase == IDLE and self.state.status != "starting")

    def drain(self) -> None:
        """Wait until everything is processed and committed, and every lost worker has been noticed."""
        self.master.pause(self.name)
        self.wave(2)
        self.until(lambda: self.state.status == "paused" and self.master.state.drained(self.state))
        self.wave()

    def counts(self) -> Counter[str]:
        return stored_counts(open_store(self.master.checkpointing.place), self.name)

    def finish_both(self) -> tuple[AuditResult, Counter[str], Counter[str]]:
        """The audit of the sink, the counts in the state, and the true counts."""
        self.drain()
        expected = self.positions()
        result, counts = audit(self.directory, expected), self.counts()
        self.end()
        return result, counts, true_counts(expected)


def assert_all_exact(results: tuple[AuditResult, Counter[str], Counter[str]]) -> None:
    result, counts, truth = results
    assert_exact(result)
    assert counts == truth


def assert_never_less(results: tuple[AuditResult, Counter[str], Counter[str]]) -> None:
    result, counts, truth = results
    assert_nothing_lost(result, ahead=True)
    assert counts.keys() == truth.keys()
    assert counts >= truth


def assert_nothing_lost(result: AuditResult, ahead: bool = False) -> None:
    """At least once: every word is there, and no other; some may be there twice.

    `ahead`: a worker that was presumed dead and does not know it yet may have sent lines past the expected position.
    """
    assert result.tuples_in > 0
    assert (result.lost, result.wrong) == (0, 0), result
    assert result.beyond == 0 or ahead, result
    assert result.tuples_out == result.tuples_in + result.repeated + result.beyond, result


def assert_exact(result: AuditResult) -> None:
    """Every word once, and no byte besides: no part of a record either."""
    assert_nothing_lost(result)
    assert (result.repeated, result.torn_bytes) == (0, 0), result


def assert_in_order(directory: Path) -> None:
    """In each sink's file, equal words of one spout task are in the order of the stream. This holds where only one task of
    `split` sends them, and nothing was sent again: chunks may be lost on a channel, and never overtake each other."""
    checked = 0
    for path in directory.glob(f"part-*{AuditSink.suffix}"):
        records = np.fromfile(path, RECORD)
        records = records[np.lexsort((np.arange(len(records)), records["crc"], records["task"]))]  # stable: in file order
        same = (records["task"][1:] == records["task"][:-1]) & (records["crc"][1:] == records["crc"][:-1])
        places = records["position"].astype(np.int64) * (1 << 16) + records["index"]
        assert np.all(np.diff(places)[same] > 0), f"{path} has words out of order"
        checked += int(same.sum())
    assert checked > 0
