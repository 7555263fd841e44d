"""The microbatch engine: runs topologies as Structured Streaming queries, under the same master as resident ones."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millrace.api.topology import Topology
from millrace.config import AUTO_MAX, CHECKPOINTS, MICROBATCH, check_engine_settings, check_topology_config
from millrace.control.batches.decisions import check_digest, needs_offsets, start_from
from millrace.control.events import Say, Submitted
from millrace.control.submission import Resume, check_guarantee, check_settings
from millrace.errors import CorruptCheckpoint, MillraceError, NotEnoughSlots, TopologyError
from millrace.master.checkpoints.checkpointing import default_store
from millrace.master.service import Master
from millrace.model.graph import TopologyGraph, batched, graph_of
from millrace.redaction import shown_place
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.schedulers.same_slot import SameSlot
from millrace.spark.batches.offsets import SparkOffsets
from millrace.spark.batches.query import BatchQuery
from millrace.spark.cluster.executors import Executors
from millrace.spark.cluster.free_cores import FreeCores
from millrace.spark.cluster.launcher import ship_code
from millrace.spark.cluster.placement import Placement
from millrace.spark.dataframes.declared import resolve_dataframes
from millrace.spark.dataframes.writer import SinkWriter, sink_writers, with_schemas
from millrace.spark.engine import check_code, conf_of
from millrace.spark.running_topology import RunningTopology
from millrace.spark.session.encryption import check_encryption, check_stores
from millrace.spark.session.errors import GONE
from millrace.spark.session.master_url import LOOPBACK, parse_master
from millrace.spark.session.session import application, default_name, make_batch_session, stop_spark
from millrace.spark.session.settings import EXCLUDING
from millrace.state.checkpoint import base_wave
from millrace.state.path_step import path_step

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import DataFrame, SparkSession

START_SECONDS = 120.0
OFFSETS_DIRECTORY = ".spark"  # directory of Spark's offsets in the checkpoint store
NEEDED = (
    ("spark.stage.maxConsecutiveAttempts", "1", "4", "a batch must be run again as a whole or not at all"),
    ("spark.speculation", "false", "false", "a task of a batch must not be run twice"),
    ("spark.python.worker.reuse", "true", "true", "state stays in Python processes from one batch to the next"),
    *((key, "false", "false", "a failed batch is run again on the same executors, which Spark must not exclude for that")
      for key in EXCLUDING),
)

_engines: dict[int, MicrobatchEngine] = {}  # running in this process, by number; several may share a session
_entering = threading.Lock()


class MicrobatchEngine:
    """Runs topologies batch by batch on a Spark cluster; every byte between tasks goes through Spark's shuffle.

        with MicrobatchEngine("local-cluster[2,1,1024]") as engine:
            topology = engine.submit(WordCount)
            topology.wait(seconds=10)

    A slot is one of Spark's executors; `slots`: how many to wait for. Pass `spark` to use your own session, or `master` to
    have one made. `code`: topologies, or names of modules, that executors must be able to import. `require_encryption`: raise
    `NotEncrypted` instead of warning if anything would travel between hosts unencrypted.
    """

    def __init__(self, master: str = "local[2]", slots: int = 1, *, spark: SparkSession | None = None, name: str | None = None,
                 code: Sequence[type[Topology] | str] = (), settings: dict[str, Any] | None = None,
                 spark_settings: dict[str, str] | None = None, require_encryption: bool = False) -> None:
        if slots < 1:
            raise MillraceError(f"{slots} slots were asked for: a topology needs at least 1")
        check_engine_settings(settings or {})
        if AUTO_MAX.of(settings or {}):
            raise MillraceError(f"{AUTO_MAX.key}: the microbatch engine has no workers of its own. Start or stop Spark "
                                "executors, whose number it follows with the next batch, or use the resident engine")
        if require_encryption:
            check_stores(settings or {})
        check_slots(str(spark.sparkContext.master) if spark is not None else master, slots)
        settings = {CHECKPOINTS.key: default_store(name or "default"), **(settings or {})}
        name = name or default_name()
        self._own_session, self.number = spark is None, -1
        self.lost = ""  # the error to report once Spark has ended
        self._queries: dict[str, BatchQuery] = {}
        self._epoch, self._epochs = 0, threading.Lock()
        self.spark = spark or make_batch_session(master, application(name), spark_settings)
        where = parse_master(str(self.spark.sparkContext.master))
        try:
            self.unencrypted = check_encryption(conf_of(self.spark.sparkContext), where, require_encryption)
            check_batch_settings(self.spark.sparkContext.getConf())
            if where.kind != "local":
                check_allocation(self.spark.sparkContext.getConf(), slots)
            self.free_cores = FreeCores(self.spark.sparkContext)
            check_free(self.free_cores)
            self.number = enter(self)
            host = LOOPBACK if where.on_loopback else str(self.spark.sparkContext.getConf().get("spark.driver.host", LOOPBACK))
            self.master = Master(name, host, 0, settings, SameSlot())
            for text in self.unencrypted:
                self.master.say(Say(text, level="warning"))
            self.placement = Placement(self.spark.sparkContext)
            path = ship_code(self.spark.sparkContext, [item if isinstance(item, str) else item.__module__ for item in code],
                             installed=where.on_this_machine)
            self.setup = self.master.setup("" if where.on_loopback else "auto", path)
            self.master.start()
            self.executors = Executors(self.placement, self.master.batching, self.master.settings, where.on_this_machine)
            self.executors.wait_for(slots, START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def submit(self, topology: type[Topology] | TopologyGraph, name: str | None = None, config: dict[str, Any] | None = None,
               par: dict[str, int] | None = None, resume: Resume = None,
               sources: dict[str, DataFrame] | None = None) -> RunningTopology:
        """Start a topology. `resume`: True continues from its last committed batch, with the parallelism that it was scaled to,
        unless `par` names another or the declaration has changed since; False starts empty, and the checkpoints of earlier
        runs are deleted once this one has committed its own; None is refused if there are any; "auto" continues if there are
        any, and starts otherwise; "older" goes back to the previous run, if the last fresh one stopped before its first commit.
        `sources`: streaming DataFrames by component, for a graph with DataFrame spouts; a class declares its own."""
        check_topology_config(config or {})
        graph = batched(topology if isinstance(topology, TopologyGraph) else graph_of(topology, name, config, par))
        check_code(graph, MICROBATCH)
        check_settings(graph)
        check_guarantee(graph)
        if sources is None and isinstance(topology, type):
            sources = resolve_dataframes(self.spark, topology)
        check_sources(graph, sources or {})
        offsets_place(str(CHECKPOINTS.of(self.master.settings)), graph.name, "")
        writers = sink_writers(graph)
        graph = with_schemas(graph, writers)
        self._wait_for_earlier_query(graph.name)
        attempt = self.master.checkpointing.attempt(graph, resume)
        try:
            self._check_offsets(attempt.outlook)
            self.master.check(attempt.outlook)
            self.executors.check_store(str(CHECKPOINTS.of(self.master.settings)))
            event = self.master.checkpointing.take_over(attempt)
            self._check_offsets(event)
            graph = event.graph
            query = self._query(graph, sources or {}, event, writers)
            self.master.submit_batched(event)
        except BaseException:
            self.master.checkpointing.refused(attempt)
            raise
        self._queries[graph.name] = query
        try:
            query.start(self.master.state.topologies[graph.name].number)
        except BaseException:
            del self._queries[graph.name]  # it never ends, and nobody may wait for that
            self.master.checkpointing.start_failed(graph.name)
            self.master.batching.finish(graph.name, "it could not be started")
            raise
        return RunningTopology(self.master, graph.name)

    def _query(self, graph: TopologyGraph, sources: dict[str, DataFrame], event: Submitted,
               writers: list[SinkWriter]) -> BatchQuery:
        checkpoints = Checkpoints(open_store(str(CHECKPOINTS.of(self.master.settings))), graph.name,
                                  self.master.checkpointing.author(graph.name))
        start = start_from(event.checkpoint, self.next_epoch(event.after[0]), sources)
        place = offsets_place(str(CHECKPOINTS.of(self.master.settings)), graph.name, start.offsets)
        run = f"{self.master.cluster}/{graph.name}/{uuid.uuid4().hex[:8]}"
        return BatchQuery(self, graph, sources, run, checkpoints, start, place, writers)

    def _wait_for_earlier_query(self, name: str) -> None:
        """Wait for an earlier topology of the same name, which may have ended for the master and still be aborting a batch."""
        earlier = self._queries.get(name)
        if earlier is not None and name not in self.master.state.topologies and not earlier.wait(START_SECONDS):
            raise MillraceError(f"an earlier topology named {name!r} was killed and is still in its last batch: its code does "
                                "not return. Wait for it, or choose another name")

    def next_epoch(self, after: int = 0) -> int:
        """An epoch larger than all that this engine, or an earlier one, has used."""
        with self._epochs:
            self._epoch = max(self._epoch, self.master.state.author, after) + 1
            return self._epoch

    def runs(self) -> list[str]:
        """Runs that have not ended, including those of other engines: they may share Python processes with this one."""
        return [query.run for engine in list(_engines.values()) for query in list(engine._queries.values()) if not query.over]

    def spark_is_gone(self) -> None:
        """Called by a query that has noticed that Spark has ended."""
        self.lost = GONE

    def _check_offsets(self, event: Submitted) -> None:
        """Refuse to resume if Spark's offsets are gone: it would repeat batches that are done."""
        name, committed = event.graph.name, event.checkpoint
        if committed is None or not needs_offsets(committed):
            return
        place = offsets_place(str(CHECKPOINTS.of(self.master.settings)), name, committed.offsets)
        if not self.placement.exists(f"{place}/offsets"):
            raise CorruptCheckpoint(f"the checkpoint of {name!r} belongs to Spark's offsets in {place}, which do not exist. "
                                    "Restore them from a backup together with the checkpoints; without them the sources would "
                                    "be read from the wrong position")
        digest = SparkOffsets(self.placement, place).digest(committed.wave - base_wave(committed.offsets) - 1)
        if digest:  # without one Spark plans the batch again, perhaps with the same rows: checked when it offers the batch
            check_digest(committed, digest)

    def set_scheduler(self, name: str, parameters: dict[str, Any] | None = None, *, estimator: str | None = None,
                      estimator_parameters: dict[str, Any] | None = None, enact: bool = False, **policy: Any) -> dict[str, Any]:
        """Change the scheduler, as for the resident engine; a new plan takes effect with the next batch."""
        return self.master.set_scheduler(name, parameters or {}, policy, estimator, estimator_parameters, enact)

    def status(self) -> dict[str, Any]:
        return self.master.status()

    def stop(self) -> None:
        """Stop the queries after the current batch, and the session if this engine made it."""
        for query in self._queries.values():
            query.stop()
        _engines.pop(self.number, None)
        if hasattr(self, "master"):
            self.master.stop()
        if self._own_session and hasattr(self, "spark") and not stop_spark(self.spark.sparkContext):
            self.lost = GONE

    def __enter__(self) -> MicrobatchEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def enter(engine: MicrobatchEngine) -> int:
    """Register the engine; its number is unique in this process and separates its Python processes from others'."""
    with _entering:
        number = min(set(range(len(_engines) + 1)) - _engines.keys())
        _engines[number] = engine
    return number


def check_sources(graph: TopologyGraph, sources: Mapping[str, DataFrame]) -> None:
    missing = [spout.name for spout in graph.spouts if spout.dataframe and spout.name not in sources]
    if missing:
        raise TopologyError(f"{', '.join(missing)} of {graph.name!r} reads a DataFrame, and none was given: submit the "
                            "topology class, or pass submit(sources={...})")


def offsets_place(store: str, topology: str, offsets: str) -> str:
    """URI of the directory for Spark's offsets: beside the checkpoints, on a file system that Spark supports."""
    if store.startswith(("redis://", "rediss://")):
        raise TopologyError(f"{CHECKPOINTS.key} is {shown_place(store)}, and Spark keeps its offsets in files: set it to "
                            "a directory, or to a URI of a file system that Spark supports")
    base = store if "://" in store else Path(store).expanduser().absolute().as_uri()
    return f"{base.rstrip('/')}/{OFFSETS_DIRECTORY}/{path_step(topology)}/{offsets}"


def check_slots(master: str, slots: int) -> None:
    """Refuse more slots than the master can have, before waiting for executors."""
    if parse_master(master).kind == "local" and slots > 1:
        raise NotEnoughSlots(f"{slots} slots were asked for, and a slot is one of Spark's executors: {master} has 1, however "
                             "many cores it has. Use 1 slot, whose cores run tasks in parallel, or the master "
                             f"local-cluster[{slots},CORES,MEGABYTES]")


def check_free(cores: FreeCores) -> None:
    """Refuse a session without a free core, on which batches would wait forever."""
    held, free = cores.held(), cores.count()
    if held and free < 1:
        raise NotEnoughSlots(f"resident workers on this Spark session hold {held} of its {held + free} cores permanently, "
                             "and batches need at least one: use a session with more cores, or one session per engine")


def check_batch_settings(conf: SparkConf) -> None:
    """Refuse settings with which Spark would rerun a part of a batch on its own."""
    for key, needed, default, why in NEEDED:
        if str(conf.get(key, default)).strip().lower() != needed:
            raise MillraceError(f"this Spark session has {key}={conf.get(key, default)}, and {why}: it must be made with "
                                f"{key}={needed}, as Millrace does by default")


def check_allocation(conf: SparkConf, slots: int) -> None:
    """Refuse dynamic allocation that may release all executors: batches are planned only for executors that exist."""
    enabled = str(conf.get("spark.dynamicAllocation.enabled", "false")).strip().lower() == "true"
    least = int(str(conf.get("spark.dynamicAllocation.minExecutors", "0")))
    if enabled and least < slots:
        raise MillraceError("this Spark session has spark.dynamicAllocation.enabled=true and may release all executors but "
                            f"{least}, for example while a topology is paused. They would not come back: Spark adds executors "
                            "for jobs that wait, and no batch begins before there are executors to plan it for. Set "
                            f"spark.dynamicAllocation.minExecutors={slots} or more, the number of slots, or "
                            "spark.dynamicAllocation.enabled=false")
