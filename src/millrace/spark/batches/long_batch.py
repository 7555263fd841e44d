"""Reports slow batches to the master."""

from __future__ import annotations

import logging
import time

from millrace.control.events import Say
from millrace.master.batch_log import RUN_TASKS, UnderWay
from millrace.spark.batches.jobs import BatchJobs
from millrace.spark.batches.ports import BatchPort
from millrace.spark.cluster.free_cores import FreeCores
from millrace.spark.session.errors import SPARK_ERRORS, first_line

log = logging.getLogger("millrace.master")
LONG_SECONDS = 1.0  # after which a batch is shown, and how often
CORE_SECONDS = 5.0  # without any core, after which a batch checks who holds them


class LongBatch:
    """Watches the batches of one topology. The thread that runs them notes its progress and another thread looks, so that short
    batches cost nothing."""

    def __init__(self, topology: str, master: BatchPort, jobs: BatchJobs, cores: FreeCores) -> None:
        self._topology, self._master, self._jobs, self._cores = topology, master, jobs, cores
        self._number, self._attempt, self._since = -1, 0, 0.0  # `_since` is 0 while no batch runs
        self.doing, self._committed, self._error = RUN_TASKS, False, ""
        self._looked, self._told, self._warned = 0.0, False, False

    def begins(self, number: int, attempt: int) -> None:
        self._number, self._attempt, self.doing, self._committed = number, attempt, RUN_TASKS, False
        self._since = self._since or time.monotonic()
        if attempt == 1:
            self._error = ""

    def failed(self, error: str) -> None:
        """Note the error; the step will be retried."""
        self._error = error

    def is_committed(self, number: int) -> None:
        """Note that the batch is committed but not published yet."""
        self._number, self._committed, self._error = number, True, ""
        self._since = self._since or time.monotonic()

    def over(self) -> None:
        """Note that the batch is done, or that the topology is paused."""
        self._since = 0.0

    def look(self, group: str) -> None:
        """Report the batch to the master if it is slow; `group` names the query's jobs."""
        now, since = time.monotonic(), self._since
        if self._told and not since:
            self._tell(None)
        if not since or min(now - since, now - self._looked) < LONG_SECONDS:
            return
        self._looked = now
        try:
            tasks = [str(task) for task in self._jobs.running(group)]
            if not tasks and self.doing == RUN_TASKS and now - since >= CORE_SECONDS:
                self._warn_of_held_cores()
        except SPARK_ERRORS as error:  # the job is over by now
            log.debug("cannot read the running tasks from Spark: %s", first_line(error))
            return
        batch = UnderWay(batch=self._number, attempt=self._attempt, since=since, doing=self.doing, tasks=tasks,
                         committed=self._committed, error=self._error)
        self._tell(batch if self._since == since else None)

    def _tell(self, batch: UnderWay | None) -> None:
        self._told = batch is not None
        self._master.batching.under_way(self._topology, batch)

    def _warn_of_held_cores(self) -> None:
        held, free = self._cores.held(), self._cores.count()
        if held and free < 1 and not self._warned:
            self._warned = True
            text = (f"the batch waits for a core: resident workers on this Spark session hold {held} of its {held + free} "
                    "permanently. Stop some, or use one session per engine")
            self._master.call(lambda: self._master.say(Say(text, self._topology, "warning")))
