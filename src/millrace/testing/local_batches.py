"""Batches of a topology without Spark: processes are objects, the shuffle is lists, and whatever can fail fails on demand."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from millrace.config import CHECKPOINTS
from millrace.control.assignment import Place, TopologyAssignment
from millrace.microbatch import frames
from millrace.microbatch.hosting import Hosted
from millrace.microbatch.work import BatchWork, PartitionReport, one_cut, read_report
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import initial_key_groups, rescaled_key_groups
from millrace.runtime.checkpoint_store import open_store
from millrace.runtime.checkpoints import Checkpoints
from millrace.runtime.process import WorkerSetup
from millrace.runtime.transport import Keys
from millrace.state.checkpoint import Manifest

Fault = Callable[[int, int], bool]  # (stage, partition) -> whether the attempt breaks off after it


class AttemptFailed(Exception):
    """As a failed Spark job: nothing of the attempt is to count."""


class LocalBatches:
    """Runs one topology, `processes` Python processes as Spark would have them; each partition in one that `choose` names."""

    def __init__(self, graph: TopologyGraph, store: str, processes: int = 2, seed: int = 0, most_tuples: int = 100) -> None:
        self.graph, self.store, self.most_tuples = graph, store, most_tuples
        self.key_groups = {component.name: initial_key_groups(graph.key_groups, component.par)
                           for component in graph.bolts if component.keyed}
        self.version, self.epoch = 1, 0
        self.committed: Manifest | None = None
        self.good: list[int] = []
        self.checkpoints = Checkpoints(open_store(store), graph.name)
        self.random = random.Random(seed)
        self.processes: list[Hosted | None] = [None] * processes
        self.fault: Fault = lambda stage, partition: False

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
        self.processes[process] = None

    def place(self, task: TaskId) -> int:
        return task.index % len(self.processes)

    # -- batches -------------------------------------------------------------------------------------------------------

    def batch(self) -> list[PartitionReport]:
        """One attempt at the next batch, and if it succeeds all that follows it."""
        self.epoch += 1
        work = self._work((self.committed.wave if self.committed else 0) + 1)
        reports = self._run(work)
        records = [task.record for report in reports for task in report.tasks]
        manifest = Manifest(self.graph.name, work.wave, self.epoch, self.graph.key_groups,
                            {component.name: component.par for component in self.graph.components}, records, 0.0, self.epoch)
        self.checkpoints.commit(manifest)
        self.committed = manifest
        self.good.append(work.given.epoch)
        self.publish()
        return reports

    def publish(self) -> None:
        self.epoch += 1
        work = self._work(self.committed.wave if self.committed else 0)
        for component in self.graph.components:
            for index in range(component.par if component.commits else 0):
                self._process(work).commit(TaskId(component.name, index))

    def _work(self, wave: int) -> BatchWork:
        done = self.committed
        places = [(task, Place(self.place(task), 1)) for task in sorted(self.graph.tasks())]
        given = TopologyAssignment(1, self.graph, self.version, True, places, self.key_groups, [], 0, self.epoch,
                                   (done.wave, done.wave_epoch, done.epoch) if done else (0, 0, 0))
        setup = WorkerSetup("local", "", Keys(b"", b""), settings={CHECKPOINTS.key: self.store})
        return BatchWork("run", ["run"], wave, given, done.records if done else [], {}, [], setup, self.most_tuples, 60.0,
                         good=self.good)

    def _run(self, work: BatchWork) -> list[PartitionReport]:
        stages = work.stages()
        given: list[list[bytes]] = [[] for _ in stages.partitions[0]]
        reports: list[PartitionReport] = []
        for stage in range(stages.count):
            last = stage + 1 == stages.count
            out: list[list[bytes]] = [[] for _ in (stages.partitions[0] if last else stages.partitions[stage + 1])]
            for partition in range(len(stages.partitions[stage])):
                host = self._process(work)
                self.random.shuffle(given[partition])  # a shuffle gives out blocks in any order
                for target, frame in host.run_partition(stages, stage, partition, given[partition]):
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

    def _process(self, work: BatchWork) -> Hosted:
        """Any of them: which one Spark takes cannot be known."""
        number = self.random.randrange(len(self.processes))
        found = self.processes[number]
        if found is None:
            found = self.processes[number] = Hosted(work, number)
        found.take_up(work)
        return found
