"""The Spark jobs of a topology's batches: which partition is where, in which of an executor's processes, and what runs now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.control.batch_stages import Stages
from millrace.microbatch import records as frames
from millrace.microbatch.work import BatchWork, PartitionReport, one_cut, read_report
from millrace.microbatch.worker import BatchFailed
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire
from millrace.spark.batches.source import frame_of
from millrace.spark.batches.tasks import run_stage
from millrace.spark.cluster.executors import Executors
from millrace.spark.cluster.placement import Carried, Placement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LANES = 16  # of an executor at most, for each engine: each is a process that forks, and those that it has forked


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a batch, put together and not run yet."""

    work: BatchWork
    stages: Stages
    graph: TopologyGraph
    slots: dict[TaskId, int]


class BatchJobs:
    """One at a time, on the thread on which Spark calls for a batch. `running` is for others."""

    def __init__(self, placement: Placement, executors: Executors, sources: Mapping[str, DataFrame], engine: int = 0) -> None:
        self._placement, self._executors, self._sources, self._engine = placement, executors, dict(sources), engine
        self._under_way: Sequence[Sequence[Sequence[TaskId]]] = ()  # by stage and Spark's partition: the tasks that run in it

    def run(self, attempt: Attempt, frame: DataFrame) -> list[PartitionReport]:
        placement, shuffles = self._placement, list[int]()
        with placement.carried(wire.encode(attempt.work)) as data:
            try:
                found = map(frames.unpack, placement.collect(self._stages(attempt, frame, data, shuffles)))
                reports = [read_report(frame.body) for frame in found if frame.kind == frames.REPORT]
            finally:
                placement.clean(shuffles)
        wrong = one_cut(reports, attempt.stages)
        if wrong:
            raise BatchFailed(f"Spark has run a part of the batch again: {wrong}")
        return reports

    def _stages(self, attempt: Attempt, frame: DataFrame, data: Carried, shuffles: list[int]) -> Any:
        """The last of them, which depends on the others."""
        placement, stages = self._placement, attempt.stages
        first, partitions = self._first_stage(attempt, frame)
        heads = [stages.partitions[0][number] for number in partitions]
        self._under_way = heads, *stages.partitions[1:]
        rdd = placement.python(first, partial(run_stage, data, 0, partitions), self._lanes(attempt.graph, heads))
        for stage in range(1, stages.count):
            tasks = stages.partitions[stage]
            shuffled = placement.shuffled(rdd, [self._location(attempt, each[0]) for each in tasks], shuffles)
            rdd = placement.python(shuffled, partial(run_stage, data, stage, list(range(len(tasks)))),
                                   self._lanes(attempt.graph, tasks))
        return rdd

    def run_in_place(self, graph: TopologyGraph, slots: Mapping[TaskId, int], tasks: list[TaskId], work: BatchWork,
                     body: Callable[..., Iterator[bytes]], *given: Any) -> list[bytes]:
        """Between batches: a partition for each task, in the process that has it if that can be. `body` gets the work and what
        is given."""
        self._under_way = [[[task] for task in tasks]]
        locations = [self._executors.location(slots[task]) if task in slots else "" for task in tasks]
        lanes = self._lanes(graph, self._under_way[0])
        with self._placement.carried(wire.encode(work)) as data:
            seeds = self._placement.seeds(locations)
            return self._placement.collect(self._placement.python(seeds, partial(body, data, *given), lanes))

    def running(self, group: str) -> list[TaskId]:
        """The tasks that have a core now, as Spark says with little delay; `group` names the query's jobs."""
        stages = self._under_way
        # A DataFrame may have stages of its own before ours.
        return sorted({task for stage, partition in self._placement.running(group)
                       if -stage <= len(stages) and partition < len(stages[stage]) for task in stages[stage][partition]})

    def _lanes(self, graph: TopologyGraph, tasks: Sequence[Sequence[TaskId]]) -> list[str]:
        """Where an executor has several Python processes, tasks that keep something come back to the one that has it. So do
        spouts: one that was made anew has lost its pace, or its connection."""
        if not self._executors.wide:
            return []
        kept = [any(keeps(graph.component(task.component)) for task in each) for each in tasks]
        first = self._engine * LANES
        lanes = [str(first + each[0].index % LANES) if stays else "" for each, stays in zip(tasks, kept, strict=True)]
        return lanes if any(kept) else []

    def _first_stage(self, attempt: Attempt, frame: DataFrame) -> tuple[Any, list[int]]:
        """What the spouts begin with, and which partition of the stage each of its partitions is. A DataFrame may have fewer
        than its spout has tasks, but one in any case: bolts run also in a batch that brings nothing."""
        placement, rdds, partitions = self._placement, [], []
        heads = [tasks[0] for tasks in attempt.stages.partitions[0]]
        for spout in attempt.graph.spouts:
            own = [number for number, head in enumerate(heads) if head.component == spout.name]
            if spout.dataframe:
                rdd = placement.arrow(frame_of(frame, self._sources, spout.name), spout.par)
                own = own[:rdd.getNumPartitions()]
            if not spout.dataframe or not own:
                own = own or [heads.index(TaskId(spout.name, 0))]
                rdd = placement.seeds([self._location(attempt, heads[number]) for number in own])
            rdds.append(rdd)
            partitions += own
        return placement.union(rdds), partitions

    def _location(self, attempt: Attempt, task: TaskId) -> str:
        return self._executors.location(attempt.slots[task])


def keeps(component: ComponentDef) -> bool:
    """Whether a task of it has something from one batch to the next."""
    return component.stateful or component.commits or (component.kind == "spout" and not component.dataframe)
