"""What happens to the master (events) and what it wants done (commands)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.control.assignment import Assignment
from millrace.control.waves import Send
from millrace.model.cluster import Node
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.state.checkpoint import Manifest, TaskRecord


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker said hello; Spark, or the master's own fencing, had it started."""

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
    """A worker has carried out `revision`; `in_flight` is (topology, tuples) and `positions` (topology, task, position)."""

    slot: int
    generation: int
    revision: int
    in_flight: tuple[tuple[int, int], ...]
    positions: tuple[tuple[int, int, int], ...] = ()
    starting: tuple[tuple[int, int], ...] = ()  # (topology, tasks that are not initialized yet)


@dataclass(frozen=True, slots=True)
class Submitted:
    """`checkpoint`: the one to go on from, None for the beginning. `after`: the (epoch, wave) of the newest checkpoint that
    the store has of it, whether it goes on from that or not: its own must come after it. `offsets`: of one that DataFrames
    feed, the run that Spark's positions are noted under, unless the checkpoint names one."""

    graph: TopologyGraph
    checkpoint: Manifest | None = None
    after: tuple[int, int] = (0, 0)
    offsets: str = ""


@dataclass(frozen=True, slots=True)
class WaveAcked:
    """A task has done what a wave asked of it, or says why it cannot."""

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
    """What came of a `StoreManifest`; `error` is empty if it is written."""

    name: str
    epoch: int
    wave: int
    error: str


@dataclass(frozen=True, slots=True)
class ChannelBroke:
    """A worker has missed chunks of a channel, or could not write them: nothing will bring them again but a roll-back."""

    topology: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    name: str


@dataclass(frozen=True, slots=True)
class Resumed:
    name: str


@dataclass(frozen=True, slots=True)
class Killed:
    """Stop the spouts, let what is in flight finish for up to `wait` seconds, then end the tasks."""

    name: str
    wait: float
    now: float


@dataclass(frozen=True, slots=True)
class Moved:
    """Someone wants this task on that slot."""

    name: str
    task: TaskId
    slot: int


@dataclass(frozen=True, slots=True)
class Replanned:
    """A scheduler has decided: new plans by topology. `based_on`: the versions of the plans that it was asked about."""

    plans: Mapping[str, Plan]
    based_on: Mapping[str, int]
    reason: str


@dataclass(frozen=True, slots=True)
class Rescaled:
    """Someone wants so many tasks of these components, from the next batch on."""

    name: str
    par: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BatchBegan:
    """A batch of the topology runs, by the plan that is in force now."""

    name: str


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """This is what the topology goes on from. The batch is not over before its sinks have made visible what they wrote."""

    name: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class BatchOver:
    """Nothing of the batch is left to be done."""

    name: str


@dataclass(frozen=True, slots=True)
class BatchesEnded:
    """No other batch of the topology will be run."""

    name: str
    how: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""

    now: float


Event = (WorkerJoined | WorkerLost | WorkerReported | Submitted | Paused | Resumed | Killed | Moved | Replanned | Rescaled
         | BatchBegan | BatchCommitted | BatchOver | BatchesEnded | Ticked | WaveAcked | ManifestStored | ChannelBroke)


@dataclass(frozen=True, slots=True)
class Distribute:
    """Bring this to every node. `parts`: the same, cut down to what each node must know."""

    assignment: Assignment
    parts: Mapping[str, Assignment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Say:
    """Tell people; `topology` is empty for what concerns the cluster."""

    text: str
    topology: str = ""
    level: str = "info"


@dataclass(frozen=True, slots=True)
class Ended:
    """The topology's tasks are gone."""

    name: str


@dataclass(frozen=True, slots=True)
class SendWave:
    """Tell the workers; `tasks`: slot -> numbers of the tasks there."""

    topology: int
    epoch: int
    send: Send
    tasks: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Write it, then tell `ManifestStored`. `claim`: it enters an epoch and commits nothing new."""

    manifest: Manifest
    claim: bool = False


@dataclass(frozen=True, slots=True)
class CollectCheckpoints:
    """What the newest checkpoints of the topology do not need may go."""

    name: str
    epoch: int


Command = Distribute | Say | Ended | SendWave | StoreManifest | CollectCheckpoints
