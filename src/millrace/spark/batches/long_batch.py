"""What a batch is at, for people, once it takes long."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from millrace.control.events import Say
from millrace.master.batch_log import RUN_TASKS, UnderWay
from millrace.spark.batches.jobs import BatchJobs
from millrace.spark.cluster.free_cores import FreeCores
from millrace.spark.session.errors import SPARK_ERRORS, first_line

if TYPE_CHECKING:
    from millrace.master.service import Master

log = logging.getLogger("millrace.master")
LONG_SECONDS = 1.0  # after which people are told, and how often
CORE_SECONDS = 5.0  # that a batch has no core at all, until it is looked who has them


class LongBatch:
    """Of one topology. The thread that runs batches says what it does, another one looks: that costs short batches nothing."""

    def __init__(self, topology: str, master: Master, jobs: BatchJobs, cores: FreeCores) -> None:
        self._topology, self._master, self._jobs, self._cores = topology, master, jobs, cores
        self._number, self._attempt, self._since = -1, 0, 0.0  # since when; 0: none runs
        self.doing, self._committed, self._error = RUN_TASKS, False, ""
        self._looked, self._told, self._warned = 0.0, False, False

    def begins(self, number: int, attempt: int) -> None:
        self._number, self._attempt, self.doing, self._committed = number, attempt, RUN_TASKS, False
        self._since = self._since or time.monotonic()
        if attempt == 1:
            self._error = ""

    def failed(self, error: str) -> None:
        """It will be tried again."""
        self._error = error

    def is_committed(self, number: int) -> None:
        """What its sinks have is still to be written."""
        self._number, self._committed, self._error = number, True, ""
        self._since = self._since or time.monotonic()

    def over(self) -> None:
        """Or nothing of it runs for a while."""
        self._since = 0.0

    def look(self, group: str) -> None:
        """`group` names the query's jobs."""
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
        except SPARK_ERRORS as error:  # what it was asked about was over by then
            log.debug("Spark does not say what runs: %s", first_line(error))
            return
        batch = UnderWay(batch=self._number, attempt=self._attempt, since=since, doing=self.doing, tasks=tasks,
                         committed=self._committed, error=self._error)
        self._tell(batch if self._since == since else None)

    def _tell(self, batch: UnderWay | None) -> None:
        self._told = batch is not None
        self._master.call(lambda: self._master.batching.under_way(self._topology, batch))

    def _warn_of_held_cores(self) -> None:
        held, free = self._cores.held(), self._cores.count()
        if held and free < 1 and not self._warned:
            self._warned = True
            text = (f"the batch waits for a core: resident workers on this Spark session hold {held} of its {held + free} for "
                    "good. End some, or take a session for each engine")
            self._master.call(lambda: self._master.say(Say(text, self._topology, "warning")))
