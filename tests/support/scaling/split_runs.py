"""Topologies whose spout has splits, and helpers to scale it while it runs and to compare what came of it with the truth."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, ClassVar

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.generator import GeneratorSpout
from millrace.control.waves import IDLE
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.slow_parts import SlowLedger
from support.cluster.wave_parts import KEYS, AtLeast, AtMost, Exact, FakeLedger, Numbers, Pass, expected_counts, expected_rows
from support.cluster.wave_runs import counts, tasks, until_wave, visible
from support.scaling.scaled_runs import Counting

SPLITS = 8
SPLIT = {"splits": SPLITS}


class SplitExact(Topology):
    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = Numbers.spec(par=2, config=SPLIT)
    one = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class SplitSlowly(Topology):
    """Exactly once, with a sink that takes time for every row: the inboxes before it are full."""

    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = Numbers.spec(par=2, config=SPLIT)
    one = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = SlowLedger.spec(inputs={one: Grouping.fields("key")}, par=2)


class SplitAtLeast(Topology):
    config: ClassVar[dict[str, Any]] = AtLeast.config
    numbers = Numbers.spec(par=2, config=SPLIT)
    one = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class SplitAtMost(Topology):
    config: ClassVar[dict[str, Any]] = AtMost.config
    numbers = Numbers.spec(par=2, config=SPLIT)
    one = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    tally = Counting.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class PlainNumbers(GeneratorSpout):
    """As `Numbers`, without a snapshot."""

    outputs: ClassVar[list[str]] = ["key", "number"]

    def generate(self, position: int) -> tuple[Any, ...]:
        number = self.ordinal(position)
        return f"k{number % KEYS}", number


class SplitPlain(Topology):
    """At least once without state: positions are in no wave, only with the master."""

    config: ClassVar[dict[str, Any]] = AtLeast.config
    numbers = PlainNumbers.spec(par=2, config=SPLIT)
    one = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)


class SplitPlainAtMost(Topology):
    config: ClassVar[dict[str, Any]] = AtMost.config
    numbers = PlainNumbers.spec(par=2, config=SPLIT)
    one = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)


def splits_of(cluster: LocalCluster) -> dict[int, list[int]]:
    """The splits that each running task of the spout reads."""
    return {task.name.index: sorted(task.component.parts) for task in tasks(cluster, "numbers")}


def owned(cluster: LocalCluster, name: str) -> dict[int, list[int]]:
    """The splits of each task by the plan."""
    state = cluster.master.topologies[name]
    return {index: [split for split, owner in enumerate(state.key_groups["numbers"]) if owner == index]
            for index in range(state.graph.component("numbers").par)}


def all_sent(cluster: LocalCluster, name: str) -> bool:
    """True if every split is at its end and, at least once, everything is acked."""
    state, spouts = cluster.master.topologies[name], [task.component for task in tasks(cluster, "numbers")]
    return (state.status == "running" and state.scaling is None and state.handover.at_rest
            and sorted(split for spout in spouts for split in spout.parts) == list(range(SPLITS))
            and all(spout.exhausted and not spout.unacked_tuples for spout in spouts))


def end(cluster: LocalCluster, name: str) -> None:
    """Run until everything is sent and processed and, exactly once, committed."""
    exactly_once = cluster.master.topologies[name].graph.exactly_once
    cluster.run_until(lambda: all_sent(cluster, name))
    if exactly_once:
        until_wave(cluster, 1, name)  # by then the master has noticed every lost worker
        cluster.run_until(lambda: all_sent(cluster, name))
        cluster.stop(name, wait=100)
        cluster.run_until(lambda: name not in cluster.master.topologies)
    else:
        cluster.run(0.5)


def assert_numbers_once(limit: int, rows: Any = None) -> None:
    """Every number below the limit came once."""
    assert Counter(number for _, number, *_ in (parts.VISIBLE if rows is None else rows)) == Counter(range(limit))


def assert_in_order() -> None:
    """The first bolt got the rows of a key and a split in the order of their numbers, whichever task read the split."""
    lines = defaultdict[tuple[str, int], list[int]](list)
    for _, sender, key, number in parts.RECEIVED:
        if sender >> 16 == 1:  # of the spout, which is the first component
            lines[key, number % SPLITS].append(number)
    wrong = [(line, pair) for line, numbers in lines.items() for pair in pairwise(numbers) if pair[0] >= pair[1]]
    assert lines and not wrong, wrong[:5]


def assert_counted(cluster: LocalCluster, limit: int) -> None:
    """Every row was counted and written once. Not for exactly-once."""
    assert counts(cluster) == expected_counts(limit, 1)
    assert Counter((key, number) for key, number, _ in parts.WRITTEN) == expected_rows(limit, 1)


def assert_exact_rows(limit: int) -> None:
    assert visible() == expected_rows(limit, 1)


def idle(cluster: LocalCluster, name: str) -> bool:
    waves = cluster.master.topologies[name].waves
    return waves is None or waves.phase == IDLE
