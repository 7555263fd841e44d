"""The master: one thread that serves workers and users' requests and carries out the commands of `MasterState`."""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import zmq

from millrace.config import CALL_LIMIT, CHECKPOINTS, COORDINATION, LEAVE_LIMIT, RESTART_WAIT, STORE_TIMEOUT
from millrace.control.events import (
    ChannelBroke,
    CollectCheckpoints,
    Command,
    DeleteAbandoned,
    Distribute,
    Ended,
    EndWorker,
    Event,
    Killed,
    LeaveOver,
    ManifestStored,
    Migrated,
    MoveArmed,
    Moved,
    MoveTaken,
    Paused,
    Rebalanced,
    Rescaled,
    Say,
    SendWave,
    StopWorker,
    StoreManifest,
    Submitted,
    Ticked,
    Unpaused,
    WantedChange,
    WaveAcked,
    WorkerReported,
)
from millrace.control.master_state import MasterState
from millrace.control.moves import BY_HANDOVER
from millrace.control.submission import Resume
from millrace.control.topology_status import STOPPING, WAITING
from millrace.errors import NoRoom, NotEnoughSlots, NotTheAuthor
from millrace.master.batch_log import BatchLog
from millrace.master.batches import Batching, Enlisted
from millrace.master.checkpoints.checkpointing import Checkpointing, default_store
from millrace.master.checkpoints.state_queries import StateQueries
from millrace.master.checkpoints.trials import StoreTrials
from millrace.master.ended import EndedTopologies
from millrace.master.event_log import EventLog
from millrace.master.failures import Failures
from millrace.master.feeding import FedTopology
from millrace.master.load.observed import TopologyObserved
from millrace.master.plans.distribution import PlanDistribution
from millrace.master.requests.handlers import TopologyVerbs, reading_verbs, scheduler_verbs, worker_verbs
from millrace.master.requests.record import record_verbs
from millrace.master.requests.server import RequestServer, RequestSocket, Verb
from millrace.master.requests.status import status_of, workers_of
from millrace.master.requests.taps import TapDirectory
from millrace.master.scheduling.loop import SchedulingLoop
from millrace.master.thread import MasterThread
from millrace.master.workers.capacity import CapacityLoop
from millrace.master.workers.feeds import feeds_for
from millrace.master.workers.pool import WorkerPool
from millrace.master.workers.port import Connection, WorkerHandlers, WorkerPort
from millrace.model.graph import TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import Gate, Keys
from millrace.runtime.worker.process import WorkerSetup
from millrace.schedulers.base import Scheduler

log = logging.getLogger("millrace.master")


class Master:
    """Runs on its own thread; public methods may be called from any thread, `call` hands work over. Its parts get a view of the
    state that cannot change it, and the few functions or the small protocol that they need."""

    endpoint = ""

    def __init__(self, name: str, host: str = "127.0.0.1", port: int = 0, settings: dict[str, Any] | None = None,
                 scheduler: Scheduler | None = None) -> None:
        self.name = name
        self.settings = {CHECKPOINTS.key: default_store(name), **(settings or {})}
        self.hosts: dict[str, str] = {}  # by Spark executor, with and without workers
        self.superseded = ""  # the reason why this master has stopped deciding; empty until another master takes over
        self.state = MasterState(scheduler, call_limit=CALL_LIMIT.of(self.settings), leave_limit=LEAVE_LIMIT.of(self.settings),
                                 restart_wait=RESTART_WAIT.of(self.settings))
        self.observed: dict[str, TopologyObserved] = {}
        self.ended, self.events = EndedTopologies(), EventLog()
        self._failures = Failures(self.say)
        self.keys = Keys.make()
        self.cluster = uuid.uuid4().hex[:12]
        self._kill_delays: dict[str, Callable[[Killed], None]] = {}  # by topology
        self._generation = 0
        self._thread = MasterThread(self._sources, self._hear, self._tick, self._fail)
        self.worker_port = WorkerPort(self.settings, self.keys)
        self.connections = self.worker_port.connections
        self.pool = WorkerPool(self)
        self.scheduling = SchedulingLoop(name, self.settings, self)
        self.distribution = PlanDistribution(COORDINATION.of(self.settings), name, self.keys.secret, self.state,
                                             self.worker_port, self, self.scheduling.links, lambda: self.scheduling.polls)
        self.capacity = CapacityLoop(self.settings, self)
        self.batching = Batching(self.state, self.observed, self.call, self.tell, self.take, self.new_generation)
        self.checkpointing = Checkpointing(str(CHECKPOINTS.of(self.settings)), self.state.topologies, self,
                                           STORE_TIMEOUT.of(self.settings))
        self.state_queries = StateQueries(self.state, self.worker_port, self.checkpointing, self.batching.logs)
        self.trials = StoreTrials(self.worker_port)
        self._context = zmq.Context()
        self._gate = Gate(self._context, self.keys)
        self._request_socket: RequestSocket | None = None
        try:
            self._open(host, port)
        except BaseException:
            self._close()
            raise

    def _open(self, host: str, port: int) -> None:
        taps = TapDirectory(self.state, self.observed, self.connections, lambda: self.endpoint, self.keys)
        self.worker_port.open(self._context, host, port, WorkerHandlers(
            admit=self._admit, tell=self.tell, report=self.take, taken=self._taken, plan=self.distribution.answer,
            answer=self.state_queries.answered, tried=self.trials.answered, taps=taps.answer,
            feeds=lambda request: feeds_for(request, self.state.topologies, self.observed)))
        self.endpoint = self.worker_port.endpoint
        self._request_socket = RequestSocket.open(self.name)
        self._requests = RequestServer(self._request_socket.listen(self._context), self._verbs(taps), self.later)
        self.state.author = self.distribution.publisher.claim()  # last, since it ends any other master of this name
        self.checkpointing.least_epoch = self.state.author

    def _verbs(self, taps: TapDirectory) -> dict[str, Verb]:
        return {"status": lambda request: status_of(self),
                **TopologyVerbs(self.state, self.tell, self._kill).verbs(),
                **worker_verbs(self, self.pool, self.capacity), **scheduler_verbs(self.scheduling, self.state),
                **record_verbs(self.state, self.scheduling.migrations, self.events, self.ended),
                **reading_verbs(self.state, self.state_queries, taps, self.checkpointing.place)}

    def _admit(self) -> wire.Welcome:
        return wire.Welcome(self.new_generation(), self.settings, self.state.author, self.name)

    def setup(self, bind: str = "", path: tuple[str, ...] = ()) -> WorkerSetup:
        """The settings and keys with which workers join this master; the launcher ships them."""
        return WorkerSetup(self.cluster, self.endpoint, self.keys, bind, path, self.settings)

    # -- its thread --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def call(self, work: Callable[[], Any]) -> Any:
        """Run `work` on the master's thread and return its result, or raise its exception."""
        return self._thread.call(work)

    def later(self, work: Callable[[], Any]) -> None:
        """Run `work` on the master's thread soon; from any thread, without waiting for it."""
        self._thread.later(work)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition, which is evaluated on the master's thread, holds. False if time ran out."""
        return self._thread.wait_until(condition, seconds)

    def wait_for_workers(self, count: int, seconds: float) -> None:
        if not self.wait_until(lambda: len(self.state.workers) >= count, seconds):
            raise NotEnoughSlots(f"{len(self.state.workers)} of {count} workers came up within {seconds:g} s. Are there "
                                 f"{count} free task slots on the Spark cluster, and can its hosts reach {self.endpoint}?")

    def stop(self, wait: float = 5.0) -> None:
        """Stop every worker, then the master."""
        if self._thread.runs:
            try:
                self.call(self.worker_port.stop_workers)
                self.wait_until(lambda: not self.connections, wait)
            finally:
                self._thread.end()
        self.pool.close()
        self._close()
        shutil.rmtree(self.setup().directory(), ignore_errors=True)

    def _close(self) -> None:
        if not self._context.closed:
            self._gate.close()
            self.distribution.publisher.close()
            self.scheduling.close()
            self.checkpointing.close()
            if self._request_socket is not None:
                self._request_socket.close()
            self._context.destroy(linger=500)

    # -- requests, on any thread -------------------------------------------------------------------------------------

    def submit(self, graph: TopologyGraph, resume: Resume = None, offsets: str = "") -> bool:
        """Start a topology. `offsets`: as in `Submitted`. Returns True if it resumes from a checkpoint."""
        attempt = self.checkpointing.attempt(graph, resume)
        try:
            self.check(replace(attempt.outlook, offsets=offsets))
            if graph.waves:
                self._try_store()
            event = replace(self.checkpointing.take_over(attempt), offsets=offsets)
            self.call(lambda: self._submit(event))
        except BaseException:
            self.checkpointing.refused(attempt)
            raise
        return event.checkpoint is not None

    def submit_batched(self, event: Submitted) -> None:
        """Start a topology that runs in batches; `checkpointing.take_over` makes the event."""
        self.call(lambda: self._submit(event))

    def check(self, event: Submitted) -> None:
        """Raise an error if the topology cannot be started."""
        self.call(lambda: self._check(event))

    def try_store(self) -> None:
        """Raise `StoreNotShared` if workers do not share the checkpoint store of a topology that uses it."""
        if any(topology.waves is not None for topology in list(self.state.topologies.values())):
            self._try_store()

    def _try_store(self) -> None:
        if self.connections:
            self.checkpointing.try_store(lambda token: self.call(lambda: self.trials.begin(token)), self._node_of)

    def _node_of(self, slot: int) -> str:
        worker = self.state.workers.get(slot)
        return worker.node.name if worker is not None else "a host that is gone"

    def pause(self, name: str) -> None:
        self.call(lambda: self.tell(Paused(name)))

    def unpause(self, name: str) -> None:
        self.call(lambda: self.tell(Unpaused(name)))

    def kill(self, name: str, wait: float = 10.0) -> None:
        """Stop a topology. Returns at once; `wait_until(lambda: name not in master.state.topologies)` waits for the end."""
        self.call(lambda: self._kill(name, wait))

    def kill_all(self) -> None:
        """Kill all topologies without waiting for tuples in flight."""
        self.call(self._kill_all)

    def move(self, name: str, task: TaskId, slot: int, strategy: str = BY_HANDOVER,
             parameters: Mapping[str, float] | None = None) -> None:
        """Move one running task to another worker by a strategy; in batches it moves with the next batch."""
        self.call(lambda: self.tell(Moved(name, task, slot, strategy, parameters or {})))

    def rebalance(self, name: str, placement: Mapping[TaskId, int], strategy: str = BY_HANDOVER,
                  parameters: Mapping[str, float] | None = None) -> None:
        """Begin to migrate a topology to another placement. `state.topology(name).migration` is None when it is over."""
        self.call(lambda: self.tell(Rebalanced(name, placement, strategy, parameters or {})))

    def past_migrations(self, name: str) -> list[dict[str, Any]]:
        """The newest migrations of a topology, in order, as in `millrace migrations --json`."""
        rows: list[dict[str, Any]] = self.call(lambda: self.scheduling.migrations.past(name))
        return rows

    def rescale(self, name: str, par: Mapping[str, int]) -> None:
        """Begin to change the number of tasks of these components. `state.topology(name).scaling` is None when that is over; a
        topology that runs in batches has them from the next batch on."""
        self.call(lambda: self.tell(Rescaled(name, dict(par))))

    def set_scheduler(self, name: str, parameters: dict[str, Any], policy: dict[str, Any], estimator: str | None = None,
                      estimator_parameters: dict[str, Any] | None = None, enact: bool = False) -> dict[str, Any]:
        """Use this scheduler from now on; returns the settings in use, or raises if something is wrong with it. `enact`: carry
        out its next plan whatever that gains."""
        chosen: Future[dict[str, Any]] = self.call(
            lambda: self.scheduling.choose(name, parameters, policy, estimator, estimator_parameters, enact))
        return chosen.result()

    def status(self) -> dict[str, Any]:
        result: dict[str, Any] = self.call(lambda: status_of(self))
        return result

    def add_workers(self, count: int) -> dict[str, Any]:
        """Start workers and wait until they have joined: {"slots": their numbers, "ms"}."""
        return self._pooled(lambda: self.pool.add(count))

    def remove_worker(self, slot: int) -> dict[str, Any]:
        """Hand over the tasks of a worker, end it, and give back its slot and an executor without workers: {"slot", "node",
        "executor", "pid", "executor_given_back", "ms"}."""
        return self._pooled(lambda: self.pool.remove(slot))

    def restart_worker(self, slot: int) -> dict[str, Any]:
        """Start the process of a worker anew, while other workers have its tasks: {"slot", "old_pid", "new_pid", "old_node",
        "new_node", "ms"}."""
        return self._pooled(lambda: self.pool.restart(slot))

    def workers(self) -> list[dict[str, Any]]:
        """The workers: {"slot", "node", "executor", "pid", "tasks", "leaving"}."""
        rows: list[dict[str, Any]] = self.call(lambda: workers_of(self))
        return rows

    def _pooled(self, request: Callable[[], Future[dict[str, Any]]]) -> dict[str, Any]:
        answer: Future[dict[str, Any]] = self.call(request)
        return answer.result()

    def note_hosts(self, hosts: dict[str, str]) -> None:
        """Record the host of each Spark executor."""
        self.hosts = hosts

    def fed(self, name: str) -> FedTopology:
        """The topology of that name, running or not, for the queries that feed it."""
        return FedTopology(name, self)

    @property
    def batch_logs(self) -> dict[str, BatchLog]:
        """Logs of batches, by topology; kept for a while after it ended."""
        return self.batching.logs

    @property
    def store_alarm(self) -> str:
        """The call of the checkpoint store that does not return; empty if all is well."""
        return self.checkpointing.alarm

    # -- on the thread -----------------------------------------------------------------------------------------------

    def _sources(self) -> list[Any]:
        return [*self.worker_port.sources(), self._requests.socket]

    def _hear(self, ready: Mapping[Any, int]) -> None:
        self.worker_port.hear(ready)
        if self._requests.socket in ready:
            self._requests.listen()

    def _tick(self) -> None:
        now = time.monotonic()
        self.worker_port.drop_silent(now)
        self.tell(Ticked(now))
        self.state_queries.tick(now)
        self.checkpointing.tick(now)
        self.trials.tick(now)
        self.distribution.tick()
        if not self.superseded:  # topologies run without these
            self._failures.guard("measuring the load", now, lambda: self.scheduling.tick(now))
            self._failures.guard("adding and removing workers", now, lambda: self.capacity.tick(now))

    def _fail(self, error: BaseException) -> None:
        """End all topologies after an error that no other code has handled: decisions from now on cannot be relied on."""
        self.say(Say(f"unexpected error of the master: {type(error).__name__}: {error}. The log has its traceback",
                     level="error"))
        for name in list(self.state.topologies):
            self._end_failed(name, error)

    def _end_failed(self, name: str, error: BaseException) -> None:
        """End a topology after an unexpected error of the master in one of its decisions."""
        reason = (f"ended by an unexpected error of the master: {type(error).__name__}: {error}. The log has its traceback; "
                  "--resume continues from the last committed wave, if there is one")
        self.ended.fail(name, self.observed[name], f"{name}: {reason}")
        self.say(Say(reason, name, "error"))
        topology = self.state.topologies[name]
        if topology.status != WAITING:
            topology.become(STOPPING)
        self._carry_out(self.state.end(topology, "killed"))

    def tell(self, event: Event) -> None:
        """Let the state decide, and carry out its commands. Only on the master's thread."""
        if self.superseded and isinstance(event, WantedChange):
            raise NotTheAuthor(self.superseded)
        try:
            commands = self.state.handle(event, time.monotonic())
        except Exception as error:
            if isinstance(error, NoRoom):
                self.capacity.refused(time.monotonic(), error)
            name = self._concerned(event)
            if name is None:
                raise
            log.exception("an event of %s could not be handled", name)
            self._end_failed(name, error)
            return
        self._carry_out(commands)
        for name, topology in self.state.topologies.items():
            if name in self.observed and self.observed[name].graph is not topology.graph:
                self.observed[name].follow(topology.graph)

    def _concerned(self, event: Event) -> str | None:
        """The topology of an event that the engine has told, and no user's request."""
        if isinstance(event, ManifestStored):
            return event.name if event.name in self.state.topologies else None
        number = event.topology if isinstance(event, WaveAcked | ChannelBroke | MoveArmed | MoveTaken) else None
        return next((name for name, topology in self.state.topologies.items() if topology.number == number), None)

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Distribute):
                self.distribution.distribute(command)
            elif isinstance(command, Say):
                self.say(command)
            elif isinstance(command, Migrated):
                pids = [self.connections[slot].hello.pid for slot in command.migration.restarted if slot in self.connections]
                self.scheduling.add_migration(command.migration, pids)
            elif isinstance(command, EndWorker):
                self.worker_port.end_worker(command.slot, command.reason)
            elif isinstance(command, StopWorker):
                self.worker_port.stop_worker(command.slot)
            elif isinstance(command, LeaveOver):
                self.pool.over(command)
            elif isinstance(command, SendWave):
                self.worker_port.send_wave(command)
            elif isinstance(command, StoreManifest):
                self.checkpointing.store(command.manifest, command.claim)
            elif isinstance(command, CollectCheckpoints):
                self.checkpointing.collect(command.name, command.epoch)
            elif isinstance(command, DeleteAbandoned):
                self.checkpointing.delete_abandoned(command.name, command.epoch, command.wave, command.needed)
            elif isinstance(command, Ended):
                self._note_end(command)

    def _note_end(self, command: Ended) -> None:
        name = command.name
        self._kill_delays.pop(name, None)
        self.checkpointing.ended(name)
        self.scheduling.forget(name)
        for forgotten in self.ended.end(name, self.observed.pop(name), command.uncommitted):
            self.batching.logs.pop(forgotten, None)

    def _kill(self, name: str, wait: float) -> None:
        """Kill the topology, or let the hook do it that delays its end."""
        event = Killed(name, wait, time.monotonic())
        self._kill_delays.pop(name, self.tell)(event)

    def _kill_all(self) -> None:
        for name in list(self.state.topologies):
            self._kill(name, 0.0)

    def delay_kill(self, topology: str, hook: Callable[[Killed], None]) -> None:
        """Have the hook called, once, in place of killing the topology; it sends the event again when the topology may end. A
        second request kills at once."""
        self._kill_delays[topology] = hook

    def processes(self) -> Mapping[int, Connection | Enlisted]:
        """All processes that report, by slot."""
        return {**self.connections, **self.batching.enlisted}

    def new_generation(self) -> int:
        self._generation += 1
        return self._generation

    def give_way(self, error: NotTheAuthor) -> None:
        """Stop deciding, because another master has taken over the coordination store or the checkpoints."""
        if self.superseded:
            return
        self.superseded = str(error)
        self.say(Say(f"another master has taken over cluster {self.name!r}; this one stops its workers: {error}",
                     level="error"))
        self.worker_port.stop_workers()

    def say(self, message: Say) -> None:
        """Report something to users: in the events, the log, and to the listeners."""
        self.events.add(message)

    def check_deciding(self) -> None:
        """Raise `NotTheAuthor` if another master has taken over."""
        if self.superseded:
            raise NotTheAuthor(self.superseded)

    def _check(self, event: Submitted) -> None:
        self.check_deciding()
        self.state.check(event)

    def _submit(self, event: Submitted) -> None:
        self.scheduling.resume(event.graph)
        self.tell(event)
        name = event.graph.name
        self.batching.logs.pop(name, None)
        self.observed[name] = TopologyObserved(self.state.topologies[name].graph, time.monotonic())
        self.ended.pop(name, None)
        self.scheduling.elastic.resume(name)

    def _taken(self, message: wire.Taken) -> None:
        self.tell(self.scheduling.migrations.taken(message))

    def take(self, connection: Connection | Enlisted, report: wire.Report) -> None:
        """Take the report of a worker, or of an engine that reports for an executor."""
        by_number = {topology.number: name for name, topology in self.state.topologies.items()}
        self.scheduling.migrations.take(report, by_number, time.monotonic())
        for task in (*report.tasks, *report.ackers):
            name = by_number.get(task["topology"])
            if name is not None:
                self.observed[name].take(report.slot, report.at, task)
        for error in report.errors:
            observed = self.observed.get(error["topology"])
            if observed is not None:
                observed.note_error(error)
                if error.get("fatal"):
                    self.say(Say(f"{error['task']} cannot start: {error['error']}", error["topology"], "warning"))
        connection.take(report)
        self.tell(WorkerReported(report.slot, report.generation, report.revision, tuple(report.in_flight),
                                 tuple(report.positions), tuple(report.starting), report.executed(), report.hosted,
                                 tuple(report.reached)))
