"""Totals over the reports of batches: CPU, memory and counters of the processes of a slot."""

from __future__ import annotations

from itertools import permutations

from millrace.control.assignment import TopologyAssignment
from millrace.microbatch.totals import Totals
from millrace.microbatch.work import PartitionReport
from millrace.model.graph import TopologyGraph

PLAN = TopologyAssignment(1, TopologyGraph("words", (), {}), 1, True, [], {}, [], 0)


def ran(slot: int, pid: int, cpu: float, memory: float = 10.0) -> PartitionReport:
    return PartitionReport(slot, slot, pid, [], [], {"restored": 1}, cpu, memory, 0.1, 0, 0, 0, {})


def used(totals: Totals, *reports: PartitionReport) -> dict[int, float]:
    return {report.slot: report.cpu_seconds for report in totals.take(PLAN, list(reports), 0.0)}


def test_partitions_of_one_process_report_in_any_order() -> None:
    for order in permutations([ran(0, 7, 1.0), ran(0, 7, 3.0), ran(0, 7, 2.0)]):
        totals = Totals()
        assert used(totals, *order) == {0: 3.0}
        assert used(totals, ran(0, 7, 3.5), ran(0, 7, 3.25)) == {0: 3.5}


def test_the_whole_cpu_time_of_a_new_process_counts() -> None:
    totals = Totals()
    assert used(totals, ran(0, 7, 2.0)) == {0: 2.0}
    assert used(totals, ran(0, 7, 2.5), ran(0, 8, 1.0)) == {0: 3.5}
    assert used(totals, ran(0, 8, 1.5)) == {0: 4.0}


def test_processes_of_two_slots_may_have_the_same_pid() -> None:
    totals = Totals()
    assert used(totals, ran(0, 7, 2.0), ran(1, 7, 5.0)) == {0: 2.0, 1: 5.0}
    assert used(totals, ran(1, 7, 5.5), ran(0, 7, 4.0)) == {0: 4.0, 1: 5.5}


def test_the_memory_of_a_process_counts_once_and_its_counters_each_time() -> None:
    report, = Totals().take(PLAN, [ran(0, 7, 1.0), ran(0, 7, 2.0), ran(0, 8, 1.0, 5.0)], 0.0)
    assert (report.memory_mb, report.counters) == (15.0, {"restored": 3})


def test_partitions_on_unknown_slots_are_omitted() -> None:
    assert used(Totals(), ran(-1, 7, 1.0)) == {}
