"""Migrations of a small topology, stopped at any of their steps, and what must be true when they are over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.config import RESTART_WAIT
from millrace.connectors.generator import GeneratorSpout
from millrace.control.events import Rebalanced
from millrace.control.migrations import COMPLETED
from millrace.control.moves import BY_PERSON
from millrace.control.strategies.catalogue import STRATEGIES, steps_of
from millrace.control.strategies.steps import (
    Checkpoint,
    Delay,
    HandOver,
    Hold,
    PlacementChange,
    Release,
    Remove,
    Replace,
    Restart,
    Step,
    Until,
)
from millrace.control.strategies.under_way import MigrationUnderWay
from millrace.model.graph import ACKER, TaskId, graph_of
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import watched_moves as watched
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import AtLeast, Exact, FakeLedger, Numbers, Pass, Tally
from support.cluster.wave_runs import assert_exact, finish, finish_at_least, tasks, until_wave
from support.migrations.quick import QUICK

LIMIT = 1000
WORKERS = 5
GIVER, TAKER, THIRD = "giver", "taker", "third"
ROLES = {GIVER: 0, TAKER: 2, THIRD: 3}  # slots
BEFORE = {TaskId("numbers", 0): 0, TaskId("numbers", 1): 1, TaskId("tally", 0): 0, TaskId("tally", 1): 1,
          TaskId("ledger", 0): 3, TaskId("ledger", 1): 1}
MOVES = {TaskId("numbers", 0): 2, TaskId("tally", 0): 2, TaskId("tally", 1): 4}
LIMITS = {"topology.handover.switch.secs": 3.0, "topology.handover.prepare.secs": 8.0}


class Moved(Topology):
    """Exactly once: spouts, a bolt with every kind of state, and a sink."""

    config: ClassVar[dict[str, Any]] = {**Exact.config, **LIMITS}
    numbers = Numbers.spec(par=2)
    tally = Tally.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


class MovedAtLeast(Topology):
    """The same, at least once."""

    config: ClassVar[dict[str, Any]] = {**AtLeast.config, **LIMITS, "topology.acker.executors": 1}
    numbers = Numbers.spec(par=2)
    tally = Tally.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


class PlainNumbers(GeneratorSpout):
    """`Numbers` without a snapshot."""

    outputs: ClassVar[list[str]] = ["key", "number"]

    def generate(self, position: int) -> tuple[Any, ...]:
        number = self.ordinal(position)
        return f"k{number % parts.KEYS}", number


class Rows(Bolt):
    """A sink without state."""

    def process(self, tup: Tuple) -> None:
        parts.WRITTEN.append((*tup.values, 0))


class Stateless(Topology):
    """At least once, without waves."""

    config: ClassVar[dict[str, Any]] = {**AtLeast.config, **LIMITS, "topology.acker.executors": 1}
    numbers = PlainNumbers.spec(par=2)
    tally = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = Rows.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


class StatelessAtMost(Topology):
    config: ClassVar[dict[str, Any]] = {**Stateless.config, "topology.guarantee": "at-most-once"}
    numbers = PlainNumbers.spec(par=2)
    tally = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = Rows.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


PLAN = "plan"  # is not lost, but reaches a worker late
MESSAGES: dict[type[Any], tuple[Any, ...]] = {  # those that a step needs, by its type
    Hold: (PLAN,), Release: (PLAN,), Delay: (), Until: (), Checkpoint: (wire.Wave, wire.Waved), Remove: (PLAN,),
    Replace: (PLAN, wire.Wave, wire.Waved), HandOver: (PLAN, wire.Armed, wire.Taken, watched.STATE, watched.MOVE),
    Restart: (wire.Stop, wire.Bye)}


def messages_of(step: Step) -> tuple[Any, ...]:
    stops = (wire.Stop, wire.Bye) if isinstance(step, Replace) and step.restart else ()
    return (*MESSAGES[type(step)], *stops)


def allowed(topology: Any) -> list[str]:
    """The strategies that the topology can be migrated by."""
    exact = topology.config.get("topology.guarantee") == "exactly-once"
    waves = graph_of(topology).waves
    return [name for name, strategy in STRATEGIES.items() if (exact or not strategy.exactly_once)
            and (waves or not strategy.needs_waves)]


@cache
def steps_for(strategy: str) -> list[Step]:
    """The steps of the migration in these tests."""
    nodes = {slot: f"node{slot}" for slot in range(WORKERS)}
    graph = graph_of(Moved)
    return steps_of(strategy, PlacementChange(graph, BEFORE, {**BEFORE, **MOVES}, nodes), QUICK.get(strategy, {}))


def each_step(topology: Any, strategies: list[str] | None = None) -> list[Any]:
    """(strategy, number of a step), for every step of each strategy."""
    names = allowed(topology) if strategies is None else strategies
    return [(name, step) for name in names for step in range(len(steps_for(name)))]


MAIN = ("dcr", "ccr", "layered", "nstorm", "nstorm+", "tstorm")  # strategies with all kinds of steps


def mainly(params: Iterable[tuple[Any, ...]], strategies: Collection[str] = MAIN) -> list[Any]:
    """The parameters of a test, of which the first is the strategy; the main run has only those of some strategies."""
    return [pytest.param(*each, id="-".join(getattr(value, "__name__", str(value)) for value in each),
                         marks=() if each[0] in strategies else pytest.mark.slow) for each in params]


class MigrationRun:
    """A running topology, placed as in `BEFORE`, that can be migrated to `MOVES`."""

    def __init__(self, strategy: str, topology: Any = Moved, limit: int = LIMIT, **config: Any) -> None:
        self.strategy, self._topology, self.limit = strategy, topology, limit
        self.name = topology.__name__.lower()
        self.cluster = LocalCluster(WORKERS, nodes=WORKERS, settings={RESTART_WAIT.key: 2.0})
        parts.Numbers.clock = PlainNumbers.clock = staticmethod(self.cluster.clock.now)
        parts.Numbers.wall_clock = PlainNumbers.wall_clock = staticmethod(self.cluster.clock.now)
        self.cluster.submit(topology, config={"limit": limit, "rate": 800.0, **config})
        self.state = self.cluster.master.topologies[self.name]
        self._until_wave()
        ackers = dict.fromkeys((task for task in self.state.places if task.component == ACKER), 1)
        self.cluster.tell(Rebalanced(self.name, {**BEFORE, **ackers}))
        self.cluster.run_until(lambda: self.over and self.where == BEFORE)
        self._until_wave()
        self.before = self.cluster.where(self.name)
        self.after = {**self.before, **MOVES}
        self.began = len(self.cluster.migrations.past(self.name)) + 1  # number of the next record

    def _until_wave(self) -> None:
        if self.state.waves is not None:
            until_wave(self.cluster, 1, self.name)
        else:
            self.cluster.run_until(lambda: self.state.status == "running")
            self.cluster.run(0.15)

    @property
    def where(self) -> dict[TaskId, int]:
        """The slots of the tasks, without ackers."""
        return {task: slot for task, slot in self.cluster.where(self.name).items() if task in BEFORE}

    @property
    def migration(self) -> MigrationUnderWay | None:
        return self.state.migration

    def begin(self) -> None:
        assert not any(task.component.exhausted for task in tasks(self.cluster, "numbers")), "the stream runs"
        self.cluster.master._migrations.cycles_began = self.cluster.clock.now()  # as for `steps_for`
        self.cluster.tell(Rebalanced(self.name, MOVES, self.strategy, QUICK.get(self.strategy, {})))

    def until_step(self, number: int, later: int = 0) -> None:
        """Begin, and run until the migration is in this step, or behind it if it takes no time."""
        self.begin()
        self.cluster.run_until(lambda: self.migration is None or self.migration.at >= number)
        self.cluster.step(later)

    @property
    def over(self) -> bool:
        return self.migration is None and self.state.handover.at_rest and self.state.status in ("running", "paused")

    def record(self) -> dict[str, Any]:
        [record] = [record for record in self.cluster.migrations.past(self.name) if record["strategy"] == self.strategy
                    and record["cause"] == str(BY_PERSON) and self.began <= record["id"]]
        return record

    def settle(self, elsewhere: bool = False) -> dict[str, Any]:
        """Run until the migration is over, check that it has left nothing behind, and return its record. `elsewhere`: a worker
        is gone for good."""
        self.cluster.run_until(lambda: self.over)
        state = self.state
        assert not state.held_back and not state.capturing
        if state.waves is not None:
            assert not state.waves.held and not state.waves.captures and not state.waves.drains
        assert not state.handover.cold and not state.handover.limit
        record = self.record()
        assert record["outcome"] == COMPLETED or record["reason"], record
        if not elsewhere:
            self.assert_in_place(record)
        return record

    def assert_in_place(self, record: dict[str, Any]) -> None:
        """Everything is where it was, or where it was to be."""
        where = self.cluster.where(self.name)
        assert where in (self.before, self.after), (where, self.cluster.said)

    def end(self) -> None:
        """Let the stream end, and compare it with the truth."""
        if self._topology is Moved:
            finish(self.cluster, self.name)
            assert_exact(self.limit, 1)
        elif self._topology is MovedAtLeast:
            finish_at_least(self.cluster, self.limit, self.name)
        else:
            self._finish_stateless()

    def _finish_stateless(self) -> None:
        spouts = lambda: [task.component for task in tasks(self.cluster, "numbers")]  # noqa: E731
        self.cluster.run_until(lambda: self.state.status == "running" and len(spouts()) == 2
                               and all(spout.exhausted and not spout.unacked_tuples for spout in spouts()))
        self.cluster.run(0.5)
        written, truth = Counter((key, number) for key, number, _ in parts.WRITTEN), parts.expected_rows(self.limit, 1)
        if self._topology is Stateless:
            assert written.keys() == truth.keys()
        else:
            assert written <= truth, "a row came twice"

    def when(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        self.cluster.run_until(condition, seconds)
