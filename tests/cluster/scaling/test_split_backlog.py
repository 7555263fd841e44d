"""Tuples that are due and not emitted stay so when a spout is scaled or moves under back-pressure: its timetable goes along."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.load import LoadSpout
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster.slow_parts import spend
from support.cluster.wave_runs import tasks
from support.scaling.scaled_runs import name_of, scale, slow_down

SPLITS, RATE = 8, 400.0


class Paced(GeneratorSpout):
    outputs: ClassVar[list[str]] = ["number"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return (self.ordinal(position),)


class SlowEnd(Bolt):
    def process(self, tup: Tuple) -> None:
        spend(1)


class SlowLoad(Topology):
    """More tuples are due than the bolt can process."""

    config: ClassVar[dict[str, Any]] = {"topology.chunk.tuples": 4, "topology.max.spout.pending": 8, "rate": RATE, "burst": 4,
                                        "topology.message.timeout.secs": 100.0}
    load = LoadSpout.spec(par=2, config={"splits": SPLITS})
    slow = SlowEnd.spec(inputs={load: Grouping.SHUFFLE})


class SlowPaced(Topology):
    """The same, with a generator that has a rate."""

    config: ClassVar[dict[str, Any]] = SlowLoad.config
    load = Paced.spec(par=2, config={"splits": SPLITS})
    slow = SlowEnd.spec(inputs={load: Grouping.SHUFFLE})


class SlowTask(Topology):
    """The same, with one task and no splits."""

    config: ClassVar[dict[str, Any]] = SlowLoad.config
    load = LoadSpout.spec(par=1)
    slow = SlowEnd.spec(inputs={load: Grouping.SHUFFLE})


@pytest.fixture(params=["exactly-once", "at-least-once", "at-most-once"])
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def held_up(topology: type[Topology], guarantee: str, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster whose spout is seconds behind its timetable."""
    cluster = LocalCluster(workers=3, nodes=3)
    for spout in (LoadSpout, Paced):
        monkeypatch.setattr(spout, "clock", staticmethod(cluster.clock.now))
        monkeypatch.setattr(spout, "wall_clock", staticmethod(cluster.clock.now))
    cluster.submit(topology, config={"topology.guarantee": guarantee})
    cluster.run_until(lambda: cluster.master.topologies[name_of(topology)].status == "running")
    slow_down(cluster, 0.01)
    cluster.run(0.5)
    return cluster


def offered(cluster: LocalCluster) -> float:
    """Tuples that the spout has emitted and those that are due, beyond what its rate amounts to until now."""
    return sum(part.lag() + part._next_position for part in instances(cluster)) - RATE * cluster.clock.now()


def instances(cluster: LocalCluster) -> list[Any]:
    """The instances that read the splits, or the one of a spout without splits."""
    spouts = [task.component for task in tasks(cluster, "load")]
    return [part for spout in spouts for part in getattr(spout, "parts", {0: spout}).values()]


@pytest.mark.parametrize("topology", [SlowLoad, SlowPaced])
def test_scaling_the_spout_keeps_its_backlog(topology: Any, guarantee: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = held_up(topology, guarantee, monkeypatch)
    before = offered(cluster)
    for par in (5, 1, 8):
        assert scale(cluster, name_of(topology), {"load": par}, seconds=600)["outcome"] == "done", cluster.said
        cluster.run_until(lambda: len(instances(cluster)) == SPLITS)  # the old owners have dropped theirs
        assert offered(cluster) == pytest.approx(before, abs=SPLITS)
    assert sum(task.component.lag() for task in tasks(cluster, "load")) > RATE


@pytest.mark.parametrize("topology", [SlowLoad, SlowPaced, SlowTask])
def test_a_task_that_moves_keeps_its_backlog(topology: Any, guarantee: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, name, task = held_up(topology, guarantee, monkeypatch), name_of(topology), TaskId("load", 0)
    before = offered(cluster)
    cluster.move(name, task, (cluster.where(name)[task] + 1) % 3)
    cluster.run_until(lambda: cluster.master.topologies[name].handover.at_rest, 600)
    assert [record["outcome"] for record in cluster.migrations.past(name)] == ["done"], cluster.said
    assert offered(cluster) == pytest.approx(before, abs=SPLITS)
