"""A bolt that writes the state of tuples long after they came, when their key groups may have left: waves go on."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import State
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.control.events import Regrouped
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import at_rest
from support.cluster.wave_runs import start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 2000


class Hoarder(Bolt):
    """Collects rows as a part of its own state, and writes the last number of each key at a tick, when it is told to."""

    outputs: ClassVar[list[str]] = ["key", "number", "count"]
    last = State()
    writes: ClassVar[bool] = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.held: dict[str, int] = {}

    def process(self, tup: Tuple) -> None:
        self.held[tup.values[0]] = tup.values[1]
        self.emit((*tup.values, 1))

    def process_tick(self, tup: Tuple) -> None:
        if self.writes:
            for key, number in self.held.items():
                self.last[key] = number

    def snapshot(self) -> Any:
        return dict(self.held)

    def restore(self, snapshot: Any) -> None:
        self.held = snapshot


class Hoards(Topology):
    config: ClassVar[dict[str, Any]] = {**parts.Exact.config, "topology.tick.tuple.freq.secs": 0.05}
    numbers = parts.Numbers.spec(par=2)
    hoarder = Hoarder.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = parts.FakeLedger.spec(inputs={hoarder: Grouping.SHUFFLE}, par=2)


def regrouped(monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster on which half of the groups of hoarder[0] have left it, and their keys are written there from now on."""
    cluster = start(Hoards, limit=LIMIT)
    cluster.run_until(lambda: all(len(task.component.held) > 5 for task in tasks(cluster, "hoarder")))
    until_wave(cluster, 1, "hoards")
    owners = cluster.master.topologies["hoards"].key_groups["hoarder"]
    leaving = [group for group, owner in enumerate(owners) if owner == 0]
    cluster.tell(Regrouped("hoards", "hoarder", dict.fromkeys(leaving, 1)))
    cluster.run_until(lambda: at_rest(cluster, "hoards"))
    monkeypatch.setattr(Hoarder, "writes", True)
    return cluster


def last_numbers(cluster: LocalCluster) -> dict[str, int]:
    found: dict[str, int] = {}
    for task in tasks(cluster, "hoarder"):
        for key, number in task.component.last.items():
            assert key not in found, f"{key} is in two tasks"
            found[key] = number
    return found


def test_waves_go_on_when_a_key_is_written_after_its_group_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = regrouped(monkeypatch)
    until_wave(cluster, 3, "hoards")
    monkeypatch.setattr(Hoarder, "writes", False)
    until_wave(cluster, 2, "hoards")
    assert len(last_numbers(cluster)) == parts.KEYS
    assert not next(task for task in tasks(cluster, "hoarder") if task.name.index == 0).component.last
    assert sum(task.meters.errors for task in tasks(cluster, "hoarder")) >= 2


@pytest.mark.parametrize("then", ["the task moves", "its groups return", "a worker dies"])
def test_a_key_of_a_group_that_has_left_does_not_stop_what_comes_next(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, task = regrouped(monkeypatch), TaskId("hoarder", 0)
    cluster.run(0.1)
    state = cluster.master.topologies["hoards"]
    epoch = state.epoch
    if then == "the task moves":
        cluster.move("hoards", task, (cluster.where("hoards")[task] + 1) % 3)
    elif then == "its groups return":
        cluster.tell(Regrouped("hoards", "hoarder", dict.fromkeys(range(0, 64), 0)))
    else:
        cluster.kill(cluster.where("hoards")[task])
    cluster.run_until(lambda: state.status == "running" and at_rest(cluster, "hoards"))
    until_wave(cluster, 3, "hoards")
    assert (state.epoch == epoch) == (then != "a worker dies"), cluster.said
    monkeypatch.setattr(Hoarder, "writes", False)
    until_wave(cluster, 1, "hoards")
    assert len(last_numbers(cluster)) == parts.KEYS
