"""The resident engine: a master in the driver, and workers as Spark tasks."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millrace.api.dataframe import dataframes_of
from millrace.api.topology import Topology
from millrace.config import CHECKPOINTS, RESIDENT, check_engine_settings, check_topology_config
from millrace.control.events import Say
from millrace.control.scheduling.capacity import AutoWorkers
from millrace.control.submission import AUTO, OLDER, Resume, check_not_running
from millrace.errors import MillraceError, NotEnoughSlots, TopologyError
from millrace.master.checkpoints.checkpointing import default_store
from millrace.master.service import Master
from millrace.model.graph import TopologyGraph, graph_of, resolve
from millrace.schedulers.even import Even
from millrace.spark.cluster.launcher import LauncherHooks, SparkLauncher, ship_code
from millrace.spark.dataframes.declared import check_dataframes, resolve_dataframes
from millrace.spark.dataframes.feeding import STOP_SECONDS, FeedingQueries
from millrace.spark.running_topology import RunningTopology
from millrace.spark.session import start_up
from millrace.spark.session.early import early_or_new
from millrace.spark.session.encryption import check_encryption, check_stores
from millrace.spark.session.errors import GONE, is_gone
from millrace.spark.session.master_url import LOOPBACK, MasterUrl, parse_master
from millrace.spark.session.session import application, default_name, session_of, stop_spark
from millrace.spark.session.settings import EXCLUDING

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

START_SECONDS = 120.0
LOOK_SECONDS = 2.0
START_FAILURES = 5  # failed Spark tasks for each worker before the start is abandoned
MUST_BE_OFF = (
    ("spark.speculation", "Spark must not start a second copy of a worker"),
    ("spark.python.worker.killOnIdleTimeout", "a worker may not talk to Spark for days"),
    *((key, "Spark must restart a dead worker on the same executor") for key in EXCLUDING),
)
FAILURES_NEEDED = 100  # of a task, before Spark may fail the job: workers die and are restarted for days


class ResidentEngine:
    """Runs topologies on a Spark cluster.

        with ResidentEngine("local[4]", slots=2) as engine:
            topology = engine.submit(WordCount)
            topology.wait(seconds=10)

    `slots` workers run as Spark tasks, each of which holds a core of the cluster; `add_workers`, `remove_worker`,
    `restart_worker` and `set_auto_workers` change them while topologies run. Pass `spark` to use your own session
    (it needs a high `spark.task.maxFailures`, and cores to spare), or `master` to have one created. `code`: topologies, or
    names of modules, that workers must be able to import later. `require_encryption`: raise `NotEncrypted` instead of warning
    if anything would travel between hosts unencrypted.
    """

    def __init__(self, master: str = "local[2]", slots: int = 2, *, spark: SparkSession | None = None,
                 name: str | None = None, bind: str | None = None, port: int = 0, one_worker_per_node: bool = False,
                 code: Sequence[type[Topology] | str] = (), settings: dict[str, Any] | None = None,
                 spark_settings: dict[str, str] | None = None, require_encryption: bool = False) -> None:
        if slots < 1:
            raise MillraceError(f"{slots} slots were requested: a topology needs at least 1")
        check_engine_settings(settings or {})
        AutoWorkers.of(settings or {})  # refuses limits that contradict each other before Spark starts
        if require_encryption:
            check_stores(settings or {})
        # A generated name changes with each run, but checkpoints must be found again.
        settings = {CHECKPOINTS.key: default_store(name or "default"), **(settings or {})}
        name = name or default_name()
        self._first_slots = slots
        self._own_session = spark is None
        self._launcher: SparkLauncher | None = None
        self._stopping = False
        self.lost = ""  # the error to report once Spark has ended
        self._feeding: list[FeedingQueries] = []
        self._session, self._making_session = spark, threading.Lock()
        self._context = spark.sparkContext if spark else early_or_new(master, application(name), slots, spark_settings)
        if spark is not None:
            check_session(spark)
        where = parse_master(str(self._context.master))
        scheduler = Even(one_worker_per_node=one_worker_per_node, spread_back=False)
        try:
            self.unencrypted = check_encryption(conf_of(self._context), where, require_encryption)
            self.master = Master(name, bind or self._driver_host(where), port, settings, scheduler)
            for text in self.unencrypted:
                self.master.say(Say(text, level="warning"))
            self._launch(where, bind, [item if isinstance(item, str) else item.__module__ for item in code])
        except BaseException:
            self.stop()
            raise

    def _driver_host(self, where: MasterUrl) -> str:
        """An address of this host that workers can reach: the one that Spark's executors use."""
        if where.on_loopback:
            return LOOPBACK
        return str(self._context.getConf().get("spark.driver.host", LOOPBACK))

    def _launch(self, where: MasterUrl, bind: str | None, modules: list[str]) -> None:
        path = ship_code(self._context, modules, installed=where.on_this_machine)
        self.master.start()
        setup = self.master.setup("" if where.on_loopback and not bind else "auto", path)
        hooks = LauncherHooks(
            ended=self._workers_ended, failed=self._say, wanted=self._wants_worker,
            hosts=self.master.note_hosts, needs_cores=lambda: bool(self.spark.streams.active),
            workers=lambda: {slot: worker.executor for slot, worker in dict(self.master.state.workers).items()})
        self._launcher = SparkLauncher(self._context, setup, self._first_slots, hooks, self._own_session)
        self._launcher.start()
        deadline = time.monotonic() + START_SECONDS
        while not self.master.wait_until(lambda: len(self.master.state.workers) >= self._first_slots, LOOK_SECONDS):
            failed = self._launcher.failures()
            if self._launcher.over or failed >= START_FAILURES * self._first_slots or time.monotonic() >= deadline:
                self._cannot_start(failed)
        start_up.reached("workers")
        self.master.pool.supply = self._launcher  # not before: the first workers would count as missing

    @property
    def spark(self) -> SparkSession:
        """The Spark session, for DataFrames. Made when it is first asked for: workers do not need it, and it takes a second."""
        with self._making_session:
            if self._session is None:
                self._session = session_of(self._context)
            return self._session

    @property
    def slots(self) -> int:
        """The number of workers, including those that are being started."""
        return len(self._launcher.slots()) if self._launcher is not None else self._first_slots

    def _cannot_start(self, failed: int) -> None:
        started = len(self.master.state.workers)
        warnings = [event["text"] for event in self.master.events if event["level"] == "warning"]
        raise NotEnoughSlots(
            f"{started} of {self._first_slots} workers started; {failed} of their Spark tasks failed"
            + (f" ({warnings[-1]})" if warnings else "") + ". Check that the executors' Python environments have Millrace's "
            "dependencies (pyzmq, msgspec, pyarrow, numpy, hdrhistogram, psutil, pyeclib), that "
            f"{self._first_slots} cores are free, and that the executors can reach {self.master.endpoint}. The executors' "
            "stderr has the reason; MILLRACE_SPARK_LOG=info shows Spark's own log.")

    def submit(self, topology: type[Topology] | TopologyGraph, name: str | None = None,
               config: dict[str, Any] | None = None, par: dict[str, int] | None = None,
               resume: Resume = None) -> RunningTopology:
        """Start a topology. `resume`: True continues from its last committed wave; False starts empty, and the checkpoints of
        earlier runs are deleted once this one has committed its own; None is refused if there are any; "auto" continues if
        there are any, and starts otherwise; "older" goes back to the previous run, if the last fresh one stopped before its
        first commit. Returns at once; `RunningTopology.wait_running` waits for its tasks."""
        check_topology_config(config or {})
        graph = topology if isinstance(topology, TopologyGraph) else graph_of(topology, name, config, par)
        check_code(graph, RESIDENT)
        declared = {} if isinstance(topology, TopologyGraph) else dataframes_of(topology)
        check_dataframes(graph, declared)
        dataframes = resolve_dataframes(self.spark, topology) if isinstance(topology, type) and declared else {}
        queries = FeedingQueries(self.master.fed(graph.name), graph, dataframes, lambda: self.slots)
        check_not_running(graph.name, self.master.state.topologies)  # else its own positions would pass for an earlier run's
        queries.prepare(resume)
        # Without state the master has nothing to resume; Spark's positions are resumed by the queries, of the last run only.
        of_master = resume if graph.waves or not dataframes or resume == OLDER else None
        resumed = self.master.submit(graph, of_master, queries.run)
        if dataframes:
            self._feed(queries, _positions_choice(resume, resumed, graph.waves))
        return RunningTopology(self.master, graph.name)

    def _feed(self, queries: FeedingQueries, resume: bool | None) -> None:
        try:
            queries.start(resume)
        except BaseException:
            self.master.checkpointing.start_failed(queries.name)
            self.master.kill(queries.name, wait=0)
            raise
        self._feeding = [*(other for other in self._feeding if other.name != queries.name), queries]

    def set_scheduler(self, name: str, parameters: dict[str, Any] | None = None, *, estimator: str | None = None,
                      estimator_parameters: dict[str, Any] | None = None, enact: bool = False, **policy: Any) -> dict[str, Any]:
        """Set the scheduler that places new topologies and re-plans running ones from now on: a name from `millrace scheduler
        list`, `module:Class`, or "off". `enact`: carry out its next plan whatever that gains. `policy`: period, cool_down,
        min_gain, overload, time_limit, balance, dry_run, strategy, strategy_parameters. Returns what is in use now."""
        return self.master.set_scheduler(name, parameters or {}, policy, estimator, estimator_parameters, enact)

    def decisions(self, limit: int = 20) -> list[dict[str, Any]]:
        """The scheduler's last decisions, oldest first."""
        decisions: list[dict[str, Any]] = self.master.call(lambda: self.master.scheduling.past(limit))
        return decisions

    def status(self) -> dict[str, Any]:
        return self.master.status()

    def workers(self) -> list[dict[str, Any]]:
        """The workers: {"slot", "node", "executor", "pid", "tasks", "leaving"}."""
        return self.master.workers()

    def add_workers(self, count: int) -> list[int]:
        """Start workers, on executors with free cores, and wait until they have joined. Returns their slots. Tasks move there
        when a scheduler, or you, move them. Raises `NotEnoughSlots` if there is no room for all of them."""
        slots: list[int] = self.master.add_workers(count)["slots"]
        return slots

    def remove_worker(self, slot: int) -> dict[str, Any]:
        """Hand the tasks of a worker over to the others, end it and give its slot back; also its executor, if no other worker
        is there and the engine created the session. Waits until that is done. Returns {"slot", "node", "executor", "pid",
        "executor_given_back", "ms"}."""
        return self.master.remove_worker(slot)

    def restart_worker(self, slot: int) -> dict[str, Any]:
        """Start the process of a worker anew. Other workers have its tasks meanwhile; tasks that cannot be moved wait for it.
        Waits until they are back. Returns {"slot", "old_pid", "new_pid", "old_node", "new_node", "ms"}."""
        return self.master.restart_worker(slot)

    def set_auto_workers(self, limits: str | None = None, **values: float) -> dict[str, Any]:
        """Let the number of workers follow the load, within limits: "2..6", or "off". `values`: idle, cool_down, share, as in
        `millrace workers auto`. Whatever is left out stays as it is. Returns the settings in use, with the last decision."""
        answer: dict[str, Any] = self.master.call(lambda: self.master.capacity.choose(limits, values))
        return answer

    def stop(self) -> None:
        """Stop the workers, the master, and the session if the engine created it."""
        self._stopping = True
        for queries in self._feeding:
            queries.stop(STOP_SECONDS)
        if hasattr(self, "master"):
            self.master.stop()
        if self._launcher is not None:
            self._launcher.stop()
        if self._own_session and not stop_spark(self._context):
            self.lost = GONE

    def _wants_worker(self, slot: int) -> bool:
        """True if the worker of the slot, which has ended, should be started again."""
        return (not self._stopping and not self.master.superseded and self.master.state.wants(slot)
                and not is_gone(self._context))

    def _say(self, text: str) -> None:
        """Report a warning, unless the master has ended: these calls come from other threads at any time."""
        if not self._stopping:
            self.master.later(lambda: self.master.say(Say(text, level="warning")))

    def _workers_ended(self, error: str) -> None:
        if not self._stopping:
            self.lost = GONE if is_gone(self._context) else ""
            text = self.lost or f"the workers' Spark jobs ended: {error or 'no worker is left'}"
            self.master.call(lambda: self.master.say(Say(text, level="warning")))
            if self.lost:
                self.master.kill_all()  # without Spark no worker is restarted

    def __enter__(self) -> ResidentEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _positions_choice(resume: Resume, resumed: bool, has_waves: bool) -> bool | None:
    """True if Spark's positions of an earlier run are resumed, False if not, None if nothing was chosen. `resumed`: the master
    has resumed a checkpoint."""
    if resume is None:
        return None
    if resume == AUTO:
        return resumed or not has_waves
    return bool(resume)


def check_code(graph: TopologyGraph, engine: str) -> None:
    """Refuse code that workers cannot import, and components of another engine."""
    for component in graph.components:
        for code in [component.code, *(source.grouping.code for source in component.inputs if source.grouping.code)]:
            if code.startswith("__main__:"):
                raise MillraceError(f"{code.removeprefix('__main__:')}, of component {component.name!r}, is defined in the "
                                    "script that was started, which workers cannot import: move it into its own module "
                                    "and import it from there")
            resolve(code)  # so that an error shows here and not in the workers
        component_cls = resolve(component.code)
        if component_cls.only_on not in ("", engine):
            raise TopologyError(f"{component.name!r} is a {component_cls.__name__}, which works on the "
                                f"{component_cls.only_on} engine only, but {graph.name!r} was submitted to the {engine} one")


def check_session(spark: SparkSession) -> None:
    """Refuse a user's session in which Spark would not restart dead workers."""
    context = spark.sparkContext
    local = re.fullmatch(r"local(?:\[[^,\]]*(?:,\s*(\d+)\s*)?\])?", str(context.master))
    allowed = int((local[1] or 1) if local else context.getConf().get("spark.task.maxFailures", "4") or 4)
    if allowed < FAILURES_NEEDED:
        raise MillraceError(f"this Spark session fails a job after {allowed} failures of a task, and a dead worker counts as "
                            "one: create the session with spark.task.maxFailures=1000000"
                            + (" and the master local[N,1000000]" if local else "") + ", or let Millrace create it")
    check_off(context.getConf())


def conf_of(context: SparkContext) -> dict[str, str]:
    """All settings of a running Spark."""
    return dict(context.getConf().getAll())


def check_off(conf: SparkConf) -> None:
    for key, why in MUST_BE_OFF:
        if str(conf.get(key, "false")).strip().lower() == "true":
            raise MillraceError(f"this Spark session has {key}=true, but {why}: create the session with {key}=false, or "
                                "let Millrace create it")
