"""A running task, common to bolts and spouts. bolt.py and spout.py add their parts.

A task works in two steps. *Execute* runs user code and only fills the task's outbox, so a task that blocks can execute on its
own thread. *Settle* routes and sends the output and settles acks, always on the worker's loop.

    life     component_life.py   make, initialize, restore, retry and close the component
    waves    waves.py            its part in waves
    snapshots  snapshots.py      its keyed state, its snapshots and its answers to the master
    outbox   outbox.py           output that has not been sent
    sender   sender.py           routes the output and sends it
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from millrace.api.tuple import Tuple
from millrace.config import MAX_FAILS
from millrace.errors import EncodingError
from millrace.model.graph import ComponentDef, TaskId
from millrace.runtime.flow.channel import Channel
from millrace.runtime.flow.heavy_keys import HeavyKeys
from millrace.runtime.flow.routing import ByFields
from millrace.runtime.meters import Meters
from millrace.runtime.tasks.checkpointing.snapshots import Snapshots
from millrace.runtime.tasks.checkpointing.waves import TaskWaves
from millrace.runtime.tasks.component_life import ComponentLife
from millrace.runtime.tasks.outbox import Outbox
from millrace.runtime.tasks.output import Output
from millrace.runtime.tasks.sender import Sender
from millrace.runtime.tasks.user_errors import spare_interrupts
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.flow.overtaken import Overtaken
    from millrace.runtime.tasks.handover.arrival import Arrival
    from millrace.runtime.tasks.handover.departure import Departure
    from millrace.runtime.tasks.handover.retirement import Retirement
    from millrace.runtime.tasks.handover.succession import Incarnation
    from millrace.runtime.tasks.host import TaskHost, TaskTopology
    from millrace.runtime.tasks.spout_position import SplitPositions


class Task:
    """Common to bolts and spouts. `step` does one chunk's worth of work."""

    begins_waves = False  # True for spouts: they have no input to wait for

    def __init__(self, worker: TaskHost, topology: TaskTopology, name: TaskId, incarnation: int) -> None:
        self.worker, self.topology, self.name, self.incarnation = worker, topology, name, incarnation
        self.definition: ComponentDef = topology.graph.component(name.component)
        self.number = topology.graph.number(name)
        self.commits = self.definition.commits and topology.graph.exactly_once
        self.max_fails: int = MAX_FAILS.of(topology.graph.config)
        self.meters = Meters()
        self.channels: dict[int, Channel] = {}
        self.group_counts: dict[str, np.ndarray] = {}  # tuples sent to each key group, by component: estimates from samples
        self.to_ackers: defaultdict[int, int] = defaultdict(int)  # messages to each acker about roots, by its index
        self.heavy_keys: defaultdict[str, HeavyKeys] = defaultdict(HeavyKeys)  # of tuples sent to a component
        self.component: Any = None
        self.blocked = 0  # number of full channels
        self._held_since: float | None = None  # when it had work, but a full channel
        self.captured = False  # its input waits for a migration, which has saved it
        self.busy = False  # its own thread is in user code
        self.queued = False  # in the worker's ready list
        self.turn = 0  # the last one in which it was given a turn: the worker's loop counts them
        self.started = False  # it works: its component is initialized, and it is not frozen and not waiting to take over
        self.ended = False
        self.chunk_tuples = 0  # tuples to collect before they are sent; set by `size_chunks`
        self.needed = 1  # tuples in the least chunk that is worth a call of its receivers
        self.outbox = Outbox(name, self.definition)
        # Bound once: a method of the same name would cost one more call per tuple or chunk.
        self.emit, self.emit_rows, self.emit_arrow = self.outbox.emit, self.outbox.emit_rows, self.outbox.emit_arrow
        self.waiting = self.outbox.waiting
        self.life = ComponentLife(self)
        self.sender = Sender(self)
        self.snapshots = Snapshots(self)
        self.waves = TaskWaves(self)
        self.arrival: Arrival | None = None  # it takes over from an incarnation elsewhere
        self.departure: Departure | Retirement | None = None  # an incarnation elsewhere takes over, or nobody does
        self.splits: SplitPositions | None = None  # of a spout that has some
        self.cuts: dict[int, Channel] = {}  # by move: the channel that it has marked, which may be in use no more
        self.unwired = False  # it gets the channels of the current plan when its code has returned
        self.size_chunks()

    def on_own_thread(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Run user code, then `done` on the loop. The code of a blocking component always runs on the task's thread."""
        if self.definition.blocking:
            self.busy = True
            self.worker.threads.run(self, work, partial(self._returned, done))
        else:
            work()
            done()

    def _returned(self, done: Callable[[], None]) -> None:
        done()
        if self.unwired and not self.busy and not self.ended:
            self.worker.connect(self)

    # -- called by the component (TaskHandle) ------------------------------------------------------------------------

    def report_metric(self, name: str, value: Any) -> None:
        try:
            wire.encode({name: value})
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodingError(f"{self.name} reported a {type(value).__name__} as metric {name!r}, which cannot be encoded "
                                f"({error}). Report a number.") from None
        self.meters.custom[name] = value

    def report_error(self, error: BaseException, tup: Tuple | None) -> None:
        """Count and record an error of user code. A Ctrl-C is not an error of user code: it is raised again."""
        spare_interrupts(error)
        self.meters.errors += 1
        self.worker.errors.add(self, error, traceback.format_exception(error), tup)

    def ack(self, tup: Tuple | str) -> None:
        raise TypeError("only bolts ack tuples")

    def fail(self, tup: Tuple | str) -> None:
        raise TypeError("only bolts fail tuples")

    # -- hooks of the parts ------------------------------------------------------------------------------------------

    def initialize(self) -> None:
        self.component.initialize(self.component.storm_conf, self.component.context)

    def on_start(self, due: Mapping[str, float]) -> None:
        """Finish the task's setup on the loop: the component is ready. `due`: seconds until its first tick and timer, if it
        takes over those of another incarnation."""

    def before_wave(self) -> None:
        """Run calls that the component has postponed until the wave, where its code runs."""

    def send_waiting(self) -> None:
        """Send all output."""
        raise NotImplementedError

    def overtake(self, mark: wire.WaveMark) -> Overtaken | None:
        """Let a wave pass the input that waits. Returns that input, or None if the wave has passed here already."""
        raise NotImplementedError

    def abandon_wave(self, wave: int) -> None:
        """Abandon a wave that will not be committed."""
        self.waves.abandon(wave)

    def unsendable(self, output: Output, row: Any, error: BaseException) -> None:
        """Count, report and drop an emitted tuple that no attempt can send."""
        self.meters.dead_letters += 1
        self.report_error(error, Tuple.of("", self.name.component, output.name, self.number, row))

    # -- hand-over ---------------------------------------------------------------------------------------------------

    def drained(self, move: int, awaited: set[Incarnation], impatient: bool) -> bool:
        """True if nothing is left to do before the task is handed over. `awaited`: senders whose marks must have come."""
        raise NotImplementedError

    def channel_to(self, target: int, incarnation: int) -> Channel | None:
        """The channel to this incarnation of a task: one in use, or one that was cut by a move."""
        channel = self.channels.get(target)
        if channel is not None and channel.target_incarnation == incarnation:
            return channel
        return next((cut for cut in self.cuts.values() if (cut.target, cut.target_incarnation) == (target, incarnation)), None)

    def arrival_of(self, move: int) -> Any:
        """The receiver of the state that comes with this move; None if the task takes part in no such move."""
        return self.arrival if self.arrival is not None and self.arrival.move.number == move else None

    def rewired(self) -> None:
        """The task has the channels of a new plan."""
        if self.departure is not None:
            self.departure.rewired()

    def leave(self) -> None:
        """Close what cannot be handed over, after the last output."""

    def due_in(self) -> dict[str, float]:
        """Seconds until the next tick and timer."""
        return {}

    def start_taken(self, due: Mapping[str, float]) -> None:
        """Begin to work with the state of another incarnation."""
        self.started = True
        self.on_start(due)
        self.worker.ready(self)

    # -- changes of parallelism ---------------------------------------------------------------------------------------

    def redefine(self, definition: ComponentDef) -> None:
        """The topology has other numbers of tasks: those of this component, or of its senders, may have changed."""
        self.definition = definition
        if self.component is not None:
            self.component.parallelism = definition.par

    # -- called by a host of batches ----------------------------------------------------------------------------------

    def begin_batch(self, definition: ComponentDef) -> None:
        """Count from zero, by the definition of the plan in force."""
        self.meters, self.definition = Meters(), definition

    # -- called by the worker ----------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        raise NotImplementedError

    def unblocked(self) -> None:
        self.blocked -= 1
        if not self.blocked:
            self.count_blocked(self.worker.clock.now())
            self.worker.ready(self)

    @property
    def waits(self) -> bool:
        """It waits for a credit of another task."""
        return self.blocked > 0

    def held_up(self, now: float) -> None:
        """It has work and must wait for others: measure until it may go on."""
        if self._held_since is None:
            self._held_since = now

    def count_blocked(self, now: float, idle: bool = False) -> None:
        """Count the time since it was held up, which may go on, unless it has nothing to do any more."""
        if self._held_since is not None:
            self.meters.blocked_seconds += now - self._held_since
            self._held_since = now if self.waits and not idle else None

    def rewire(self, channels: dict[int, Channel]) -> None:
        """Use the channels of a new plan."""
        self.channels = channels
        self.blocked = sum(channel.full for channel in channels.values())
        self.count_blocked(self.worker.clock.now())
        self.size_chunks()

    def group_counts_of(self, component: str, route: ByFields) -> np.ndarray:
        """The counts of tuples sent to each key group of the component, to which the route leads."""
        return self.group_counts.setdefault(component, np.zeros(len(route.owners), np.int64))

    def count_groups(self) -> None:
        """Bring the counts of key groups up to date."""
        for output in self.outbox.outputs:
            for route in output.routes:
                route.count()

    def count_merged(self, saved: int) -> None:
        """Count tuples that were merged into others before they were sent."""
        self.meters.merged += saved

    def size_chunks(self) -> None:
        """Send chunks as large as the slowest receiver wants them, up to the configured size."""
        wanted = min((channel.chunk for channel in self.channels.values()), default=self.sender.chunk_tuples)
        self.chunk_tuples = min(self.sender.chunk_tuples, wanted)
        self.needed = min(self.sender.chunk_tuples, max((channel.needed for channel in self.channels.values()), default=1))

    def emitted_for_good(self) -> int:
        """Tuples that it has emitted and that will not be replayed."""
        return self.meters.emitted

    def idle(self) -> bool:
        """True if nothing is left to do for a task that moved away."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Drop waiting input: the task ends, and must not process it after `close`."""

    def close(self) -> None:
        self.life.close()

    @property
    def queue_length(self) -> int:
        return 0
