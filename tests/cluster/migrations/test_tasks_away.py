"""While a task is nowhere, between its old worker and its new one, the others go on: what is for it waits at its senders."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.config import CHANNEL_SECONDS, CHANNEL_WINDOW
from millrace.control.events import Rebalanced
from millrace.control.strategies.steps import Remove, Until
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.migrations.runs import PlainNumbers, Rows

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
MOVED = TaskId("passed", 1)
FIRST, LAST = 4, 2  # the workers that read a plan first and last, at the beginning of their cycles
CYCLES = {"supervisor_cycle": 2.0, "worker_cycle": 0.5}
WIDE = {CHANNEL_WINDOW.key: 4096, CHANNEL_SECONDS.key: 60.0}


class Away(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.message.timeout.secs": 30.0}
    numbers = PlainNumbers.spec(par=1)
    passed = parts.Pass.spec(inputs={numbers: Grouping.fields("key")}, par=4)
    rows = Rows.spec(inputs={passed: Grouping.SHUFFLE}, par=1)


class AwayRun:
    """A topology of which one task is moved by nstorm. `to_sender`: to the worker of the spout, which hands chunks over by
    reference."""

    def __init__(self, guarantee: str, to_sender: bool = False, **config: Any) -> None:
        self.cluster = LocalCluster(5, nodes=5)
        PlainNumbers.clock = PlainNumbers.wall_clock = staticmethod(self.cluster.clock.now)
        ackers = {"topology.acker.executors": 1} if guarantee == "at-least-once" else {}
        self.cluster.submit(Away, config={"rate": 1000.0, "limit": 100_000, "topology.guarantee": guarantee, **ackers,
                                          **config})
        self.state = self.cluster.master.topologies["away"]
        self.cluster.run_until(lambda: self.state.status == "running")
        self.cluster.tell(Rebalanced("away", {TaskId("numbers", 0): LAST if to_sender else 0, MOVED: FIRST}))
        self.cluster.run_until(lambda: self.state.migration is None and self.state.handover.at_rest)
        self.cluster.run(0.5)
        self.cluster.master._migrations.cycles_began = self.cluster.clock.now()
        self.cluster.tell(Rebalanced("away", {MOVED: LAST}, "nstorm", CYCLES))

    @property
    def steps(self) -> list[Any]:
        return list(self.state.migration.steps) if self.state.migration is not None else []

    def until_away(self) -> None:
        removed = next(number for number, step in enumerate(self.steps) if isinstance(step, Remove))
        assert isinstance(self.steps[removed + 1], Until)
        self.cluster.run_until(lambda: self.state.migration is None or self.state.migration.at > removed)
        assert MOVED not in self.state.places
        self.cluster.run(0.1)  # what it had sent has arrived

    def rows_in(self, seconds: float) -> Counter[str]:
        """The rows of each key that come in so many seconds."""
        before = len(parts.WRITTEN)
        self.cluster.run(seconds)
        return Counter(key for key, _, _ in parts.WRITTEN[before:])

    def until_back(self) -> None:
        self.cluster.run_until(lambda: self.state.migration is None)
        self.cluster.run(1.0)


@pytest.mark.parametrize("to_sender", [False, True])
@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
def test_only_its_own_rows_wait(guarantee: str, to_sender: bool) -> None:
    run = AwayRun(guarantee, to_sender, **WIDE)
    before = run.rows_in(0.1)
    run.until_away()
    away = run.rows_in(0.2)
    waiting = before.keys() - away.keys()
    assert 0 < len(waiting) < len(before) and all(away[key] > 0 for key in before.keys() - waiting)
    sent_when_away = max(number for key, number, _ in parts.WRITTEN)
    run.until_back()
    numbers = defaultdict(list)
    for key, number, _ in parts.WRITTEN:
        numbers[key].append(number)
    for key in waiting:
        held = [number for number in numbers[key] if sent_when_away - 150 < number <= sent_when_away]
        assert held and held == sorted(held), "in order"
        assert held == list(range(held[0], held[-1] + 1, parts.KEYS)), "none is missing or came twice"


def test_its_senders_wait_when_enough_is_held() -> None:
    """No task goes on for ever without one that takes its output."""
    run = AwayRun("at-least-once", **{CHANNEL_WINDOW.key: 4})
    run.until_away()
    run.rows_in(0.2)
    assert not run.rows_in(0.2)
    run.until_back()
    assert len(run.rows_in(0.1)) == parts.KEYS


def test_a_topology_ends_with_what_was_held() -> None:
    run = AwayRun("at-least-once", limit=2000, **WIDE)
    run.until_away()
    run.until_back()
    run.cluster.run_until(lambda: len({(key, number) for key, number, _ in parts.WRITTEN}) == 2000)
    assert Counter((key, number) for key, number, _ in parts.WRITTEN).keys() == parts.expected_rows(2000, 1).keys()
