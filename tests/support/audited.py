"""An endless word count that proves what became of every word: for tests that break what it runs on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millrace.control.master_state import TopologyState
from millrace.master.service import Master
from millrace.model.graph import graph_of
from millrace.workloads.audit import AuditedWordCount, AuditResult, audit

SECONDS = 60.0  # a safety limit, never a measure
RATE = 4000  # lines a second, ten words each


class AuditedStream:
    """Submits AuditedWordCount and waits for conditions of it; `finish` drains it and looks for every word."""

    def __init__(self, master: Master, directory: Path, name: str = "audited", rate: float = RATE,
                 **config: object) -> None:
        self.master, self.directory, self.name = master, directory, name
        master.submit(graph_of(AuditedWordCount, name, {"path": str(directory), "rate": rate, **config}))
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
        """Wait until every spout has got `lines` further: whatever was in flight before is fully processed then."""
        spouts = self.state.graph.component("lines").par
        before = max(self.positions().values(), default=0)

        def further() -> bool:
            positions = self.positions()
            return len(positions) == spouts and min(positions.values()) >= before + lines

        self.until(further)

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
