"""Topologies whose every bolt can be scaled, and helpers to scale them while they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.control.events import Rescaled
from millrace.testing.local_cluster import LocalCluster
from support.cluster import slow_parts
from support.cluster.slow_parts import Burst, SlowLedger, spend
from support.cluster.wave_parts import RECEIVED, AtLeast, AtMost, Exact, FakeLedger, Numbers, Pass, PassRows

PAIRS = [(1, 2), (2, 3), (3, 7), (4, 8), (20, 21)]


class Counting(Bolt):
    """Counts by key, in keyed state only."""

    outputs: ClassVar[list[str]] = ["key", "number", "count"]
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        key, number = tup.values
        RECEIVED.append((self.task_id, tup.task, key, number))
        self.emit((key, number, self.counts.add(key)))


class ScaledExact(Topology):
    """Exactly once: two inputs of the tally, one of which reads from two components, and a sink that commits."""

    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    two = PassRows.spec(inputs={one: Grouping.SHUFFLE}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key"), two: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class ScaledSlowly(Topology):
    """Exactly once, with a sink that takes time for every row: the inboxes before it are full."""

    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = SlowLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class ScaledUnionSlowly(Topology):
    """The same, with two inputs of the tally, one of which reads from two components."""

    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    two = PassRows.spec(inputs={one: Grouping.SHUFFLE}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key"), two: Grouping.fields("key")}, par=3)
    ledger = SlowLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class ScaledSlowlyTracked(Topology):
    """As `ScaledSlowly`, at least once."""

    config: ClassVar[dict[str, Any]] = AtLeast.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = SlowLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class ScaledSlowlyUntracked(Topology):
    """The same, at most once."""

    config: ClassVar[dict[str, Any]] = AtMost.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = SlowLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class SlowCounting(Counting):
    def process(self, tup: Tuple) -> None:
        spend(1)
        super().process(tup)


class ScaledBursts(Topology):
    """Exactly once, with a slow bolt that has minutes of work in its inboxes: waves overtake it."""

    config: ClassVar[dict[str, Any]] = {
        "topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 1000.0,
        "topology.checkpoint.aligned.secs": 4.0, "topology.checkpoint.timeout.secs": 1000.0,
        "topology.handover.prepare.secs": 10_000.0, "topology.handover.switch.secs": 10_000.0}
    numbers = Numbers.spec(par=2)
    burst = Burst.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    tally = SlowCounting.spec(inputs={burst: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class ScaledSlowlyAtLeast(Topology):
    """At least once, with a slow bolt behind one that can retire: what a task sends last is on its way for a while."""

    config: ClassVar[dict[str, Any]] = AtLeast.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=4)
    tally = SlowCounting.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class ScaledAtLeast(Topology):
    config: ClassVar[dict[str, Any]] = AtLeast.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class ScaledAtMost(Topology):
    config: ClassVar[dict[str, Any]] = AtMost.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class ScaledUnionAtLeast(Topology):
    """At least once, with two inputs of the tally, one of which reads from two components."""

    config: ClassVar[dict[str, Any]] = AtLeast.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    two = PassRows.spec(inputs={one: Grouping.SHUFFLE}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key"), two: Grouping.fields("key")}, par=3)
    ledger = SlowLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class ScaledUnionAtMost(Topology):
    """The same, at most once."""

    config: ClassVar[dict[str, Any]] = AtMost.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    two = PassRows.spec(inputs={one: Grouping.SHUFFLE}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key"), two: Grouping.fields("key")}, par=3)
    ledger = SlowLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


def name_of(topology: type[Topology]) -> str:
    return topology.__name__.lower()


def par_of(cluster: LocalCluster, name: str) -> dict[str, int]:
    return cluster.master.topologies[name].graph.parallelism


def scaled(cluster: LocalCluster, name: str) -> bool:
    """True if no change of parallelism is under way."""
    return cluster.master.topologies[name].scaling is None


def scale(cluster: LocalCluster, name: str, par: Mapping[str, int], seconds: float = 60.0) -> dict[str, Any]:
    """Scale, and wait until that is over; returns its record."""
    cluster.tell(Rescaled(name, par))
    cluster.run_until(lambda: scaled(cluster, name), seconds)
    return dict(cluster.migrations.past(name)[-1])


def slow_down(cluster: LocalCluster, per_row: float) -> None:
    """Let slow components take so many virtual seconds for each row from now on."""
    slow_parts.ADVANCE[:] = [cluster.clock.advance]
    slow_parts.SECONDS[:] = [0.0, per_row]
