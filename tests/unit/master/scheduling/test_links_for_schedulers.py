"""Costs of links go only to schedulers that need them: there may be one for each pair of nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.control.assignment import WorkerAddress
from millrace.control.events import ClusterMeasured, Event, Say
from millrace.control.scheduling.schedule_generator import Choice
from millrace.control.workers import WorkerView, cluster_from
from millrace.master.scheduling.loop import NOTHING_CHOSEN, SchedulingLoop
from millrace.model.cluster import Cluster, Node
from millrace.schedulers.registry import make_scheduler

COSTS = {("a", "b"): 7.0}


class Port(SimpleNamespace):
    """A master with workers on two nodes and no topology."""

    def __init__(self) -> None:
        workers = {slot: WorkerView(WorkerAddress(slot, 1, name, name, "ipc", ""), "e", Node(name, 1, 1000.0, 64))
                   for slot, name in enumerate("ab")}
        super().__init__(state=SimpleNamespace(topologies={}, workers=workers, cluster=self.cluster), observed={})
        self.measured = ClusterMeasured()

    def cluster(self) -> Cluster:
        return cluster_from(self.state.workers, self.measured.others, self.measured.links)

    def processes(self) -> dict[int, Any]:
        return {}

    def say(self, message: Say) -> None:
        raise AssertionError(message.text)

    def tell(self, event: Event) -> None:
        if isinstance(event, ClusterMeasured):
            self.measured = event


@pytest.fixture
def loop(tmp_path: Path) -> SchedulingLoop:
    path = tmp_path / "links.toml"
    path.write_text('[[links]]\nbetween = ["a", "b"]\ncost = 7')
    settings = {"history.url": "none", "cluster.links.file": str(path)}
    return SchedulingLoop("c", settings, Port())  # type: ignore[arg-type]


@pytest.mark.parametrize(("choice", "links"), [
    (NOTHING_CHOSEN, {}),
    (Choice.of("tstorm", make_scheduler("tstorm")), {}),
    (Choice.of("tstorm", make_scheduler("tstorm", {"minimise": "bytes"})), {}),
    (Choice.of("tstorm", make_scheduler("tstorm", {"minimise": "cost"})), COSTS),
    (Choice.of("resource-aware", make_scheduler("resource-aware")), {}),
    (Choice("mine:Own", {}, 300.0), COSTS),
])
def test_only_schedulers_that_minimise_costs_and_those_of_users_get_them(loop: SchedulingLoop, choice: Choice,
                                                                        links: dict[tuple[str, str], float]) -> None:
    loop.generator.set(choice, loop.generator.policy)
    loop.end_window(loop._first + 20.0)
    assert loop.situation().cluster.links == links
    assert loop.situation_with_links().cluster.links == COSTS, "for a file that is saved to be compared and simulated"
