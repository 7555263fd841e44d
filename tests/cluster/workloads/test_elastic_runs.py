"""The elastic topologies on a whole cluster: exact although their parallelism changes under load and a worker dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millrace.api.topology import Topology
from millrace.connectors.load import LoadSpout
from millrace.connectors.patterns import step
from millrace.connectors.shifting_keys import ShiftingKeys
from millrace.control.events import Paused, Rescaled, Unpaused
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from millrace.workloads.elastic import ElasticLoad, LoadAudit, OrderedElasticLoad, audit_load
from millrace.workloads.services import ServiceBolt
from support.cluster.workload_runs import NAME, WorkloadRun

SENT = {0: 600}
LOAD = {"pattern": "step", "rate": 100.0, "peak": 300.0, "at": 1.0, "keys": 32, "zipf": 1.0, "shift": 0.5}
EACH = pytest.mark.parametrize("topology", [ElasticLoad, OrderedElasticLoad])


class ElasticRun(WorkloadRun):
    """A run in virtual time: calls of a service take none, because they would stop all tasks of the cluster."""

    def __init__(self, topology: type[Topology], path: Path, patch: pytest.MonkeyPatch, **config: Any) -> None:
        cluster = LocalCluster(workers=3, nodes=3, settings={"recovery.grace.secs": 0.1})
        patch.setattr(LoadSpout, "clock", staticmethod(cluster.clock.now))
        patch.setattr(LoadSpout, "wall_clock", staticmethod(cluster.clock.now))
        patch.setattr(ServiceBolt, "wait", staticmethod(lambda seconds: None))
        self._path, self._ordered = path, topology is OrderedElasticLoad
        super().__init__(topology, path, "exactly-once", SENT, cluster, **LOAD, **config)

    def scale(self, **par: int) -> None:
        self.cluster.tell(Rescaled(NAME, par))
        self.cluster.run_until(lambda: self.state.scaling is None)
        assert {name: self.state.graph.component(name).par for name in par} == par

    def result(self) -> LoadAudit:
        self.end()
        return audit_load(self._path, SENT, step(100.0, 300.0, 1.0), ShiftingKeys(32, 1.0, 0.5), self._ordered)


@EACH
def test_every_tuple_arrives_once(topology: type[Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ElasticRun(topology, tmp_path, monkeypatch)
    run.until_processed()
    assert run.result().exact


@EACH
def test_the_parallelism_changes_under_load(topology: type[Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ElasticRun(topology, tmp_path, monkeypatch)
    run.until_sent(0.2)
    run.scale(service=5, count=4)
    run.until_sent(0.5)
    run.kill_worker_of(TaskId("count", 3))
    run.until_sent(0.7)
    run.scale(service=1, count=3)
    run.until_processed()
    assert run.result().exact


def test_a_source_that_cannot_send_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause does not move the timetable: the tuples that are due meanwhile come at once afterwards."""
    run = ElasticRun(ElasticLoad, tmp_path, monkeypatch)
    run.until_sent(0.2)
    [spout] = [task.component for task in run.cluster.tasks("load")]
    run.cluster.tell(Paused(NAME))
    run.cluster.run(seconds=1.0)
    assert spout.lag() >= 200
    run.cluster.tell(Unpaused(NAME))
    run.cluster.run(seconds=0.5)
    assert spout.lag() <= 10
    run.until_processed()
    assert run.result().exact
