"""State of one topology in the master."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millrace.config import AT_MOST_ONCE, GUARANTEE
from millrace.control.assignment import Place, TopologyAssignment
from millrace.control.backup_placement import backups
from millrace.control.migrations import Recovery
from millrace.control.moves import Handover
from millrace.control.scaling import GROW, Scaling
from millrace.control.strategies.under_way import MigrationUnderWay
from millrace.control.topology_status import RUNNING, WAITING, check_transition
from millrace.control.waves import Waves
from millrace.errors import TopologyError
from millrace.model.elastic_setting import ElasticSetting
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.state.checkpoint import Manifest


@dataclass(slots=True)
class TopologyState:
    """One topology. `places` holds only tasks that are on a live worker. `become` is the only way to change `status`."""

    number: int
    graph: TopologyGraph
    _status: str = field(default=WAITING, init=False)
    version: int = 0  # of the plan; 0: it has never had a slot
    version_sent: tuple[int, int] = (0, 0)  # the last version that was sent out, and the revision that was the first to have it
    places: dict[TaskId, Place] = field(default_factory=dict)
    homes: dict[TaskId, int] = field(default_factory=dict)  # a task's preferred slot: it returns there when the worker does
    key_groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    positions: dict[TaskId, int] = field(default_factory=dict)  # of spouts, by task, or by split if they have some
    reached: dict[TaskId, int] = field(default_factory=dict)  # by the last reports: positions before which spouts have sent all
    losses: int = 0
    roll_backs: int = 0  # times that tasks were restored to a wave
    ready_at: int = 0  # revision that all workers must have carried out before the spouts start
    paused: bool = False  # requested by the user; takes effect once the topology is up
    deadline: float = 0.0  # end of the time that a killed topology has to drain
    stop_by: float = 0.0  # limit of the deadline, which progress extends
    kill_wait: float = 0.0  # seconds without progress after which a killed exactly-once topology ends uncommitted
    uncommitted: str = ""  # why it ends with uncommitted input: killed, or its query failed; empty otherwise
    executed: dict[TaskId, int] = field(default_factory=dict)  # tuples processed, by the last reports
    in_flight: dict[int, int] = field(default_factory=dict)  # slot -> tuples, by the last reports
    quiet: dict[int, int] = field(default_factory=dict)  # slot -> reports in a row with nothing in flight
    starting: dict[int, int] = field(default_factory=dict)  # slot -> tasks there that are not initialized yet
    hosted: dict[str, frozenset[str]] = field(default_factory=dict)  # node -> components that have had a task there
    keepers: dict[str, frozenset[int]] = field(default_factory=dict)  # component -> slots that have kept blocks of its tasks
    epoch: int = 0
    waves: Waves | None = None  # None: nothing to snapshot, or each batch is a wave
    checkpoint: Manifest | None = None  # the last one committed
    earlier: tuple[int, int] = (0, 0)  # as in `Submitted`
    offsets: str = ""  # the run under which Spark's positions are recorded; also in the manifests
    handover: Handover = field(default_factory=Handover)
    migration: MigrationUnderWay | None = None  # of tasks, by another strategy than hand-over
    scaling: Scaling | None = None  # the numbers of its tasks are being changed
    elastic: ElasticSetting | None = None  # the model by which it is scaled; also in the manifests
    held_back: bool = False  # its spouts wait for the migration
    capturing: bool = False  # its tasks keep their input after the next wave, for the migration
    recovery: Recovery | None = None  # tasks are being placed anew after a loss
    restarts_because: str = ""  # the reason why tasks were last placed or rolled back
    storing: Manifest | None = None  # the manifest being written
    begun: bool = False  # its tasks have been started before
    closing: int = 0  # killed: the wave that must be committed before it ends
    attempt: int = 0  # rollbacks in short succession because of a gap or a failing sink
    broke_at: float = float("-inf")  # time of the last such rollback
    held_until: float = 0.0  # the spouts stay paused until then, so that a failing sink can recover
    troubled: str = ""  # why the last wave was abandoned
    troubles: int = 0  # waves abandoned since the last commit or restore: spaces the reports
    spouts_wait: bool = False  # too many waves in a row have failed: spouts wait, so that uncommitted work stays bounded
    in_batch: bool = False  # one of its batches is running
    resting: bool = False  # its spouts wait while a worker restarts that has tasks which cannot be handed over

    @property
    def status(self) -> str:
        return self._status

    def become(self, status: str) -> None:
        """Change the status; `IllegalTransition` if it cannot follow the present one."""
        check_transition(self.graph.name, self._status, status, self.batched)
        self._status = status

    def check_free(self) -> None:
        """Raise `TopologyError` while a migration or a change of parallelism is under way that nothing else may change."""
        if self.migration is not None:
            raise TopologyError(f"{self.graph.name!r} is being migrated by {self.migration.strategy}: try again when that is "
                                "over (millrace moves shows it)")
        if self.scaling is not None:
            wanted = ", ".join(f"{name}={par}" for name, par in sorted(self.scaling.wanted.items()))
            raise TopologyError(f"{self.graph.name!r} is being scaled to {wanted}: try again when that is over (millrace moves "
                                "shows it)")

    @property
    def batched(self) -> bool:
        """The topology runs batch by batch: decisions take effect with the next batch."""
        return self.graph.batched

    @property
    def plan(self) -> Plan:
        return Plan(self.version, {task: place.slot for task, place in self.places.items()}, self.key_groups)

    @property
    def slots(self) -> frozenset[int]:
        """The slots that have tasks of it, or are to get some."""
        migrating = self.migration
        return frozenset({*(place.slot for place in self.places.values()),
                          *(moving.new.slot for moving in self.handover.batch),
                          *(wanted.slot for wanted in self.handover.waiting.values()),
                          *((*migrating.moves.values(), *migrating.removed.values()) if migrating is not None else ())})

    @property
    def active(self) -> bool:
        return self.status == RUNNING and not self.spouts_wait and not self.resting and not self.held_back

    @property
    def apart(self) -> list[TaskId]:
        """The tasks that no tuples are routed to: those that are starting because there are to be more, and those that
        retire."""
        joining = self.scaling.joining if self.scaling is not None and self.scaling.phase == GROW else ()
        return sorted({*joining, *self.handover.leaving_for_good})

    def remove(self, tasks: Iterable[TaskId]) -> None:
        """Take tasks that have ended, the last ones of their components, out of the topology. A new plan must follow."""
        gone = set(tasks)
        left = Counter(task.component for task in self.graph.tasks() if task not in gone)
        self.graph = self.graph.with_par(left)
        for task in gone:
            self.places.pop(task, None)
            self.homes.pop(task, None)
            self.executed.pop(task, None)
            if task.component not in self.graph.splits:  # else these are of splits, which other tasks go on reading
                self.positions.pop(task, None)
                self.reached.pop(task, None)
        self.version += 1
        if self.waves is not None:
            self.waves.dismiss(gone)

    @property
    def failed_waves(self) -> int:
        """Waves abandoned in a row."""
        return self.waves.failed if self.waves is not None else 0

    @property
    def never_repeats(self) -> bool:
        """At most once: a spout continues from its last reported position, even if state is rolled back."""
        return bool(GUARANTEE.of(self.graph.config) == AT_MOST_ONCE)

    @property
    def killed_how(self) -> str:
        """The message about its end when it is killed with input that is not committed."""
        if self.batched:
            wave = self.checkpoint.wave if self.checkpoint is not None else 0
        elif self.waves is None:
            return "killed"
        else:
            wave = self.waves.committed
        unfinished = sum(self.in_flight.values())
        in_flight = f" ({unfinished} tuples were in flight)" if unfinished else ""
        return f"killed as of wave {wave}: input after it is not committed{in_flight}; --resume continues from there"

    @property
    def restore_point(self) -> tuple[int, int, int]:
        manifest = self.checkpoint
        return (manifest.wave, manifest.wave_epoch, manifest.epoch) if manifest is not None else (0, 0, 0)

    def assignment(self, nodes: Mapping[int, str]) -> TopologyAssignment:
        """The topology's part of the assignment. `nodes`: slot -> node, of all workers."""
        plain = TopologyAssignment(self.number, self.graph, self.version, self.active, sorted(self.places.items()),
                                   self.key_groups, sorted(self.positions.items()), self.losses,
                                   reached=sorted(self.reached.items()), moves=self.handover.moves(self.places),
                                   capturing=self.capturing, apart=self.apart)
        if self.waves is None:
            return plain
        blocks, holders = backups(self.graph, {task: place.slot for task, place in self.places.items()}, nodes)
        positions = plain.positions if self.never_repeats else []  # the others take theirs from the checkpoint
        return replace(plain, positions=positions, epoch=self.epoch, blocks=blocks, holders=holders,
                       restore=self.restore_point, earlier=self.earlier)

    def note_revision(self, revision: int) -> None:
        """The assignment of this revision is sent out."""
        if self.version != self.version_sent[0]:
            self.version_sent = self.version, revision

    def note_hosts(self, node_of: Mapping[int, str]) -> None:
        arriving = [(moving.task, moving.new) for moving in self.handover.batch if moving.new.slot in node_of]
        for task, place in (*self.places.items(), *arriving):
            node = node_of[place.slot]
            if task.component not in self.hosted.get(node, frozenset()):
                self.hosted[node] = self.hosted.get(node, frozenset()) | {task.component}

    def note_keepers(self, holders: Iterable[tuple[TaskId, Sequence[int]]]) -> None:
        for task, slots in holders:
            if not self.keepers.get(task.component, frozenset()).issuperset(slots):
                self.keepers[task.component] = self.keepers.get(task.component, frozenset()) | frozenset(slots)
