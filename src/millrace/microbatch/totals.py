"""Adds up the reports of batches into the rising counters of a worker's report."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from millrace.control.assignment import TopologyAssignment
from millrace.microbatch.work import PartitionReport, TaskReport
from millrace.runtime.meters import COUNTERS, LATENCIES, SECONDS
from millrace.runtime.wire import messages as wire

PROCESSES_KNOWN = 1000


@dataclass(slots=True)
class _TaskTotals:
    incarnation: int
    counts: Counter[str] = field(default_factory=Counter)
    traffic: Counter[int] = field(default_factory=Counter)
    traffic_bytes: Counter[int] = field(default_factory=Counter)
    key_groups: dict[str, list[int]] = field(default_factory=dict)


class Totals:
    """Totals of one topology, by task. A task may run in any process, so no process has them."""

    def __init__(self) -> None:
        self._tasks: dict[int, _TaskTotals] = {}
        self._cpu: dict[tuple[int, int], float] = {}  # by slot and process, as last reported: hosts may have the same pids
        self._used: defaultdict[int, float] = defaultdict(float)  # CPU seconds by slot

    def take(self, plan: TopologyAssignment, reports: list[PartitionReport], now: float) -> list[wire.Report]:
        """Add the reports of a batch; returns one report per slot. The master fills in generation and revision."""
        incarnations = {plan.graph.number(task): place.incarnation for task, place in plan.places}
        by_slot: dict[int, list[PartitionReport]] = {}
        for report in reports:
            by_slot.setdefault(report.slot, []).append(report)
        return [self._report(plan, slot, of_slot, incarnations, now) for slot, of_slot in sorted(by_slot.items()) if slot >= 0]

    def _report(self, plan: TopologyAssignment, slot: int, reports: list[PartitionReport], incarnations: dict[int, int],
                now: float) -> wire.Report:
        tasks = [self._task(plan.number, task, incarnations[task.task]) for report in reports for task in report.tasks]
        positions = [(plan.number, task.task, task.record.position) for report in reports for task in report.tasks
                     if task.record.position is not None]
        counters: Counter[str] = Counter()
        for report in reports:
            counters.update(report.counters)
        self._used[slot] += self._cpu_used(reports)
        memory = {report.pid: report.memory_mb for report in reports}
        return wire.Report(slot, 0, 0, now, tasks, positions, [(plan.number, 0)], [],
                           [error for report in reports for error in report.errors], dict(counters), self._used[slot],
                           sum(memory.values()))

    def _cpu_used(self, reports: list[PartitionReport]) -> float:
        """CPU seconds since the last batch. A process reports several partitions, in any order; all that a new process has
        used counts for this batch."""
        now: dict[tuple[int, int], float] = {}
        for report in reports:
            process = report.slot, report.pid
            now[process] = max(report.cpu_seconds, now.get(process, 0.0))
        used = sum(max(cpu - self._cpu.get(process, 0.0), 0.0) for process, cpu in now.items())
        self._cpu = {**(self._cpu if len(self._cpu) < PROCESSES_KNOWN else {}), **now}
        return used

    def _task(self, topology: int, report: TaskReport, incarnation: int) -> dict[str, Any]:
        totals = self._tasks.get(report.task)
        if totals is None or totals.incarnation != incarnation:
            totals = self._tasks[report.task] = _TaskTotals(incarnation)
        for name in COUNTERS + SECONDS:
            totals.counts[name] += report.meters[name]
        totals.traffic.update(report.traffic)
        totals.traffic_bytes.update(report.traffic_bytes)
        for component, counts in report.key_groups.items():
            before = totals.key_groups.get(component, [0] * len(counts))
            totals.key_groups[component] = [had + more for had, more in zip(before, counts, strict=True)]
        meters: dict[str, Any] = {name: totals.counts[name] for name in COUNTERS + SECONDS}
        meters |= {name: report.meters[name] for name in LATENCIES}
        if "custom" in report.meters:
            meters["custom"] = report.meters["custom"]
        return {"topology": topology, "task": report.task, "incarnation": incarnation, "queue_length": 0, **meters,
                "traffic": dict(totals.traffic), "traffic_bytes": dict(totals.traffic_bytes),
                "key_groups": dict(totals.key_groups)}
