"""Structured Streaming queries that feed the DataFrame spouts of resident topologies.

Each spout has one query. A micro-batch is a Spark job whose partitions send their rows to the spout's tasks and end when the
topology has acked them; only then does Spark record in its checkpoint that they have been read. That checkpoint is the replay
log: a micro-batch that was in progress when anything died is sent again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from millrace.config import (
    AT_LEAST_ONCE,
    CHECKPOINTS,
    CHUNK_TUPLES,
    DATAFRAME_ACK_TIMEOUT,
    DATAFRAME_TRIGGER,
    FRAME_LIMIT,
    GUARANTEE,
)
from millrace.control.events import Killed
from millrace.control.submission import Resume, choice_required, when
from millrace.errors import FeedingFailed, MillraceError
from millrace.master.feeding import FedTopology
from millrace.model.graph import ComponentDef, TopologyGraph
from millrace.runtime.checkpoints.store import local_directory
from millrace.runtime.durable import make_directory
from millrace.runtime.feeds.feeder import Feeding
from millrace.spark.cluster.free_cores import FEEDING, FreeCores, feeding_queries, feeding_share, leaves_none
from millrace.spark.cluster.placement import Placement
from millrace.spark.dataframes.dataframe_checkpoints import ReadPosition, Runs, claim_checkpoint, configured_checkpoint, new_run
from millrace.spark.dataframes.feed_job import SENT, feed_partition
from millrace.spark.dataframes.map_in_arrow import map_in_arrow
from millrace.spark.dataframes.query_watch import QueryWatch
from millrace.spark.session.errors import SPARK_ERRORS, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger("millrace.master")
WAVE_SECONDS = 1.0  # between requests for a wave
STOP_SECONDS = 10.0  # for the current micro-batch, when the engine stops


class FeedingQueries:
    """The queries that feed one topology, on a cluster whose workers hold `slots()` cores. `run` names the directories in which
    Spark records how far they have read if the topology starts fresh; empty if nothing feeds it."""

    def __init__(self, fed: FedTopology, graph: TopologyGraph, dataframes: dict[str, DataFrame],
                 slots: Callable[[], int]) -> None:
        self._fed, self._graph, self.name = fed, graph, graph.name
        self._queries = [FeedingQuery(dataframe.sparkSession, fed, graph, graph.component(name), dataframe, slots)
                         for name, dataframe in dataframes.items()]
        self.run = new_run() if dataframes else ""

    def prepare(self, resume: Resume) -> None:
        """Check everything that can be checked before submission. A topology without state has only Spark's positions as its
        checkpoint: they are resumed on request, and never discarded just because --fresh and --resume are missing."""
        for query in self._queries:
            query.prepare()
        positions = [position for query in self._queries if (position := query.last_position()) is not None]
        if self._graph.waves or resume is False or not positions:
            return
        last = max(positions, key=lambda position: position.number)
        if resume is None:
            raise choice_required(f"{last.place} records how far an earlier run of {self.name!r} has read: up to Spark's batch "
                                  f"{last.batch}{when(last.at)}")
        self.run = last.run

    def start(self, resume: bool | None) -> None:
        """Start all queries, or none. If state is resumed, its checkpoint names the run whose positions belong to it."""
        run = self._fed.offsets() if self._graph.waves else self.run
        try:
            for query in self._queries:
                query.start(run, resume)
        except BaseException:
            self.stop(0)
            raise
        self._fed.delay_kill(self._before_kill)

    def stop(self, wait: float) -> None:
        """Stop each query after its current micro-batch. One that takes longer than `wait` seconds is sent again later."""
        deadline = time.monotonic() + wait
        for query in self._queries:
            query.refuse_more()
        for query in self._queries:
            query.stop(deadline)

    def _before_kill(self, event: Killed) -> None:
        """Stop the queries, then kill the topology; in a thread, as the master's must not wait."""
        self._fed.say("the queries that feed it end first")
        threading.Thread(target=self._kill, args=(event,), daemon=True, name=f"end of {self.name}").start()

    def _kill(self, event: Killed) -> None:
        try:
            self.stop(event.wait)
        finally:  # the topology is killed even if Spark is gone
            self._fed.kill(event)


class FeedingQuery:
    """One query. Spark calls `_push` with each micro-batch; it returns when the micro-batch need not be sent again."""

    def __init__(self, spark: SparkSession, fed: FedTopology, graph: TopologyGraph, component: ComponentDef,
                 dataframe: DataFrame, slots: Callable[[], int]) -> None:
        self._spark, self._fed, self._graph, self._component, self._dataframe = spark, fed, graph, component, dataframe
        self._conf = {**graph.config, **component.config}
        self._label = f"the query that feeds {component.name!r}"
        self._query: StreamingQuery | None = None
        self._watch: QueryWatch | None = None
        self._cores = FreeCores(spark.sparkContext, slots)
        self._id = self._place = self._run = ""
        self._runs: Runs | None = None  # None: the settings name a checkpoint, or older runs have been deleted already
        self._state = threading.Condition()
        self._pushing = self._refusing = self._refused = self._stopped = False
        self._failure = ""
        self._warned_of_last_core = False

    # -- called by FeedingQueries ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Find the checkpoint, and claim it if the settings name it."""
        self._place = configured_checkpoint(self._graph, self._component)
        directory = local_directory(self._place) if "://" in self._place or self._files_are_local() else None
        if self._place and directory is not None:
            claim_checkpoint(directory, self._graph.name, self._component.name)
            self._place = directory.absolute().as_uri()
        if not self._place:
            self._runs = Runs(str(CHECKPOINTS.of(self._fed.settings)), self._graph.name, self._component.name)

    def last_position(self) -> ReadPosition | None:
        """The position of the last run below the checkpoint store; None if the settings name a checkpoint, which is always
        resumed."""
        return self._runs.last() if self._runs is not None else None

    def start(self, run: str, resume: bool | None) -> None:
        """Start the query. Call it once the topology owns its name: an earlier run may still use the last checkpoint."""
        place = self._place or self._place_of(run, bool(resume))
        writer = (self._dataframe.writeStream.queryName(f"{FEEDING}{self._graph.name}/{self._component.name}")
                  .option("checkpointLocation", place).foreachBatch(self._push))
        seconds = DATAFRAME_TRIGGER.of(self._conf)
        if seconds:
            writer = writer.trigger(processingTime=f"{int(seconds * 1000)} milliseconds")
        try:
            self._warn_if_resumed_unasked(resume)
            with self._state:  # the first micro-batch may come before `start` returns
                self._query = writer.start()
                self._id = str(self._query.id)
        except SPARK_ERRORS as error:
            raise MillraceError(f"{self._label} of {self._graph.name!r} cannot start: {first_line(error)}. Check that its "
                                f"checkpoint {place} belongs to this DataFrame") from error
        self._watch = QueryWatch(self._spark, self._query, f"query of {self._component.name}", self._warn, self._ended,
                                 self._abandon)
        self._watch.start()

    def _place_of(self, run: str, resume: bool) -> str:
        """The run's checkpoint below the checkpoint store."""
        assert self._runs is not None
        self._run = run
        place = self._runs.place(run)
        if resume and self._graph.waves and not place.exists():
            self._warn(f"reads its DataFrame from the beginning, on top of the resumed state: the positions of that run are "
                       f"not in {place}")
        make_directory(place)  # private, as the checkpoints beside it; Spark would follow the umask
        return place.as_uri()

    def _warn_if_resumed_unasked(self, resume: bool | None) -> None:
        """Warn if the query resumes although the topology starts fresh: a checkpoint that the settings name always does."""
        fresh = not resume if self._graph.waves else resume is False
        if not self._place or not fresh or not Placement(self._spark.sparkContext).exists(f"{self._place}/offsets"):
            return
        if self._graph.waves:
            self._warn(f"continues from its checkpoint {self._place}, but the state of the topology starts empty: rows read "
                       "earlier are not in it. --resume resumes the state too; another checkpoint reads everything again")
        else:
            self._warn(f"continues from its checkpoint {self._place}, because the settings name it: --fresh does not delete "
                       "such checkpoints. Another checkpoint reads everything again")

    def _warn(self, text: str) -> None:
        """Report a sentence whose subject is the query."""
        self._fed.say(f"{self._label} {text}", "warning")

    def _files_are_local(self) -> bool:
        """True if a path without a scheme is on this host, and not in a file system of the cluster."""
        conf = self._spark.sparkContext._jsc.hadoopConfiguration()
        return str(conf.get("fs.defaultFS", "file:///")).startswith("file:")

    def refuse_more(self) -> None:
        """Accept no micro-batch after the current one."""
        with self._state:
            self._refusing = True

    def stop(self, deadline: float) -> None:
        """Stop the query, waiting until the deadline for the current micro-batch."""
        if self._query is None:
            return
        try:
            with self._state:
                while self._under_way() and (left := deadline - time.monotonic()) > 0:
                    self._state.wait(min(left, 0.05))  # Spark does not announce that it has written its commit
                self._stopped = True
            self._query.stop()
        except SPARK_ERRORS as error:
            log.warning("%s did not stop in time: %s", self._label, first_line(error))
        if self._watch is not None:
            self._watch.join(STOP_SECONDS)

    def _under_way(self) -> bool:
        assert self._query is not None
        if self._refused or not self._query.isActive:
            return False
        return self._pushing or bool(self._query.status["isTriggerActive"])

    # -- called by Spark ---------------------------------------------------------------------------------------------

    def _push(self, dataframe: DataFrame, batch: int) -> None:
        with self._state:
            if self._refusing:  # Spark has committed the batch before this one
                self._refused = True
                raise FeedingFailed(f"{self._label} ends")
            self._pushing = True
        try:
            while not self._send(dataframe, batch):
                log.info("%s sends batch %d again: the topology was rolled back in the meantime", self._label, batch)
            self._forget_other_runs()
        except Exception as error:  # Spark would report it as a stack trace in two languages
            self._failure = first_line(error)
            raise
        finally:
            with self._state:
                self._pushing = False

    def _send(self, dataframe: DataFrame, batch: int) -> bool:
        """Send the micro-batch. Returns False if it must be sent again, because tasks were rolled back meanwhile."""
        roll_backs = self._fed.roll_backs()
        feeding = Feeding(self._fed.endpoint, self._fed.keys, self._graph.name, self._component.name, self._id, batch,
                          CHUNK_TUPLES.of(self._conf), DATAFRAME_ACK_TIMEOUT.of(self._conf),
                          FRAME_LIMIT.of(self._fed.settings), self._component.splits)
        narrow = dataframe.coalesce(self._partitions())
        for sent in map_in_arrow(narrow, partial(feed_partition, feeding), SENT).collect():
            if sent.error:
                raise FeedingFailed(sent.error)
        needs_wave = self._graph.waves and GUARANTEE.of(self._graph.config) == AT_LEAST_ONCE
        return not needs_wave or self._saved(roll_backs)

    def _partitions(self) -> int:
        """The number of partitions that may be sent at the same time, now. All queries like this one share the free cores,
        including those that are starting."""
        free, feeders = self._cores.count(), max(1, self._fed.fed_spouts(), feeding_queries(self._spark))
        if leaves_none(free, feeders) and not self._warned_of_last_core:
            self._warned_of_last_core = True
            self._warn("takes the last core that workers leave free: a query that reads a tap of this cluster would wait for a "
                       "core, and nothing would be acked. To read taps, give the Spark cluster one more core")
        return feeding_share(free, feeders)

    def _forget_other_runs(self) -> None:
        """Delete older runs once a resume would use this one: without state at once, else with the first committed wave."""
        if self._runs is not None and (not self._graph.waves or self._fed.committed_offsets() == self._run):
            self._runs.forget_others(self._run)
            self._runs = None

    def _saved(self, roll_backs: int) -> bool:
        """Wait until a wave that began after the micro-batch is committed: its effects are in the tasks' state, and Spark will
        not send it again. Returns False if tasks were rolled back since, as they may have lost it."""
        wave = self._fed.request_wave() + 1
        while not self._fed.wait_for_wave(wave, roll_backs, WAVE_SECONDS):
            if self._stopped:
                raise FeedingFailed(f"{self._label} ends")
            self._fed.request_wave()
        return self._fed.roll_backs() == roll_backs

    # -- called by the watch -----------------------------------------------------------------------------------------

    def _ended(self, how: str, error: str) -> None:
        reason = (self._failure or error) if error else ""
        self._report_end(f"{how}: {reason}" if reason else how)

    def _abandon(self, how: str) -> None:
        assert self._query is not None
        self._report_end(how)
        with self._state:
            self._stopped = True
        self._query.stop()

    def _report_end(self, how: str) -> None:
        """Report the query's end as an error of the topology, unless it was asked to end."""
        with self._state:
            if self._stopped or self._refusing:
                return
        self._fed.report_error(self._component.name, f"{self._label} {how}. Unacked rows are read again when the topology is "
                               "submitted with the same checkpoint")
