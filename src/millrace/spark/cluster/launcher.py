"""Workers as long-lived Spark tasks: one job with one task for each slot, so that single workers can be started, ended and
started again."""

from __future__ import annotations

import atexit
import importlib
import logging
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread

import millrace
from millrace.config import SPREAD_WAIT
from millrace.control.pauses import doubled_pause
from millrace.errors import NotEnoughSlots
from millrace.hotpath.steps import compiled_file
from millrace.runtime.leftovers import UsedDirectory, sweep
from millrace.runtime.worker.process import WorkerSetup, run_worker
from millrace.spark.cluster.identity import executor_id
from millrace.spark.cluster.placement import Executor, Placement
from millrace.spark.cluster.spread import Expected, all_registered, free_on, is_spare, missing_executors, spread
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
ROOM_SECONDS = 30.0  # the longest wait for executors with room for new workers
IDLE_SECONDS = 5.0  # the longest wait for Spark to notice that a core is free again
UNLIMITED = 1 << 30  # executors
SHORT_SECONDS = 1.0  # a job that ends sooner counts as failed
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0  # seconds before a job that failed is started again


class SlotJob:
    """The Spark job of one slot, on a thread of its own: one task, which is the worker. Spark restarts a worker whose process,
    executor or host dies. A job that ends, well or not, is started again, in a new process, unless the slot was given up.

    `start` runs the worker once and returns the id of its executor. `failed` is called with the error of a job that failed.
    `again` is called after each job: False ends the thread.
    """

    def __init__(self, slot: int, group: str, start: Callable[[SlotJob], str], again: Callable[[SlotJob], bool],
                 failed: Callable[[SlotJob, str], None]) -> None:
        self.slot, self.group, self.location = slot, group, ""
        self.executor = ""  # that it ran on last, as far as known
        self.failures = 0
        self._start, self._again, self._failed = start, again, failed
        self._given_up = threading.Event()
        self._thread = InheritableThread(target=self._run, daemon=True, name=f"millrace worker {slot}")

    def begin(self, location: str) -> None:
        self.location = location
        self._thread.start()

    def _run(self) -> None:
        while not self._given_up.is_set():
            began = time.monotonic()
            try:
                self.executor = self._start(self)
            except Exception as error:  # any error of Spark: the job is over, and must be started again
                self._failed(self, f"{type(error).__name__}: {first_line(error)}")
                short = True
            else:
                short = time.monotonic() - began < SHORT_SECONDS
            self.failures = self.failures + 1 if short else 0
            if not self._again(self):
                return
            self._given_up.wait(doubled_pause(self.failures, FIRST_PAUSE, LAST_PAUSE))

    @property
    def over(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive()

    def give_up(self) -> None:
        self._given_up.set()

    def join(self, deadline: float) -> bool:
        """Wait for the end of the thread; True if it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout=max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()


@dataclass(frozen=True, slots=True)
class LauncherHooks:
    """Called by the launcher, on its threads."""

    ended: Callable[[str], None]  # no job is left, with the error or ""
    failed: Callable[[str], None]  # one job has failed, and is started again
    wanted: Callable[[int], bool]  # False: the worker of this slot, which has ended, is not started again
    hosts: Callable[[dict[str, str]], None]  # the host of each executor, from time to time
    workers: Callable[[], Mapping[int, str]]  # slot -> executor, of the workers that have joined
    needs_cores: Callable[[], bool]  # something besides workers runs on the cluster


class SparkLauncher:
    """Starts workers as Spark jobs, one for each slot, and starts them again when they end. Slots come and go while it runs;
    the number of a slot that was released is not used again. `owns_session`: executors may be given back."""

    def __init__(self, context: SparkContext, setup: WorkerSetup, slots: int, hooks: LauncherHooks,
                 owns_session: bool = False) -> None:
        self._context, self._setup, self._hooks, self._owns_session = context, setup, hooks, owns_session
        self._first = slots
        self._placement, self._stopped = Placement(context), threading.Event()
        self._group = f"{WORKERS_GROUP}{setup.cluster}"
        self._cpus = int(context.getConf().get("spark.task.cpus", "1") or 1)
        self._jobs: dict[int, SlotJob] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._adding = threading.Lock()  # two requests must not count the same free cores
        self._given_back: set[str] = set()  # executors; Spark lists them as alive for some seconds more
        self._error = ""
        self._starter = InheritableThread(target=self._start_all, daemon=True, name="millrace workers")

    def start(self) -> None:
        self._starter.start()
        threading.Thread(target=self._watch_hosts, daemon=True, name="millrace hosts").start()

    def _start_all(self) -> None:
        try:
            locations = self._locations()
        except SPARK_ERRORS as error:
            self._hooks.ended(f"{type(error).__name__}: {first_line(error)}")
        else:
            self._begin(locations)

    def _begin(self, locations: Sequence[str]) -> tuple[int, ...]:
        """Start a job for each new slot; returns their numbers."""
        with self._lock:
            if self._stopped.is_set():
                return ()
            slots = tuple(range(self._next, self._next + len(locations)))
            self._next += len(locations)
            jobs = [SlotJob(slot, f"{self._group}-{slot}", self._run, self._goes_on, self._job_failed) for slot in slots]
            self._jobs.update((job.slot, job) for job in jobs)
        for job, location in zip(jobs, locations, strict=True):
            job.begin(location)
        return slots

    # -- the job of a slot, on its thread ------------------------------------------------------------------------------

    def _run(self, job: SlotJob) -> str:
        self._context.setJobGroup(job.group, f"Millrace worker {job.slot}", interruptOnCancel=True)
        seed = self._placement.seeds([job.location])
        [executor] = self._placement.collect(self._placement.python(seed, partial(run_slot, self._setup, job.slot)))
        return executor.decode()

    def _goes_on(self, job: SlotJob) -> bool:
        """Decide whether the job is started again, and where."""
        if not self._stopped.is_set() and job.slot in self.slots() and self._hooks.wanted(job.slot):
            try:
                job.location = self._location(job.executor)
                return True
            except SPARK_ERRORS as error:
                self._error = f"{type(error).__name__}: {first_line(error)}"
        with self._lock:
            self._jobs.pop(job.slot, None)
            last = not self._jobs and not self._stopped.is_set()
        if last:
            self._hooks.ended(self._error)
        return False

    def _job_failed(self, job: SlotJob, error: str) -> None:
        self._error = error
        if not self._stopped.is_set() and job.slot in self.slots() and self._hooks.wanted(job.slot):
            self._hooks.failed(f"the Spark job of worker {job.slot} failed, and is started again: {error}")

    def _location(self, before: str) -> str:
        """The preferred location of a worker that is started again: the executor that it ran on, or the emptiest one."""
        if self._placement.local:
            return ""
        executors, workers = self._seen()
        same = next((executor for executor in executors if executor.id == before), None)
        [place] = [same] if same is not None else spread(1, executors, self._cpus, workers)
        return place.location if place is not None else ""

    def _locations(self) -> list[str]:
        """The preferred location of each slot, spread over the hosts that there are. Spark by itself would fill the first
        executors that register."""
        if self._placement.local:
            return [""] * self._first
        conf = dict(self._context.getConf().getAll())
        expected = Expected.of(conf, parse_master(str(self._context.master)).executors)
        settle: float = SPREAD_WAIT.of(self._setup.settings)
        deadline = time.monotonic() + REGISTER_SECONDS
        while True:
            executors = self._placement.registered()
            if (time.monotonic() >= deadline
                    or all_registered(executors, self._first, self._cpus, expected, time.time(), settle)
                    or self._stopped.wait(LOOK_SECONDS)):
                self._hooks.hosts({executor.id: executor.host for executor in executors})
                places = spread(self._first, executors, self._cpus)
                return [place.location if place is not None else "" for place in places]

    # -- slots that come and go ------------------------------------------------------------------------------------------

    def slots(self) -> frozenset[int]:
        with self._lock:
            return frozenset(self._jobs)

    def add(self, count: int) -> tuple[int, ...]:
        """Start workers on new slots. Raises `NotEnoughSlots`, without starting any, if there is no room for all of them."""
        with self._adding:
            executors, workers = self._with_room(count)
            places = spread(count, executors, self._cpus, workers)
            return self._begin([place.location if place is not None and not self._placement.local else "" for place in places])

    def _with_room(self, count: int) -> tuple[list[Executor], Mapping[str, int]]:
        """The executors and their workers, once there is a free core for each new worker. On one machine, a core must also
        stay free for Spark's own jobs, as at the start."""
        url = parse_master(str(self._context.master))
        needed = count + 1 if url.on_this_machine else count
        began, asked, before = time.monotonic(), False, {executor.id for executor in self._seen()[0]}
        while True:
            executors, workers = self._seen()
            missing, all_ready = missing_executors(needed, executors, self._cpus), all(each.ready for each in executors)
            if not missing:
                return executors, workers
            if not asked and all_ready and self._starts_on_request(url.kind):
                asked = self._placement.ask_for_executors(min(len(executors) + missing, url.executors or UNLIMITED))
            never = url.on_this_machine and url.cores // self._cpus - len(self.slots()) < needed
            none_comes = url.on_this_machine and not asked and all_ready  # only cores that Spark does not know to be free yet
            late = time.monotonic() - began >= (IDLE_SECONDS if none_comes else ROOM_SECONDS)
            if never or late or self._stopped.wait(LOOK_SECONDS):
                if asked:
                    self._withdraw(before)
                raise self._no_room(count, executors, url.on_this_machine)

    def _withdraw(self, before: Collection[str]) -> None:
        """Withdraw a request for executors that was not fulfilled, and give those back that it has brought."""
        self._placement.ask_for_executors(len(before))
        for executor in self._seen()[0]:
            if executor.id not in before:
                self._give_back(executor.id)

    def _starts_on_request(self, kind: str) -> bool:
        """True if Spark starts executors only on request. A standalone master starts them wherever it can, and a request would
        limit their number; after one was given back, it is limited."""
        return bool(self._given_back) if kind in ("spark", "local-cluster") else kind != "local"

    def _no_room(self, count: int, executors: Sequence[Executor], here: bool) -> NotEnoughSlots:
        free = sum(free_on(executor, self._cpus) for executor in executors)
        cores = sum(executor.cores // self._cpus for executor in executors)
        kept = " and one must stay free for Spark's own jobs" if here else ""
        instead = "start the cluster with a larger --master" if here else "start more Spark workers, or raise spark.cores.max"
        return NotEnoughSlots(f"{count} more workers were requested, but {free} of the {cores} cores of Spark's executors are "
                              f"free{kept}. Nothing was changed: remove other workers first, or {instead}")

    def release(self, slot: int, executor: str) -> bool:
        """End the job of a slot and do not start it again. Returns True if its executor was given back."""
        with self._lock:
            job = self._jobs.pop(slot, None)
        if job is not None:
            self._finish([job])
        try:
            return self._give_back(executor or (job.executor if job is not None else ""))
        except SPARK_ERRORS as error:
            log.warning("executor %s was not given back: %s", executor, first_line(error))
            return False

    def _give_back(self, executor: str) -> bool:
        """Give an executor back to the cluster manager if nothing needs it. Spark notices the end of a task late: that is
        waited for."""
        if self._placement.local or not self._owns_session or not executor:
            return False
        deadline = time.monotonic() + IDLE_SECONDS
        while not self._stopped.is_set():
            executors, workers = self._seen()
            without_tasks = [replace(each, busy=0) if each.id == executor else each for each in executors]
            spare = partial(is_spare, executor, workers=workers, others_need_cores=self._hooks.needs_cores(), cpus=self._cpus)
            if spare(executors):
                self._given_back.add(executor)
                return self._placement.give_back(executor, len(executors) - 1)
            if not spare(without_tasks) or time.monotonic() >= deadline or self._stopped.wait(LOOK_SECONDS):
                break
        return False

    def _seen(self) -> tuple[list[Executor], Mapping[str, int]]:
        """The executors, and by executor the workers that run there, or are being started there. Those hold a core each, even
        if Spark does not count their tasks yet."""
        executors = [executor for executor in self._placement.registered() if executor.id not in self._given_back]
        joined, jobs = self._hooks.workers(), self._running()
        if self._placement.local:
            workers = Counter({executor.id: len(jobs) for executor in executors})
        else:
            ids = {executor.location: executor.id for executor in executors}
            workers = Counter(joined.values())
            workers.update(ids[job.location] for job in jobs if job.slot not in joined and job.location in ids)
        return [replace(executor, busy=max(executor.busy, workers[executor.id])) for executor in executors], workers

    def _running(self) -> list[SlotJob]:
        with self._lock:
            return list(self._jobs.values())

    # -- watching and stopping -------------------------------------------------------------------------------------------

    def _watch_hosts(self) -> None:
        while not self._stopped.wait(HOSTS_SECONDS):
            try:
                self._hooks.hosts({executor.id: executor.host for executor in self._placement.executors()})
            except SPARK_ERRORS as error:  # Spark has ended, which the workers' jobs report
                log.info("the executors' hosts are not known: %s", first_line(error))
                return

    def failures(self) -> int:
        """The number of the workers' Spark tasks and jobs that have failed so far."""
        tracker, jobs = self._context.statusTracker(), self._running()
        infos = [tracker.getJobInfo(number) for job in jobs for number in tracker.getJobIdsForGroup(job.group)]
        stages = [tracker.getStageInfo(stage) for info in infos if info for stage in info.stageIds]
        return sum(stage.numFailedTasks for stage in stages if stage) + sum(job.failures for job in jobs)

    @property
    def over(self) -> bool:
        return not self._starter.is_alive() and all(job.over for job in self._running())

    def stop(self) -> None:
        """Wait for the jobs to end, and cancel those that do not: a worker may be stuck, or was starting and missed the
        request. Call it after the workers were asked to stop."""
        self._stopped.set()
        if self._starter.ident is not None:
            self._starter.join(timeout=END_SECONDS)
        self._finish(self._running())

    def _finish(self, jobs: Sequence[SlotJob]) -> None:
        for job in jobs:
            job.give_up()
        deadline = time.monotonic() + END_SECONDS
        stuck = [job for job in jobs if not job.join(deadline)]
        for job in stuck:
            try:
                self._context.cancelJobGroup(job.group)
            except SPARK_ERRORS as error:  # Spark has ended, so the workers end too
                log.info("the job of worker %d could not be cancelled: %s", job.slot, first_line(error))
        deadline = time.monotonic() + CANCEL_SECONDS
        for job in stuck:
            job.join(deadline)


def run_slot(setup: WorkerSetup, slot: int, index: int, records: Iterable[bytes]) -> Iterable[bytes]:
    """The body of the Spark task that is a worker; its result is the id of its executor. It leaves its input unread: Spark does
    not use such a Python process again, so that every worker begins in a new one."""
    run_worker(setup, slot, executor_id())
    return (executor_id().encode(),)


def ship_code(context: SparkContext, modules: Iterable[str], installed: bool) -> tuple[str, ...]:
    """Make users' modules importable where workers run. On this machine (`installed`) their directories are enough, and are
    returned; to other machines Spark ships them, and Millrace itself, as zip files."""
    roots = {name.partition(".")[0] for name in modules} - {"millrace", "builtins"}
    places = [_place(importlib.import_module(root)) for root in sorted(roots)]
    if installed:
        return tuple(dict.fromkeys([*(str(path.parent) for path in places), *filter(None, sys.path[:1])]))
    for path in [_place(millrace), *places]:
        context.addPyFile(_archive(path))
    if (compiled := compiled_file()) is not None:
        context.addFile(str(compiled))
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
