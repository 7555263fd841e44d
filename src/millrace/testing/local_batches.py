"""Runs batches of a topology without Spark: processes are objects, the shuffle is lists, and tests inject failures."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import msgspec

from millrace.config import CHECKPOINTS
from millrace.control.assignment import Place, TopologyAssignment, WorkerAddress
from millrace.control.backup_placement import backups
from millrace.control.batch_steps import (
    MAY_FAIL,
    Announce,
    BatchDone,
    BatchStep,
    Collect,
    CommitPoint,
    CommitSinks,
    FindLost,
    Life,
    ReplaceManifest,
    Rest,
    Rewrite,
    RunAttempt,
    WriteRows,
)
from millrace.control.batches import Batches, start_from
from millrace.errors import CheckpointMissing
from millrace.microbatch import records
from millrace.microbatch.batch_actions import Attempted, carry_out
from millrace.microbatch.batch_checkpoints import BatchCheckpoints
from millrace.microbatch.fragment_holder import FragmentHolder
from millrace.microbatch.host import Out, TopologyHost
from millrace.microbatch.work import BatchWork, PartitionReport, one_cut, read_report, repair_work
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import initial_key_groups, rescaled_key_groups
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import KEPT, Checkpoints
from millrace.runtime.clock import Clock
from millrace.runtime.wire.transport import Keys
from millrace.runtime.worker.process import WorkerSetup
from millrace.state.checkpoint import Manifest, TaskRecord

InjectedFault = Callable[[int, int], bool]  # (stage, partition) -> whether the attempt breaks off after it


class AttemptFailed(Exception):
    """A step was made to fail, like a Spark job that fails."""


class LocalBatches:
    """Runs one topology by the decisions of `millrace.control.batches`. There are `processes` Python processes; `choose` names
    the one that runs a partition, by its first task. `clock`: the time for all of them. `holds`: they hold fragments for each
    other, through real sockets; end with `close`. `resume`: continue from the newest checkpoint in the store."""

    def __init__(self, graph: TopologyGraph, store: str, processes: int = 2, seed: int = 0, most_tuples: int = 100,
                 clock: Clock | None = None, holds: bool = False, resume: bool = False) -> None:
        self.graph, self.store, self.most_tuples, self.clock = graph, store, most_tuples, clock
        self.setup = WorkerSetup(f"local-{uuid.uuid4().hex[:8]}", "", Keys.make() if holds else Keys(b"", b""),
                                 settings={CHECKPOINTS.key: store})
        self.holds = holds
        self.addresses: dict[int, WorkerAddress] = {}  # of processes that hold fragments
        self.key_groups = {component.name: initial_key_groups(graph.key_groups, component.par)
                           for component in graph.bolts if component.keyed}
        self.version = 1
        self.checkpoints = Checkpoints(open_store(store), graph.name)
        self._store = BatchCheckpoints(self.checkpoints, self.setup.cluster)
        epochs = itertools.count(self.checkpoints.newest()[0] + 1)
        start = start_from(self.checkpoints.latest() if resume else None, next(epochs))
        self.decider = Batches(graph, start, lambda: next(epochs), keep=KEPT)
        self._store.begin(start.committed)
        self.random = random.Random(seed)
        self.processes: list[TopologyHost | None] = [None] * processes
        self.fault: InjectedFault = lambda stage, partition: False
        self.before_publishing: Callable[[], None] = lambda: None  # may raise
        # Spark may take any process.
        self.choose: Callable[[TaskId], int] = lambda task: self.random.randrange(len(self.processes))
        self.most_records: int | None = None  # taken from a partition before the attempt breaks off
        self.last = 0  # the process that ran something last
        self._ran: dict[int, BatchWork] = {}  # by epoch: the work of attempts whose manifest is, or may be, committed
        self._reports: list[PartitionReport] = []
        self._error: BaseException = AttemptFailed("nothing has failed yet")  # of the last step that failed

    @property
    def committed(self) -> Manifest | None:
        return self.decider.committed

    @property
    def epoch(self) -> int:
        return self.decider.epoch

    # -- plans ---------------------------------------------------------------------------------------------------------

    def scale(self, component: str, par: int) -> None:
        changed = tuple(replace(each, par=par) if each.name == component else each for each in self.graph.components)
        self.graph = replace(self.graph, components=changed)
        if component in self.key_groups:
            self.key_groups[component] = rescaled_key_groups(self.key_groups[component], par)
        self.version += 1

    def give(self, component: str, owners: Mapping[int, int]) -> None:
        """Give key groups to other tasks."""
        self.key_groups[component] = tuple(owners.get(group, owner) for group, owner in enumerate(self.key_groups[component]))
        self.version += 1

    def kill(self, process: int) -> None:
        killed, self.processes[process] = self.processes[process], None
        self.addresses.pop(process, None)
        if killed is not None and killed.holding is not None:
            killed.holding.close()

    def close(self) -> None:
        for process in range(len(self.processes)):
            self.kill(process)

    def place(self, task: TaskId) -> int:
        return task.index % len(self.processes)

    # -- batches -------------------------------------------------------------------------------------------------------

    def batch(self) -> list[PartitionReport]:
        """Run the next batch up to its end, or up to a step that fails: then raise its error. The call after that tries the
        failed step again, where Spark's driver would pause."""
        step = self._begin()
        while not isinstance(step, BatchDone):
            if isinstance(step, Rest):
                raise self._error
            step = self._carry_out(step)
        return self._reports

    def _begin(self) -> BatchStep:
        step = self.decider.step
        if isinstance(step, Rest):
            return self.decider.rested()
        wave = self.committed.wave if self.committed is not None else self.decider.base
        return self.decider.offered(self.decider.batch_of(wave + 1)) if isinstance(step, BatchDone) else step

    def _carry_out(self, step: BatchStep) -> BatchStep:
        try:
            report = carry_out(step, self.decider, self)
        except BaseException as error:  # tests raise one that user code cannot catch
            if not isinstance(step, MAY_FAIL):
                raise
            self._error = error
            return self.decider.failed(missing=isinstance(error, CheckpointMissing))
        return report()

    # -- actions -------------------------------------------------------------------------------------------------------

    def life(self) -> Life:
        return Life.RUNNING

    def await_plan(self) -> int:
        return self.version

    def run_attempt(self, step: RunAttempt) -> Attempted:
        work = msgspec.structs.replace(self.work(step.wave, step.epoch), good=list(step.good), again=step.attempt > 1,
                                       whole=step.whole)
        self._reports = reports = self._run(work)
        self._ran[step.epoch] = work
        self.addresses.update({report.slot: report.address for report in reports if report.address is not None})
        return Attempted(self.graph, self.version, [task.record for report in reports for task in report.tasks], 0.0)

    def find_lost(self, step: FindLost) -> Collection[str]:
        return self._store.lost(step.manifest)

    def rewrite(self, step: Rewrite) -> list[TaskRecord]:
        work = repair_work(self._ran[step.manifest.wave_epoch], step.manifest, step.records, step.epoch)
        rewritten = [self._process(work, record.task).rewrite(record, step.lost) for record in work.records]
        return [record for record in rewritten if record is not None]

    def commit(self, step: CommitPoint) -> None:
        self._store.commit(step.manifest)

    def replace_manifest(self, step: ReplaceManifest) -> None:
        self._store.enter(step.manifest)

    def announce(self, step: Announce) -> None:
        self._ran = {epoch: work for epoch, work in self._ran.items() if epoch == step.manifest.wave_epoch}

    def commit_sinks(self, step: CommitSinks) -> None:
        self.before_publishing()
        work = self.work(self.decider.restore[0], step.epoch, step.graph)
        for task in step.tasks:
            self._process(work, task).commit(task)

    def write_rows(self, step: WriteRows) -> None:
        raise AssertionError("there is no Spark to write rows")

    def collect(self, step: Collect) -> None:
        self.checkpoints.collect() if step.names is None else self.checkpoints.discard(step.names)

    # -- work ----------------------------------------------------------------------------------------------------------

    def work(self, wave: int, epoch: int, graph: TopologyGraph | None = None) -> BatchWork:
        """The work of a batch by the plan that is in force; `graph`: as it was committed, to publish."""
        graph = graph if graph is not None else self.graph
        slots = {task: self.place(task) for task in sorted(graph.tasks())}
        nodes = {slot: f"node-{slot}" for slot in range(len(self.processes))} if self.holds else {}
        assignment = TopologyAssignment(1, graph, self.version, True,
                                        [(task, Place(slot, 1)) for task, slot in slots.items()], self.key_groups, [], 0, epoch,
                                        self.decider.restore, *backups(graph, slots, nodes))
        return BatchWork("run", ["run"], wave, assignment, self.committed.records if self.committed is not None else [], {},
                         list(self.addresses.values()), self.setup, self.most_tuples, 60.0, holds=self.holds)

    def _run(self, work: BatchWork) -> list[PartitionReport]:
        stages = work.stages()
        arrived: list[list[bytes]] = [[] for _ in stages.partitions[0]]
        reports: list[PartitionReport] = []
        for stage in range(stages.count):
            last = stage + 1 == stages.count
            out: list[list[bytes]] = [[] for _ in (stages.partitions[0] if last else stages.partitions[stage + 1])]
            for partition in range(len(stages.partitions[stage])):
                host = self._process(work, stages.partitions[stage][partition][0])
                self.random.shuffle(arrived[partition])  # a shuffle delivers blocks in any order
                for target, record in self._taken(host.run_partition(stages, stage, partition, arrived[partition])):
                    if not last:
                        out[target].append(record)
                    elif records.unpack(record).kind == records.REPORT:
                        reports.append(read_report(records.unpack(record).body))
                if self.fault(stage, partition):
                    raise AttemptFailed(f"after partition {partition} of stage {stage}")
            assert last or all(out), "a partition is empty"
            arrived = out
        assert not one_cut(reports, stages)
        return reports

    def _taken(self, output: Out) -> Out:
        for number, each in enumerate(output):
            if number == self.most_records:
                raise AttemptFailed(f"after {number} records of a partition")
            yield each

    def _process(self, work: BatchWork, task: TaskId) -> TopologyHost:
        self.last = number = self.choose(task)
        process = self.processes[number]
        if process is None:
            holding = FragmentHolder(self.setup) if self.holds else None
            process = self.processes[number] = TopologyHost(work, number, holding)
            process.worker.clock = self.clock or process.worker.clock
        process.set_work(work)
        return process
