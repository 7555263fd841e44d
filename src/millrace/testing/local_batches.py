"""Batches of a topology without Spark: processes are objects, the shuffle is lists, and whatever can fail fails on demand."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from millrace.config import CHECKPOINTS
from millrace.control.assignment import Place, TopologyAssignment, WorkerAddress
from millrace.control.backup_placement import backups
from millrace.errors import CheckpointMissing
from millrace.microbatch import records as frames
from millrace.microbatch.checkpoints import BatchCheckpoints
from millrace.microbatch.fragment_holder import Holding
from millrace.microbatch.host import Hosted, Out
from millrace.microbatch.repair import damaged, mended, mending_work
from millrace.microbatch.work import BatchWork, PartitionReport, one_cut, read_report
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import initial_key_groups, rescaled_key_groups
from millrace.runtime.checkpoints.checkpoints import Checkpoints
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.clock import Clock
from millrace.runtime.wire.transport import Keys
from millrace.runtime.worker.process import WorkerSetup
from millrace.state.checkpoint import Manifest

Fault = Callable[[int, int], bool]  # (stage, partition) -> whether the attempt breaks off after it


class AttemptFailed(Exception):
    """As a failed Spark job: nothing of the attempt is to count."""


class LocalBatches:
    """Runs one topology, `processes` Python processes as Spark would have them; each partition in one that `choose` names, by
    its first task. `whole`: processes write all the state that they have; `mends`: what the store has lost of it. `clock`: the
    time for all of them. `holds`: they keep fragments for each other, through real sockets; then end it with `close`."""

    def __init__(self, graph: TopologyGraph, store: str, processes: int = 2, seed: int = 0, most_tuples: int = 100,
                 clock: Clock | None = None, holds: bool = False) -> None:
        self.graph, self.store, self.most_tuples, self.clock = graph, store, most_tuples, clock
        self.setup = WorkerSetup(f"local-{uuid.uuid4().hex[:8]}", "", Keys.make() if holds else Keys(b"", b""),
                                 settings={CHECKPOINTS.key: store})
        self.holds = holds
        self.addresses: dict[int, WorkerAddress] = {}  # of processes that keep fragments
        self.key_groups = {component.name: initial_key_groups(graph.key_groups, component.par)
                           for component in graph.bolts if component.keyed}
        self.version, self.epoch = 1, 0
        self.committed: Manifest | None = None
        self.good: list[int] = []
        self.checkpoints = Checkpoints(open_store(store), graph.name)
        self._store = BatchCheckpoints(self.checkpoints, self.setup.cluster)
        self._store.begin(None)
        self.random = random.Random(seed)
        self.processes: list[Hosted | None] = [None] * processes
        self.fault: Fault = lambda stage, partition: False
        # Which one Spark takes cannot be known: any.
        self.choose: Callable[[TaskId], int] = lambda task: self.random.randrange(len(self.processes))
        self.whole = self.mends = False
        self.most_frames: int | None = None  # that are taken from a partition before the attempt breaks off
        self.last = 0  # the process that has run something last
        self._again = False  # the last attempt has failed

    # -- plans ---------------------------------------------------------------------------------------------------------

    def scale(self, component: str, par: int) -> None:
        changed = tuple(replace(one, par=par) if one.name == component else one for one in self.graph.components)
        self.graph = replace(self.graph, components=changed)
        if component in self.key_groups:
            self.key_groups[component] = rescaled_key_groups(self.key_groups[component], par)
        self.version += 1

    def give(self, component: str, owners: Mapping[int, int]) -> None:
        """Key groups to other tasks."""
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
        """One attempt at the next batch, and if it succeeds all that follows it."""
        self.epoch += 1
        work = self._work((self.committed.wave if self.committed else 0) + 1)
        self._again = True
        reports = self._run(work)
        records = [task.record for report in reports for task in report.tasks]
        manifest = Manifest(self.graph.name, work.wave, self.epoch, self.graph.key_groups,
                            {component.name: component.par for component in self.graph.components}, records, 0.0, self.epoch)
        manifest = self._commit(manifest, work)
        self.committed, self._again = manifest, False
        self.good.append(work.given.epoch)
        self.addresses.update({report.slot: report.address for report in reports if report.address is not None})
        self.publish()
        return reports

    def _commit(self, manifest: Manifest, work: BatchWork) -> Manifest:
        try:
            self._store.commit(manifest)
        except CheckpointMissing:
            if not self.mends:
                raise
            manifest = self._mended(manifest, work)
            self._store.commit(manifest)
        unused = self._store.superseded(manifest, work.again is False and manifest.epoch == manifest.wave_epoch)
        if unused is None:
            self.checkpoints.collect()
        else:
            self.checkpoints.discard(unused)
        return manifest

    def _mended(self, manifest: Manifest, work: BatchWork) -> Manifest:
        self.epoch += 1
        lost = self._store.lost(manifest)
        work = mending_work(work, manifest, damaged(manifest, lost), self.epoch)
        written = [self._process(work, record.task).rewrite(record, lost) for record in work.records]
        return mended(manifest, filter(None, written), self.epoch)

    def publish(self) -> None:
        self.epoch += 1
        work = self._work(self.committed.wave if self.committed else 0)
        for component in self.graph.components:
            for index in range(component.par if component.commits else 0):
                task = TaskId(component.name, index)
                self._process(work, task).commit(task)

    def _work(self, wave: int) -> BatchWork:
        done = self.committed
        slots = {task: self.place(task) for task in sorted(self.graph.tasks())}
        nodes = {slot: f"node-{slot}" for slot in range(len(self.processes))} if self.holds else {}
        given = TopologyAssignment(1, self.graph, self.version, True, [(task, Place(slot, 1)) for task, slot in slots.items()],
                                   self.key_groups, [], 0, self.epoch,
                                   (done.wave, done.wave_epoch, done.epoch) if done else (0, 0, 0),
                                   *backups(self.graph, slots, nodes))
        return BatchWork("run", ["run"], wave, given, done.records if done else [], {}, list(self.addresses.values()),
                         self.setup, self.most_tuples, 60.0, good=self.good, again=self._again, whole=self.whole,
                         holds=self.holds)

    def _run(self, work: BatchWork) -> list[PartitionReport]:
        stages = work.stages()
        given: list[list[bytes]] = [[] for _ in stages.partitions[0]]
        reports: list[PartitionReport] = []
        for stage in range(stages.count):
            last = stage + 1 == stages.count
            out: list[list[bytes]] = [[] for _ in (stages.partitions[0] if last else stages.partitions[stage + 1])]
            for partition in range(len(stages.partitions[stage])):
                host = self._process(work, stages.partitions[stage][partition][0])
                self.random.shuffle(given[partition])  # a shuffle gives out blocks in any order
                for target, frame in self._taken(host.run_partition(stages, stage, partition, given[partition])):
                    if not last:
                        out[target].append(frame)
                    elif frames.unpack(frame).kind == frames.REPORT:
                        reports.append(read_report(frames.unpack(frame).body))
                if self.fault(stage, partition):
                    raise AttemptFailed(f"after partition {partition} of stage {stage}")
            assert last or all(out), "a partition is empty"
            given = out
        assert not one_cut(reports, stages)
        return reports

    def _taken(self, given: Out) -> Out:
        for number, each in enumerate(given):
            if number == self.most_frames:
                raise AttemptFailed(f"after {number} frames of a partition")
            yield each

    def _process(self, work: BatchWork, task: TaskId) -> Hosted:
        self.last = number = self.choose(task)
        found = self.processes[number]
        if found is None:
            holding = Holding(self.setup) if self.holds else None
            found = self.processes[number] = Hosted(work, number, holding)
            found.worker.clock = self.clock or found.worker.clock
        found.take_up(work)
        return found
