"""What the master knows of one topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from millrace.config import AT_MOST_ONCE, GUARANTEE
from millrace.control.assignment import Place, TopologyAssignment
from millrace.control.backup_placement import backups
from millrace.control.waves import Waves
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.state.checkpoint import Manifest

WAITING, STARTING, RUNNING, PAUSED, STOPPING = "waiting", "starting", "running", "paused", "stopping"


@dataclass(slots=True)
class TopologyState:
    """One topology. `places` holds only tasks that are on a live worker."""

    number: int
    graph: TopologyGraph
    status: str = WAITING
    version: int = 0
    places: dict[TaskId, Place] = field(default_factory=dict)
    homes: dict[TaskId, int] = field(default_factory=dict)  # where a task was first put: it goes back there
    key_groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    positions: dict[TaskId, int] = field(default_factory=dict)
    losses: int = 0
    ready_at: int = 0  # revision that all workers must have carried out before the spouts start
    paused: bool = False
    deadline: float = 0.0
    quiet: dict[int, int] = field(default_factory=dict)  # slot -> reports in a row with nothing in flight
    starting: dict[int, int] = field(default_factory=dict)  # slot -> tasks there that are not initialized yet
    hosted: dict[str, frozenset[str]] = field(default_factory=dict)  # node -> components that have had a task there
    epoch: int = 0
    waves: Waves | None = None  # None: it has nothing to snapshot, or each batch is a wave
    checkpoint: Manifest | None = None  # the last one committed
    offsets: str = ""  # as in its manifests: which run Spark's positions are noted under
    moves: dict[TaskId, int] = field(default_factory=dict)  # asked for, and waiting for the wave under way
    storing: Manifest | None = None  # the one being written
    begun: bool = False  # its tasks have been started before
    closing: int = 0  # it is being killed: the wave that must be committed before it ends
    attempt: int = 0  # how often it has gone back in short succession because something was missing,
    broke_at: float = float("-inf")  # when it last did,
    held_until: float = 0.0  # and when its spouts may go on: a sink that is away is given time
    troubled: str = ""  # why the last wave was given up,
    troubles: int = 0  # and how many have been since one was committed
    in_batch: bool = False  # a batch of it runs

    @property
    def batched(self) -> bool:
        """It runs batch by batch: what is decided takes effect with the next one."""
        return self.graph.batched

    @property
    def plan(self) -> Plan:
        return Plan(self.version, {task: place.slot for task, place in self.places.items()}, self.key_groups)

    @property
    def active(self) -> bool:
        return self.status == RUNNING

    @property
    def never_repeats(self) -> bool:
        """At most once: a spout goes on from where it was last heard of, whatever state goes back."""
        return bool(GUARANTEE.of(self.graph.config) == AT_MOST_ONCE)

    @property
    def restore_point(self) -> tuple[int, int, int]:
        found = self.checkpoint
        return (found.wave, found.wave_epoch, found.epoch) if found is not None else (0, 0, 0)

    def assignment(self, nodes: Mapping[int, str]) -> TopologyAssignment:
        """What workers are told of it. `nodes`: slot -> node, of all workers that there are."""
        plain = TopologyAssignment(self.number, self.graph, self.version, self.active, sorted(self.places.items()),
                                   self.key_groups, sorted(self.positions.items()), self.losses)
        if self.waves is None:
            return plain
        blocks, holders = backups(self.graph, {task: place.slot for task, place in self.places.items()}, nodes)
        positions = plain.positions if self.never_repeats else []  # others have theirs from the checkpoint
        return replace(plain, positions=positions, epoch=self.epoch, blocks=blocks, holders=holders,
                       restore=self.restore_point)

    def note_hosts(self, node_of: Mapping[int, str]) -> None:
        for task, place in self.places.items():
            node = node_of[place.slot]
            if task.component not in self.hosted.get(node, frozenset()):
                self.hosted[node] = self.hosted.get(node, frozenset()) | {task.component}
