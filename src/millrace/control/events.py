"""Events that the master's state handles, and commands that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.control.assignment import Assignment, SplitStart
from millrace.control.migrations import Migration
from millrace.control.moves import BY_HANDOVER, BY_PERSON, PERSON, Cause
from millrace.control.waves import Send
from millrace.control.workers import LongCall
from millrace.model.cluster import Node
from millrace.model.elastic_setting import ElasticSetting
from millrace.model.frozen import FrozenMap
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import Scheduler
from millrace.state.checkpoint import Manifest, TaskRecord


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker has said hello: Spark started it, or it joins again after the master had fenced it off."""

    slot: int
    generation: int
    node: Node
    boot: str
    executor: str
    ipc: str
    tcp: str
    backup_ipc: str = ""
    backup_tcp: str = ""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    slot: int
    generation: int
    cause: str


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker has carried out `revision`. `in_flight`: (topology, tuples). `positions`: (topology, task, position).
    `executed`: (topology, task, tuples that it has processed since it started, the current wave has passed it)."""

    slot: int
    generation: int
    revision: int
    in_flight: tuple[tuple[int, int], ...]
    positions: tuple[tuple[int, int, int], ...] = ()
    starting: tuple[tuple[int, int], ...] = ()  # (topology, tasks that are not initialized yet)
    executed: tuple[tuple[int, int, int, bool], ...] = ()
    hosted: int = 0  # tasks there, of all topologies, including those that leave or arrive
    reached: tuple[tuple[int, int, int], ...] = ()  # (topology, task, position before which a spout has sent everything)


@dataclass(frozen=True, slots=True)
class SchedulerChosen:
    """A scheduler is in use from now on: its rule for tasks without a slot places them. None: it is a user's own. No name: no
    scheduler is in use."""

    name: str
    scheduler: Scheduler | None = None


@dataclass(frozen=True, slots=True)
class LoadEstimated:
    """The load of the running topologies, by name, as of the last window."""

    load: Mapping[str, Load]


@dataclass(frozen=True, slots=True)
class WorkerLeaves:
    """A worker is removed, or restarted (`restarts`): its tasks are handed over first. `expected`: if the worker has not
    joined, its process is being started. `who` wants it."""

    slot: int
    restarts: bool = False
    expected: bool = False
    who: str = PERSON


@dataclass(frozen=True, slots=True)
class Submitted:
    """A user submitted a topology. `checkpoint`: resume from it; None starts fresh. `after`: (epoch, wave) of the newest
    checkpoint of the topology in the store, resumed or not; new checkpoints are numbered after it. `offsets`: for a topology
    fed by DataFrames, the run under which Spark's positions are recorded, unless the checkpoint names one. `earlier`: for a
    fresh start, the last committed wave of the run that it replaces, and the epoch that prepared it."""

    graph: TopologyGraph
    checkpoint: Manifest | None = None
    after: tuple[int, int] = (0, 0)
    offsets: str = ""
    earlier: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ClusterMeasured:
    """Measurements of the machines: cores that processes other than workers use, by machine, and the cost of a unit of traffic
    between two nodes, see `Cluster.links`."""

    others: Mapping[str, float] = field(default_factory=FrozenMap)
    links: Mapping[tuple[str, str], float] = field(default_factory=FrozenMap)


@dataclass(frozen=True, slots=True)
class LongCallsSeen:
    """The calls in a worker that have not returned for a while; none if they have returned since the last event."""

    slot: int
    generation: int
    calls: tuple[LongCall, ...]


@dataclass(frozen=True, slots=True)
class WaveAcked:
    """A task has carried out a wave's request, or failed to; `error` gives the reason."""

    topology: int
    epoch: int
    kind: str
    wave: int
    task: int
    incarnation: int
    record: TaskRecord | None
    error: str


@dataclass(frozen=True, slots=True)
class ManifestStored:
    """The outcome of a `StoreManifest`; `error` is empty if the manifest is written."""

    name: str
    epoch: int
    wave: int
    error: str


@dataclass(frozen=True, slots=True)
class ChannelBroke:
    """A worker has missed chunks of a channel, or a sink could not write: only a rollback can recover the tuples."""

    topology: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class MoveArmed:
    """The new incarnation of a task that moves is ready to take over, with the state of `wave`; or it cannot, because of
    `error`. `copied_bytes`: of that and earlier waves, in all. `starts`: of the splits that the old owner has stopped
    reading; empty if it is the new one that is ready for them."""

    topology: int
    epoch: int
    move: int
    wave: int
    copied_bytes: int = 0
    error: str = ""
    starts: Mapping[int, SplitStart] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MoveTaken:
    """The new incarnation of a task has taken over; or it cannot, because of `error`. `delta_bytes`: state that had changed
    since the wave it was armed with. `pause`: seconds in which no incarnation worked. `copied_bytes`: of that wave."""

    topology: int
    epoch: int
    move: int
    delta_bytes: int = 0
    pause: float = 0.0
    error: str = ""
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WaveRequested:
    """Someone needs a checkpoint of the topology soon: begin a wave now or, if one is in progress, right after it."""

    name: str


@dataclass(frozen=True, slots=True)
class Paused:
    name: str


@dataclass(frozen=True, slots=True)
class Unpaused:
    name: str


@dataclass(frozen=True, slots=True)
class Killed:
    """Stop the spouts, let the tuples in flight finish for up to `wait` seconds, then end the tasks. Exactly once, the seconds
    count from the last tuple processed, because output is visible only once it is committed."""

    name: str
    wait: float
    now: float


@dataclass(frozen=True, slots=True)
class Moved:
    """A user moves a task to a slot. `strategy`, `parameters`: as in `Rebalanced`."""

    name: str
    task: TaskId
    slot: int
    strategy: str = BY_HANDOVER
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """A topology gets another placement. `placement`: new slots, of the tasks that change theirs. `strategy`, `parameters`: see
    `strategies/catalogue.py`."""

    name: str
    placement: Mapping[TaskId, int]
    strategy: str = BY_HANDOVER
    parameters: Mapping[str, float] = field(default_factory=dict)
    cause: Cause = BY_PERSON


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A user cancels the move of a task."""

    name: str
    task: TaskId


@dataclass(frozen=True, slots=True)
class Regrouped:
    """A user gives key groups of a component to other tasks of it: group -> index of the task."""

    name: str
    component: str
    owners: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Replanned:
    """A scheduler's new plans, by topology, were accepted. `based_on`: versions of the plans that it was asked about.
    `decision`: its number in the scheduler's history; 0: none. `strategy`, `parameters`: as in `Rebalanced`."""

    plans: Mapping[str, Plan]
    based_on: Mapping[str, int]
    reason: str
    decision: int = 0
    strategy: str = BY_HANDOVER
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rescaled:
    """The number of tasks of these components changes: by hand-over, or from the next batch on."""

    name: str
    par: Mapping[str, int]
    cause: Cause = BY_PERSON


@dataclass(frozen=True, slots=True)
class ElasticChosen:
    """The topology is scaled by this model from now on; None: it is not scaled by itself."""

    name: str
    setting: ElasticSetting | None


@dataclass(frozen=True, slots=True)
class BatchBegan:
    """A batch of the topology has begun, under the plan in force."""

    name: str


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """The manifest of a batch is written. The batch is not over until its sinks have published their output."""

    name: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class BatchOver:
    """The batch is committed and its sinks have published their output."""

    name: str


@dataclass(frozen=True, slots=True)
class BatchesEnded:
    """The engine will run no other batch of the topology. `uncommitted`: what was not committed or published, and why; empty if
    everything was."""

    name: str
    how: str
    uncommitted: str = ""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""

    now: float


# A change of topologies or plans that someone wants: refused by a master that another one has replaced.
WantedChange = (Submitted | Paused | Unpaused | Moved | Rebalanced | Withdrawn | Regrouped | Replanned | Rescaled
                | ElasticChosen)
Event = (WantedChange | WorkerJoined | WorkerLost | WorkerReported | WorkerLeaves | Killed | BatchBegan | BatchCommitted
         | BatchOver | BatchesEnded | Ticked | WaveRequested | WaveAcked | ManifestStored | ChannelBroke | LongCallsSeen
         | MoveArmed | MoveTaken | ClusterMeasured | SchedulerChosen | LoadEstimated)


@dataclass(frozen=True, slots=True)
class Distribute:
    """Send the assignment to every node. `parts`: for each node, the part that concerns it."""

    assignment: Assignment
    parts: Mapping[str, Assignment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Say:
    """Report something to users; `topology` is empty if it concerns the cluster. `cause`: what led to it. `tasks`: those that
    it happened to; none if it concerns all of them."""

    text: str
    topology: str = ""
    level: str = "info"
    cause: str = ""
    tasks: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class Migrated:
    """A migration has ended: add it to the record."""

    migration: Migration


@dataclass(frozen=True, slots=True)
class Ended:
    """The topology's tasks are gone. `uncommitted`: what was not committed, and why; empty if everything was."""

    name: str
    uncommitted: str = ""


@dataclass(frozen=True, slots=True)
class SendWave:
    """Send a wave message to the workers. `tasks`: slot -> numbers of the tasks there."""

    topology: int
    epoch: int
    send: Send
    tasks: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Write the manifest, then report `ManifestStored`. `claim`: it enters an epoch and commits nothing new."""

    manifest: Manifest
    claim: bool = False


@dataclass(frozen=True, slots=True)
class CollectCheckpoints:
    """Delete blobs that the newest checkpoints of the topology no longer need."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class EndWorker:
    """End the process of a worker, which is given up, so that Spark starts the slot again."""

    slot: int
    reason: str


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Let a worker end cleanly: it has nothing to do, or is to be started again."""

    slot: int


@dataclass(frozen=True, slots=True)
class LeaveOver:
    """The removal or restart of a worker is over. `error`: the reason why the worker stays, or did not come back."""

    slot: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeleteAbandoned:
    """Delete what abandoned waves of these tasks have left in the store, up to `wave`. `needed`: for each task, the blobs that
    its next snapshot builds on. What a manifest in the store needs is kept."""

    name: str
    epoch: int
    wave: int
    needed: Mapping[TaskId, frozenset[str]]


Command = (Distribute | Say | Migrated | Ended | SendWave | StoreManifest | CollectCheckpoints | DeleteAbandoned | EndWorker
           | StopWorker | LeaveOver)
