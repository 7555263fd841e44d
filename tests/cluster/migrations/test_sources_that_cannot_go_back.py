"""At least once, with a spout that sends a failed tuple again but cannot go back to a wave: a strategy is refused if it would
let a task with state go back, and the others lose nothing."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.spout import ReliableSpout
from millrace.api.topology import Topology
from millrace.control.events import Rebalanced
from millrace.control.strategies.catalogue import STRATEGIES
from millrace.errors import TopologyError
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster.wave_parts import AtLeast, FakeLedger, Pass, Tally
from support.cluster.wave_runs import counts, expected_counts, tasks, until_wave
from support.migrations.quick import QUICK

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT, WORKERS, SPOUTS_SLOT = 2000, 5, 0
GO_BACK = {"rollback", "storm", "storm*", "dsm", "nstorm", "nstorm+"}
KEPT = [name for name, strategy in STRATEGIES.items() if name not in GO_BACK and not strategy.exactly_once]


class OnlyForward(ReliableSpout):
    outputs: ClassVar[list[str]] = ["key", "number"]
    sent = 0

    def next_tuple(self) -> None:
        for number in range(self.sent, min(LIMIT, self.sent + 5)):
            self.emit([f"k{number % 17}", number], tup_id=number)
            self.sent = number + 1


class Forward(Topology):
    config: ClassVar[dict[str, Any]] = {**AtLeast.config, "topology.acker.executors": 1}
    numbers = OnlyForward.spec()
    passed = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    tally = Tally.spec(inputs={passed: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs={tally: Grouping.SHUFFLE})


def running() -> LocalCluster:
    """A cluster in which the spout and the acker have a worker of their own."""
    cluster = LocalCluster(WORKERS, nodes=WORKERS)
    cluster.submit(Forward)
    state = cluster.master.topologies["forward"]
    cluster.run_until(lambda: state.status == "running")
    cluster.tell(Rebalanced("forward", {task: 1 + number % 2 for number, task in enumerate(sorted(state.places))
                                        if task.component in ("passed", "tally", "ledger", "__acker")}))
    cluster.run_until(lambda: state.migration is None and state.handover.at_rest)
    assert state.places[TaskId("numbers", 0)].slot == SPOUTS_SLOT
    until_wave(cluster, 1, "forward")
    return cluster


def migrate(cluster: LocalCluster, component: str, strategy: str) -> None:
    cluster.tell(Rebalanced("forward", {TaskId(component, 0): 4}, strategy, QUICK.get(strategy, {})))
    state = cluster.master.topologies["forward"]
    cluster.run_until(lambda: state.migration is None)
    assert cluster.where("forward")[TaskId(component, 0)] == 4
    [spout] = tasks(cluster, "numbers")
    cluster.run_until(lambda: spout.component.sent == LIMIT and not spout.component.unacked_tuples)
    counted, truth = counts(cluster), expected_counts(LIMIT, 1)
    assert all(counted[key] >= truth[key] for key in truth), "state is missing"


@pytest.mark.parametrize("strategy", sorted(GO_BACK))
def test_a_task_with_state_does_not_go_back(strategy: str) -> None:
    cluster = running()
    why = r"storm restarts worker 0 with numbers\[0\], which would lose tuples" if strategy == "storm" else \
        "lets .* go back to the state of a wave, and the source of 'numbers' cannot be replayed"
    with pytest.raises(TopologyError, match=why):
        migrate(cluster, "tally", strategy)
    assert cluster.master.topologies["forward"].migration is None


@pytest.mark.parametrize("strategy", KEPT)
def test_strategies_that_keep_the_state(strategy: str) -> None:
    migrate(running(), "tally", strategy)


@pytest.mark.parametrize("strategy", ["handover", "nstorm", "nstorm+"])
def test_tasks_without_state_move_by_any_strategy_that_ends_no_other(strategy: str) -> None:
    migrate(running(), "passed", strategy)
