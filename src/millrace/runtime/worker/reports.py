"""Builds the periodic report of a worker to the master: meters, positions, tuples in flight, errors, counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millrace.errors import StateNotKept
from millrace.model.graph import ACKER, TaskId
from millrace.runtime.meters import Meters
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task
    from millrace.runtime.worker.topology_run import TopologyRun
    from millrace.runtime.worker.worker import Worker

TO_ACKER_BYTES, FROM_ACKER_BYTES = 19, 9  # of a message about one root, as encoded: (root, XOR of chunk ids), and the root


class Reports:
    """Reports of one worker. Counters only rise; latencies and errors are those since the last report."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._warned: set[Task] = set()  # of keyed state that no wave saves
        self._left: list[tuple[int, int, int]] = []  # positions of spouts that have ended since the last report

    def make(self) -> wire.Report:
        worker = self._worker
        tasks, positions, reached, self._left = [], self._left, [], []
        in_flight = {number: 0 for number in worker.topologies}
        starting = Counter(task.topology.number for run in worker.topologies.values() for task in run.tasks.values()
                           if not task.started)
        topologies = [wire.TopologyReport(run.number, run.meters.take_buckets(), run.meters.flow(
            task.meters for task in run.everyone())) for run in worker.topologies.values()]
        now = worker.clock.now()
        for run in worker.topologies.values():
            for task in list(run.tasks.values()):
                task.count_blocked(now)
                task.count_groups()
                lag = task.lag.reported() if isinstance(task, SpoutTask) else None
                tasks.append({"topology": run.number, "task": task.number, "incarnation": task.incarnation, "lag": lag,
                              "queue_length": task.queue_length, "passed": task.waves.has_passed(), **task.meters.report(),
                              **_traffic(task),
                              "key_groups": {component: counts.tolist()
                                             for component, counts in task.group_counts.items()},
                              "heavy_keys": {component: keys.shares() for component, keys in task.heavy_keys.items()}})
                self._check_state(task)
                in_flight[run.number] += task.queue_length + task.waiting() + (0 if task.idle() else 1)
                if isinstance(task, SpoutTask):
                    positions += self._positions(task)
                    task.lag.ask()  # last, because the call may go on after the report: the task counts as busy then
            reached += [(run.number, run.graph.source_number(source), sent.reached) for source, sent in run.sent.items()]
            in_flight[run.number] += sum(not task.idle() for task in run.handovers)
        return wire.Report(worker.slot, worker.generation, worker.revision, worker.clock.now(), tasks, positions,
                           list(in_flight.items()), list(starting.items()), worker.errors.take(),
                           {**worker.counters, **worker.checkpoints.counters}, topologies=topologies,
                           hosted=sum(len(run.everyone()) + len(run.ackers) for run in worker.topologies.values()),
                           reached=reached, ackers=[acker for run in worker.topologies.values() for acker in _ackers(run)])

    def ended(self, task: Task) -> None:
        """Report the position of a spout that ends here and is to start elsewhere once more."""
        if isinstance(task, SpoutTask):
            self._left += self._positions(task)

    def _positions(self, task: SpoutTask) -> list[tuple[int, int, int]]:
        run = task.topology
        return [(run.number, run.graph.source_number(source), position)
                for source, position in task.position.reported().items()]

    def _check_state(self, task: Task) -> None:
        """Warn once of keyed state in a topology that runs no waves because no class declares state."""
        state = task.snapshots.state
        if state is None or task.topology.graph.waves or task in self._warned or not any(map(len, state.states.values())):
            return
        self._warned = {warned for warned in self._warned if not warned.ended} | {task}
        self._worker.errors.add(task, StateNotKept(
            f"{task.name} keeps keyed state, but its class does not declare any, so no wave saves it: declare it in the "
            "class, for example `state = State()`"), [], None)


def _traffic(task: Task) -> dict[str, dict[int, int]]:
    """Tuples and bytes that the task has sent to each task, ackers included."""
    graph, channels = task.topology.graph, task.channels
    messages = {graph.number(TaskId(ACKER, index)): count for index, count in task.to_ackers.items() if index < graph.ackers}
    return {"traffic": {number: channel.tuples for number, channel in channels.items()} | messages,
            "traffic_bytes": {number: channel.bytes for number, channel in channels.items()}
            | {number: count * TO_ACKER_BYTES for number, count in messages.items()}}


def _ackers(run: TopologyRun) -> Iterator[dict[str, Any]]:
    """The ackers of the topology that run in this worker, reported like tasks."""
    for index, incarnation in run.ackers.items():
        ledger, meters = run.tracker.ledgers[index], Meters()
        meters.executed, meters.emitted = ledger.handled, sum(ledger.told.values())
        meters.transferred = meters.emitted
        meters.cpu_seconds = meters.busy_seconds = run.tracker.cpu_seconds[index]
        yield {"topology": run.number, "task": run.graph.number(TaskId(ACKER, index)), "incarnation": incarnation,
               "queue_length": 0, **meters.report(), "traffic": dict(ledger.told),
               "traffic_bytes": {number: count * FROM_ACKER_BYTES for number, count in ledger.told.items()}}
