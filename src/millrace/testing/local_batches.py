"""Runs batches of a topology without Spark: processes are objects, the shuffle is lists, and tests inject failures."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from millrace.config import CHECKPOINTS
from millrace.control.assignment import Place, TopologyAssignment, WorkerAddress
from millrace.control.backup_placement import backups
from millrace.control.batches.actions import lacks_state, run_steps
from millrace.control.batches.decisions import REPAIR_ROUNDS, Batches, start_from
from millrace.control.batches.steps import (
    BatchDone,
    BatchStep,
    Collect,
    CommitSinks,
    Life,
    Rest,
    Rewrite,
    RunAttempt,
    WriteRows,
)
from millrace.control.submission import Resume
from millrace.errors import CheckpointMissing
from millrace.microbatch import records
from millrace.microbatch.batch_checkpoints import BatchCheckpoints
from millrace.microbatch.driver import BatchDriver
from millrace.microbatch.fragment_holder import FragmentHolder
from millrace.microbatch.host import Out, TopologyHost
from millrace.microbatch.work import Attempt, BatchWork, PartitionReport, check_single_run, read_report
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import initial_key_groups, rescaled_key_groups
from millrace.runtime.checkpoints.resumption import StartOnStore
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import KEPT, Checkpoints
from millrace.runtime.clock import Clock
from millrace.runtime.wire.transport import Keys
from millrace.runtime.worker.process import WorkerSetup
from millrace.state.checkpoint import Manifest, TaskRecord

InjectedFault = Callable[[int, int], bool]  # (stage, partition) -> True if the attempt breaks off after it


class AttemptFailed(Exception):
    """A step was made to fail, or something was raised in a process: a Spark job that fails."""


@contextmanager
def _as_job() -> Iterator[None]:
    """Turn an error in a process into the one that Spark's driver would see: a job has failed, or has missed state."""
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:  # tests raise one that user code cannot catch
        raise (CheckpointMissing if lacks_state(error) else AttemptFailed)(str(error)) from error


class LocalBatches(BatchDriver):
    """Runs one topology as `millrace.control.batches.decisions` decides.

    There are `processes` Python processes; `choose` names the one that runs a partition, by its first task. `clock`: the time
    for all of them. `holds`: they hold fragments for each other, through real sockets; end with `close`. `resume`: continue
    from the newest checkpoint in the store. `repair_rounds`: see `Batches`."""

    transport_errors: tuple[type[Exception], ...] = (AttemptFailed,)

    def __init__(self, graph: TopologyGraph, store: str, processes: int = 2, seed: int = 0, most_tuples: int = 100,
                 clock: Clock | None = None, holds: bool = False, resume: Resume = False,
                 repair_rounds: int = REPAIR_ROUNDS) -> None:
        self.store, self.most_tuples, self.clock = store, most_tuples, clock
        self.setup = WorkerSetup(f"local-{uuid.uuid4().hex[:8]}", "", Keys.make() if holds else Keys(b"", b""),
                                 settings={CHECKPOINTS.key: store})
        self.holds = holds
        self.addresses: dict[int, WorkerAddress] = {}  # of processes that hold fragments
        self.version = 1
        self.checkpoints = Checkpoints(open_store(store), graph.name)
        began = StartOnStore(graph, self.checkpoints, store, self.setup.cluster).submission(resume)
        graph = self.graph = began.graph
        self.key_groups = {component.name: initial_key_groups(graph.key_groups, component.par)
                           for component in graph.bolts if component.keyed}
        self.earlier = began.earlier
        epochs = itertools.count(began.after[0] + 1)
        start = start_from(began.checkpoint, next(epochs))
        super().__init__(BatchCheckpoints(self.checkpoints),
                         Batches(graph, start, lambda: next(epochs), keep=KEPT, repair_rounds=repair_rounds))
        self._store.begin(start.committed)
        self.random = random.Random(seed)
        self.processes: list[TopologyHost | None] = [None] * processes
        self.fault: InjectedFault = lambda stage, partition: False
        self.before_publishing: Callable[[], None] = lambda: None  # may raise
        # Spark may take any process.
        self.choose: Callable[[TaskId], int] = lambda task: self.random.randrange(len(self.processes))
        self.most_records: int | None = None  # taken from a partition before the attempt breaks off
        self.last = 0  # the process that ran something last
        self._error: BaseException = AttemptFailed("nothing has failed yet")  # of the last step that failed, as it was raised

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
        end = run_steps(self._begin(), self.decider, self)
        assert isinstance(end, BatchDone) and end.ran, end
        return self._committed()[1]

    def _begin(self) -> BatchStep:
        step = self.decider.step
        if isinstance(step, Rest):
            return self.decider.rested()
        wave = self.committed.wave if self.committed is not None else self.decider.base
        return self.decider.offered(self.decider.batch_of(wave + 1)) if isinstance(step, BatchDone) else step

    # -- actions -------------------------------------------------------------------------------------------------------

    def life(self) -> Life:
        return Life.RUNNING

    def note_failure(self, error: Exception) -> Life:
        self._error = (isinstance(error, AttemptFailed | CheckpointMissing) and error.__cause__) or error
        return self.life()

    def rest(self, step: Rest) -> None:
        raise self._error

    def await_plan(self) -> int:
        return self.version

    def _prepare(self, step: RunAttempt) -> BatchWork:
        return self.work(step.wave, step.epoch)

    def _rewrite(self, attempt: Attempt, work: BatchWork, step: Rewrite) -> list[TaskRecord]:
        with _as_job():
            rewritten = [self._process(work, record.task).rewrite(record, step.lost) for record in work.records]
        return [record for record in rewritten if record is not None]

    def commit_sinks(self, step: CommitSinks) -> None:
        with _as_job():
            self.before_publishing()
            work = self.work(self.decider.restore[0], step.epoch, step.graph)
            for task in step.tasks:
                self._process(work, task).commit(task)

    def write_rows(self, step: WriteRows) -> None:
        raise AssertionError("there is no Spark to write rows")

    def collect(self, step: Collect) -> None:
        self.checkpoints.collect(epoch=step.epoch) if step.names is None else self.checkpoints.discard(step.names)

    # -- work ----------------------------------------------------------------------------------------------------------

    def work(self, wave: int, epoch: int, graph: TopologyGraph | None = None) -> BatchWork:
        """The work of a batch under the current plan; `graph`: as it was committed, to publish."""
        graph = graph if graph is not None else self.graph
        slots = {task: self.place(task) for task in sorted(graph.tasks())}
        nodes = {slot: f"node-{slot}" for slot in range(len(self.processes))} if self.holds else {}
        assignment = TopologyAssignment(1, graph, self.version, True,
                                        [(task, Place(slot, 1)) for task, slot in slots.items()], self.key_groups, [], 0, epoch,
                                        self.decider.restore, *backups(graph, slots, nodes), self.earlier)
        return BatchWork("run", ["run"], wave, assignment, self.committed.records if self.committed is not None else [], {},
                         list(self.addresses.values()), self.setup, self.most_tuples, 60.0, holds=self.holds)

    def _run(self, attempt: Attempt) -> list[PartitionReport]:
        stages = attempt.stages
        arrived: list[list[bytes]] = [[] for _ in stages.partitions[0]]
        reports: list[PartitionReport] = []
        for stage in range(stages.count):
            last = stage + 1 == stages.count
            out: list[list[bytes]] = [[] for _ in (stages.partitions[0] if last else stages.partitions[stage + 1])]
            for partition in range(len(stages.partitions[stage])):
                self.random.shuffle(arrived[partition])  # a shuffle delivers blocks in any order
                for target, record in self._run_partition(attempt, stage, partition, arrived[partition]):
                    if not last:
                        out[target].append(record)
                    elif records.unpack(record).kind == records.REPORT:
                        reports.append(read_report(records.unpack(record).body))
                if self.fault(stage, partition):
                    raise AttemptFailed(f"after partition {partition} of stage {stage}")
            assert last or all(out), "a partition is empty"
            arrived = out
        assert not check_single_run(reports, stages)
        self.addresses.update({report.slot: report.address for report in reports if report.address is not None})
        return reports

    def _run_partition(self, attempt: Attempt, stage: int, partition: int, arrived: list[bytes]) -> Out:
        with _as_job():
            host = self._process(attempt.work, attempt.stages.partitions[stage][partition][0])
            for number, each in enumerate(host.run_partition(attempt.stages, stage, partition, arrived)):
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
