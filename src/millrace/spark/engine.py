"""The resident engine: a master here in the driver, workers as Spark tasks, and handles on running topologies."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millrace.api.topology import Topology
from millrace.control.events import Say
from millrace.errors import MillraceError, UnknownTopology
from millrace.master.observed import TopologyObserved
from millrace.master.service import Master
from millrace.model.graph import TaskId, TopologyGraph, graph_of
from millrace.model.load import Load
from millrace.schedulers.even import Even
from millrace.spark.launcher import SparkLauncher, ship_code
from millrace.spark.session import LOOPBACK, MasterUrl, make_session, parse_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS = 120.0


class ResidentEngine:
    """Runs topologies on a Spark cluster.

        with ResidentEngine("local[4]", slots=2) as engine:
            topology = engine.submit(WordCount)
            topology.wait(seconds=10)

    `slots` workers are started as Spark tasks; each holds a core of the cluster for as long as the engine runs. Give
    `spark` to use a session of yours (it needs a high `spark.task.maxFailures`, and cores to spare), or `master` to have
    one made. `code`: topologies, or names of modules, that workers must be able to import later on.
    """

    def __init__(self, master: str = "local[2]", slots: int = 2, *, spark: SparkSession | None = None,
                 name: str | None = None, bind: str | None = None, port: int = 0, one_worker_per_node: bool = False,
                 code: Sequence[type[Topology] | str] = (), settings: dict[str, Any] | None = None,
                 spark_settings: dict[str, str] | None = None) -> None:
        if slots < 1:
            raise MillraceError(f"{slots} slots were asked for: a topology needs at least 1")
        name = name or f"millrace-{os.getpid()}"
        self.slots = slots
        self._own_session = spark is None
        self._launcher: SparkLauncher | None = None
        self._stopping = False
        self.spark = spark or make_session(master, f"millrace {name}", slots, spark_settings)
        where = parse_master(str(self.spark.sparkContext.master))
        scheduler = Even(one_worker_per_node=one_worker_per_node, spread_back=False)
        try:
            self.master = Master(name, bind or self._driver_host(where), port, settings, scheduler)
            self._launch(where, bind, [item if isinstance(item, str) else item.__module__ for item in code])
        except BaseException:
            self.stop()
            raise

    def _driver_host(self, where: MasterUrl) -> str:
        """An address of this host that workers can reach: the one that Spark's executors already use."""
        if where.on_loopback:
            return LOOPBACK
        return str(self.spark.sparkContext.getConf().get("spark.driver.host", LOOPBACK))

    def _launch(self, where: MasterUrl, bind: str | None, modules: list[str]) -> None:
        path = ship_code(self.spark.sparkContext, modules, installed=where.on_this_machine)
        self.master.start()
        setup = self.master.setup("" if where.on_loopback and not bind else "auto", path)
        self._launcher = SparkLauncher(self.spark.sparkContext, setup, self.slots, self._workers_ended)
        self._launcher.start()
        self.master.wait_for_workers(self.slots, START_SECONDS)

    def submit(self, topology: type[Topology] | TopologyGraph, name: str | None = None,
               config: dict[str, Any] | None = None, par: dict[str, int] | None = None) -> RunningTopology:
        """Start a topology. Returns at once; `RunningTopology.wait_running` waits for its tasks."""
        graph = topology if isinstance(topology, TopologyGraph) else graph_of(topology, name, config, par)
        for component in graph.components:
            if component.code.startswith("__main__:"):
                raise MillraceError(f"component {component.name!r} is defined in the script that was started, which workers "
                                    "cannot import: put the topology into a module of its own and import it from there")
        self.master.submit(graph)
        return RunningTopology(self.master, graph.name)

    def status(self) -> dict[str, Any]:
        return self.master.status()

    def stop(self) -> None:
        """End workers and master in good order, and the session if it is ours."""
        self._stopping = True
        if hasattr(self, "master"):
            self.master.stop()
        if self._launcher is not None:
            self._launcher.stop()
        if self._own_session:
            self.spark.stop()

    def _workers_ended(self, error: str) -> None:
        if not self._stopping:
            text = f"the workers' Spark job ended: {error or 'no worker is left'}"
            self.master.call(lambda: self.master.say(Say(text, level="warning")))

    def __enter__(self) -> ResidentEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


class RunningTopology:
    """A handle on one topology of an engine."""

    def __init__(self, master: Master, name: str) -> None:
        self._master, self.name = master, name

    @property
    def status(self) -> str:
        """waiting, starting, running, paused, stopping, or ended."""
        state = self._master.state.topologies.get(self.name)
        return state.status if state is not None else "ended"

    def observed(self) -> TopologyObserved:
        """What its tasks have reported; still there after it ended."""
        found = self._master.observed.get(self.name) or self._master.finished.get(self.name)
        if found is None:
            raise UnknownTopology(f"no topology named {self.name!r} was submitted here")
        return found

    def load(self) -> Load:
        load: Load = self._master.call(lambda: self.observed().load(time.monotonic()))
        return load

    def wait_running(self, seconds: float = 60.0) -> bool:
        return self._master.wait_until(lambda: self.status == "running", seconds)

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most so long. Returns whether it has ended."""
        return self._master.wait_until(lambda: self.status == "ended", seconds)

    def pause(self) -> None:
        """Stop the spouts; everything else goes on."""
        self._master.pause(self.name)

    def resume(self) -> None:
        self._master.resume(self.name)

    def drain(self, seconds: float = 30.0) -> bool:
        """Pause, and wait until nothing is in flight any more. Returns whether that was reached."""
        self.pause()
        state = self._master.state
        return self._master.wait_until(
            lambda: self.name in state.topologies and state.drained(state.topologies[self.name]), seconds)

    def positions(self) -> dict[TaskId, int]:
        """Per replayable spout task, the position below which everything has been fully processed."""
        state = self._master.state.topologies.get(self.name)
        return dict(state.positions) if state is not None else {}

    def kill(self, wait: float = 10.0) -> None:
        """Stop the spouts, give what is in flight up to `wait` seconds, end the tasks. Returns at once."""
        self._master.kill(self.name, wait)
