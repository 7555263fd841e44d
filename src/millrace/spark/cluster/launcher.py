"""Workers as long-lived Spark tasks: one job with a partition for each slot, which runs until the master stops it."""

from __future__ import annotations

import atexit
import importlib
import logging
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread

import millrace
from millrace.config import SPREAD_WAIT
from millrace.runtime.leftovers import UsedDirectory, sweep
from millrace.runtime.worker.process import WorkerSetup, run_worker
from millrace.spark.cluster.identity import executor_id
from millrace.spark.cluster.placement import Placement
from millrace.spark.cluster.spread import Expected, all_registered, spread
from millrace.spark.session.errors import SPARK_ERRORS, first_line
from millrace.spark.session.master_url import parse_master

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger("millrace.master")
WORKERS_GROUP = "millrace-"  # prefix of the job groups in which workers run
END_SECONDS = 2.0
CANCEL_SECONDS = 10.0
REGISTER_SECONDS = 30.0  # the longest wait for executors that have not registered
LOOK_SECONDS = 0.1  # between two looks at the executors at the start
HOSTS_SECONDS = 5.0  # between two looks at the hosts later


class SparkLauncher:
    """Starts the workers' job on its own thread and calls `ended` when it is over, with the error or "".

    Spark restarts a worker whose process, executor or host dies; the launcher does not. `hosts` is called with the host of
    each executor, from time to time.
    """

    def __init__(self, context: SparkContext, setup: WorkerSetup, slots: int, ended: Callable[[str], None],
                 hosts: Callable[[dict[str, str]], None]) -> None:
        self._context, self._setup, self._slots, self._ended, self._hosts = context, setup, slots, ended, hosts
        self._placement, self._stopped = Placement(context), threading.Event()
        self._group = f"{WORKERS_GROUP}{setup.cluster}"
        self._thread = InheritableThread(target=self._run, daemon=True, name="millrace workers")

    def start(self) -> None:
        self._thread.start()
        threading.Thread(target=self._watch_hosts, daemon=True, name="millrace hosts").start()

    def _run(self) -> None:
        self._context.setJobGroup(self._group, f"Millrace workers ({self._slots} slots)", interruptOnCancel=True)
        try:
            slots = self._placement.seeds(self._locations())
            if not self._stopped.is_set():
                self._placement.collect(self._placement.python(slots, partial(run_slot, self._setup)))
        except Exception as error:  # any error of Spark here ends all workers, and must be reported
            self._ended(f"{type(error).__name__}: {first_line(error)}")
        else:
            self._ended("")

    def _locations(self) -> list[str]:
        """The preferred location of each slot, spread over the hosts that there are. Spark by itself would fill the first
        executors that register."""
        if self._placement.local:
            return [""] * self._slots
        conf = dict(self._context.getConf().getAll())
        cpus = int(conf.get("spark.task.cpus", "1"))
        expected = Expected.of(conf, parse_master(str(self._context.master)).executors)
        settle: float = SPREAD_WAIT.of(self._setup.settings)
        deadline = time.monotonic() + REGISTER_SECONDS
        while True:
            executors = self._placement.registered()
            if (time.monotonic() >= deadline or all_registered(executors, self._slots, cpus, expected, time.time(), settle)
                    or self._stopped.wait(LOOK_SECONDS)):
                self._hosts({executor.id: executor.host for executor in executors})
                places = spread(self._slots, executors, cpus)
                return [place.location if place is not None else "" for place in places]

    def _watch_hosts(self) -> None:
        while not self._stopped.wait(HOSTS_SECONDS):
            try:
                self._hosts({executor.id: executor.host for executor in self._placement.executors()})
            except SPARK_ERRORS as error:  # Spark has ended, which the workers' job reports
                log.info("the executors' hosts are not known: %s", first_line(error))
                return

    def failures(self) -> int:
        """The number of the workers' Spark tasks that have failed so far."""
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return sum(stage.numFailedTasks for stage in stages if stage)

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Wait for the job to end, and cancel it if it does not: a worker may be stuck, or was starting and missed the request.
        Call it after the workers were asked to stop."""
        self._stopped.set()
        self._thread.join(timeout=END_SECONDS)
        if self._thread.is_alive():
            try:
                self._context.cancelJobGroup(self._group)
            except SPARK_ERRORS as error:  # Spark has ended, so the workers end too
                log.info("the workers' job could not be cancelled: %s", first_line(error))
            self._thread.join(timeout=CANCEL_SECONDS)


def run_slot(setup: WorkerSetup, slot: int, records: Iterable[bytes]) -> Iterable[bytes]:
    """The body of one Spark task."""
    run_worker(setup, slot, executor_id())
    return ()


def ship_code(context: SparkContext, modules: Iterable[str], installed: bool) -> tuple[str, ...]:
    """Make users' modules importable where workers run. On this machine (`installed`) their directories are enough, and are
    returned; to other machines Spark ships them, and Millrace itself, as zip files."""
    roots = {name.partition(".")[0] for name in modules} - {"millrace", "builtins"}
    places = [_place(importlib.import_module(root)) for root in sorted(roots)]
    if installed:
        return tuple(dict.fromkeys([*(str(path.parent) for path in places), *filter(None, sys.path[:1])]))
    for path in [_place(millrace), *places]:
        context.addPyFile(_archive(path))
    return ()


def _place(module: Any) -> Path:
    """The file of a module, or the directory of a package, with or without an `__init__.py`."""
    packages = list(getattr(module, "__path__", ()))
    return Path(packages[0] if packages else module.__file__).resolve()


def _archive(path: Path) -> str:
    if path.is_file():
        return str(path)
    directory = UsedDirectory(Path(tempfile.mkdtemp(prefix="millrace-code-")))
    sweep(directory.path.parent)
    atexit.register(directory.leave)  # Spark serves the archive from there while it runs
    return shutil.make_archive(str(directory.path / path.name), "zip", path.parent, path.name)
