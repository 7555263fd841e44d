"""Processes the reports of a batch, for the master and for the next batch."""

from __future__ import annotations

import time

from millrace.control.assignment import WorkerAddress
from millrace.master.batch_log import BatchRecord
from millrace.microbatch.totals import Totals
from millrace.microbatch.work import Attempt, PartitionReport
from millrace.spark.batches.ports import BatchPort
from millrace.spark.cluster.executors import Executors

PROCESS_SECONDS = 60.0  # after which Spark ends idle Python processes


class BatchReports:
    """The reports of one topology."""

    def __init__(self, name: str, master: BatchPort, executors: Executors) -> None:
        self._name, self._master, self._executors = name, master, executors
        self._totals = Totals()
        self._addresses: dict[int, WorkerAddress] = {}  # by slot: processes that hold fragments
        self._heard = 0.0  # when processes last reported
        self._seen = executors.totals()

    def take(self, number: int, attempt: Attempt, reports: list[PartitionReport], attempts: int,
             began: tuple[float, float]) -> BatchRecord:
        """Pass on the reports of a finished batch. `began`: unix time, and by the clock of `time.monotonic`."""
        record = self._record(number, attempt, reports, attempts, began)
        self._note_holders(reports)
        for report in self._totals.take(attempt.work.assignment, reports, time.monotonic()):
            self._master.batching.take_report(report)
        self._master.batching.note(self._name, record)
        return record

    def holders(self) -> list[WorkerAddress]:
        """Processes of live executors that hold fragments. After a long pause there are none: Spark has ended them."""
        if time.monotonic() - self._heard > PROCESS_SECONDS:
            self._addresses.clear()
        alive = set(self._executors.by_id().values())
        self._addresses = {slot: address for slot, address in self._addresses.items() if slot in alive}
        return list(self._addresses.values())

    def _record(self, number: int, attempt: Attempt, reports: list[PartitionReport], attempts: int,
                began: tuple[float, float]) -> BatchRecord:
        spouts = {attempt.graph.number(task) for task in attempt.graph.tasks()
                  if attempt.graph.component(task.component).kind == "spout"}
        tasks = [task for report in reports for task in report.tasks]
        now = self._executors.totals()
        spark, self._seen = now.since(self._seen), now
        return BatchRecord(
            batch=number, wave=attempt.work.wave, plan_version=attempt.work.assignment.version, started=began[0],
            seconds=time.monotonic() - began[1], attempts=attempts,
            tuples_in=sum(task.meters["emitted"] for task in tasks if task.task in spouts),
            tuples_processed=sum(task.meters["executed"] for task in tasks), stages=attempt.stages.count, tasks=len(tasks),
            misplaced=sum(len(report.tasks) for report in reports if _is_misplaced(attempt, report)),
            resident=sum(report.counters.get("resident", 0) for report in reports),
            restored=sum(report.counters.get("restored", 0) for report in reports),
            spark_run_seconds=spark.run_seconds, spark_shuffle_bytes=spark.shuffle_bytes,
            own_busy_seconds=sum(report.seconds for report in reports))

    def _note_holders(self, reports: list[PartitionReport]) -> None:
        """Note one process per slot, the same for as long as it lives, since it has the fragments."""
        self._heard = time.monotonic()
        reported = [report.address for report in reports if report.address is not None]
        for address in reported:
            known = self._addresses.get(address.slot)
            if known is None or known not in reported:
                self._addresses[address.slot] = address


def _is_misplaced(attempt: Attempt, report: PartitionReport) -> bool:
    """True if it ran on another slot than planned. Partitions of a DataFrame have no place in a plan."""
    head = attempt.graph.task(report.tasks[0].task)
    return report.slot != report.planned and not attempt.graph.component(head.component).dataframe
