"""The Spark jobs of a topology's batches: places partitions on executors and their Python processes, reports running tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.control.batches.actions import BatchFailed
from millrace.microbatch import records
from millrace.microbatch.work import Attempt, BatchWork, PartitionReport, check_single_run, read_report
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire
from millrace.spark.batches.source import rows_of
from millrace.spark.batches.tasks import run_stage
from millrace.spark.cluster.executors import Executors
from millrace.spark.cluster.placement import Carried, Placement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LANES = 16  # per executor and engine at most: each is a daemon process and its forks


class BatchJobs:
    """Runs one job at a time, on the thread on which Spark offers batches. `running` may be called on others."""

    def __init__(self, placement: Placement, executors: Executors, sources: Mapping[str, DataFrame], engine: int = 0) -> None:
        self._placement, self._executors, self._sources, self._engine = placement, executors, dict(sources), engine
        self._under_way: Sequence[Sequence[Sequence[TaskId]]] = ()  # tasks by stage and by Spark's partition

    def run(self, attempt: Attempt, dataframe: DataFrame) -> list[PartitionReport]:
        """Run the attempt; returns the reports of all partitions."""
        placement, shuffles = self._placement, list[int]()
        with placement.carried(wire.encode(attempt.work)) as data:
            try:
                output = map(records.unpack, placement.collect(self._stages(attempt, dataframe, data, shuffles)))
                reports = [read_report(record.body) for record in output if record.kind == records.REPORT]
            finally:
                placement.clean(shuffles)
        error = check_single_run(reports, attempt.stages)
        if error:
            raise BatchFailed(f"Spark has rerun a part of the batch: {error}")
        return reports

    def _stages(self, attempt: Attempt, dataframe: DataFrame, data: Carried, shuffles: list[int]) -> Any:
        """The RDD of the last stage, which depends on the others."""
        placement, stages = self._placement, attempt.stages
        first, partitions = self._first_stage(attempt, dataframe)
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
                     body: Callable[..., Iterator[bytes]], *arguments: Any) -> list[bytes]:
        """Run a job between batches: a partition for each task, if possible in the process that has it. `body` gets the work
        and the arguments."""
        self._under_way = [[[task] for task in tasks]]
        locations = [self._executors.location(slots[task]) if task in slots else "" for task in tasks]
        lanes = self._lanes(graph, self._under_way[0])
        with self._placement.carried(wire.encode(work)) as data:
            seeds = self._placement.seeds(locations)
            return self._placement.collect(self._placement.python(seeds, partial(body, data, *arguments), lanes))

    def running(self, group: str) -> list[TaskId]:
        """The tasks that have a core now, by Spark's slightly delayed account; `group` names the query's jobs."""
        stages = self._under_way
        # A DataFrame may have its own stages before ours.
        return sorted({task for stage, partition in self._placement.running(group)
                       if -stage <= len(stages) and partition < len(stages[stage]) for task in stages[stage][partition]})

    def _lanes(self, graph: TopologyGraph, tasks: Sequence[Sequence[TaskId]]) -> list[str]:
        """The Python process for each partition, where an executor has several: tasks that keep something return to the process
        that has it. So do spouts: a recreated one has lost its pace or its connection."""
        if not self._executors.wide:
            return []
        kept = [any(keeps(graph.component(task.component)) for task in each) for each in tasks]
        first = self._engine * LANES
        lanes = [str(first + each[0].index % LANES) if stays else "" for each, stays in zip(tasks, kept, strict=True)]
        return lanes if any(kept) else []

    def _first_stage(self, attempt: Attempt, dataframe: DataFrame) -> tuple[Any, list[int]]:
        """The input RDD of the spouts, and the partition of the stage that each of its partitions stands for. A DataFrame may
        have fewer partitions than its spout has tasks, but has at least one: bolts run even in an empty batch."""
        placement, rdds, partitions = self._placement, [], []
        heads = [tasks[0] for tasks in attempt.stages.partitions[0]]
        for spout in attempt.graph.spouts:
            numbers = [number for number, head in enumerate(heads) if head.component == spout.name]
            if spout.dataframe:
                rdd = placement.arrow(rows_of(dataframe, self._sources, spout.name), spout.par)
                numbers = numbers[:rdd.getNumPartitions()]
            if not spout.dataframe or not numbers:
                numbers = numbers or [heads.index(TaskId(spout.name, 0))]
                rdd = placement.seeds([self._location(attempt, heads[number]) for number in numbers])
            rdds.append(rdd)
            partitions += numbers
        return placement.union(rdds), partitions

    def _location(self, attempt: Attempt, task: TaskId) -> str:
        return self._executors.location(attempt.slots[task])


def keeps(component: ComponentDef) -> bool:
    """True if its tasks keep something from one batch to the next."""
    return component.stateful or component.commits or (component.kind == "spout" and not component.dataframe)
