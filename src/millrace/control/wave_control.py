"""Wave control: runs the waves of all topologies and rolls topologies back; turns the steps of `Waves` into commands.

A new epoch begins with its own manifest, the *claim*: it holds the wave that the epoch continues from, under the epoch's
number. No sink discards what it prepared after that wave until the claim is written. A manifest that was being written when the
failure came, or that a superseded master still writes, therefore does no harm: the newest epoch in the store counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from millrace.config import (
    AT_LEAST_ONCE,
    GUARANTEE,
    MESSAGE_TIMEOUT,
    WAVE_ALIGNED,
    WAVE_FAILURES,
    WAVE_INTERVAL,
    WAVE_TIMEOUT,
)
from millrace.control.assignment import Place
from millrace.control.events import (
    ChannelBroke,
    CollectCheckpoints,
    Command,
    DeleteAbandoned,
    Distribute,
    ManifestStored,
    Say,
    SendWave,
    StoreManifest,
    Submitted,
    WaveAcked,
    WaveRequested,
)
from millrace.control.pauses import doubled_pause
from millrace.control.submission import owners_in
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING, STARTING, STOPPING, WAITING
from millrace.control.waves import (
    CLAIM,
    COMMIT,
    IDLE,
    INIT,
    Abandoned,
    Claim,
    Committed,
    Restored,
    RolledBack,
    Send,
    Store,
    Waves,
    WaveStep,
)
from millrace.control.wording import tasks_named
from millrace.control.workers import WorkerView
from millrace.errors import TopologyError
from millrace.model.graph import ACKER, TaskId, TopologyGraph
from millrace.state.checkpoint import Manifest, TaskRecord

FIRST_HOLD, LAST_HOLD = 0.5, 30.0  # seconds before spouts continue: after the second failure in short succession, and at most
REPORTED_AT = {10**power for power in range(9)}  # repeats of a trouble that are reported


class WaveTopologies(Protocol):
    """The part of the master's state that wave control uses."""

    author: int
    revision: int
    topologies: dict[str, TopologyState]
    workers: dict[int, WorkerView]

    def topology(self, name: str) -> TopologyState:
        """The running topology of that name; raises `UnknownTopology` if there is none."""

    def all_at(self, revision: int) -> bool:
        """True if every worker has carried out the revision."""

    def all_up(self, topology: TopologyState) -> list[Command]:
        """Let the spouts run once all tasks are up, unless the topology is paused."""

    def wave_committed(self, topology: TopologyState) -> list[Command]:
        """Go on with moves that wait for a wave."""

    def rolled_back(self, topology: TopologyState) -> list[Command]:
        """End the moves of tasks that begin again."""

    def end(self, topology: TopologyState, how: str) -> list[Command]:
        """Remove the topology."""

    def distribute(self) -> Distribute:
        """The command that sends out the assignment under a new revision."""


class WaveControl:
    """Every method returns the commands to carry out. `now` is the time of the last tick."""

    def __init__(self, master: WaveTopologies) -> None:
        self._master = master
        self.now = 0.0

    def prepare(self, topology: TopologyState, event: Submitted) -> None:
        """Set up a topology that takes waves. Epochs and waves are numbered after those in the store, so that no name is used
        twice. A master's author number is a time: epochs rise from run to run even if the store was emptied."""
        graph, checkpoint = event.graph, event.checkpoint
        topology.epoch, topology.checkpoint = max(self._master.author, event.after[0]), checkpoint
        topology.offsets = event.offsets
        if checkpoint is not None:  # tuples that the wave has overtaken were saved by their owners
            topology.key_groups = owners_in(checkpoint, graph)
        committed = (checkpoint.wave, checkpoint.wave_epoch) if checkpoint is not None else (0, 0)
        # At least once, roots that are in flight at a wave are replayed anyway.
        aligned = WAVE_ALIGNED.of(graph.config) if graph.exactly_once else 0.0
        topology.waves = Waves(WAVE_INTERVAL.of(graph.config), WAVE_TIMEOUT.of(graph.config), event.after[1], *committed,
                               aligned=aligned)
        if checkpoint is not None and event.offsets:
            topology.offsets = checkpoint.offsets or event.offsets

    # -- events --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Command]:
        self.now = now
        commands: list[Command] = []
        for topology in list(self._master.topologies.values()):
            waves = topology.waves
            if waves is None or topology.status == WAITING:
                continue
            if topology.status == STARTING and waves.phase == IDLE:
                commands += self._up_if_ready(topology)
            else:
                commands += self._carry_out(topology, waves.tick(now))
        return commands

    def begin(self, topology: TopologyState) -> list[Command]:
        """Begin the wave that is due, unless one is under way."""
        assert topology.waves is not None
        return self._carry_out(topology, topology.waves.tick(self.now)) if topology.waves.phase == IDLE else []

    def admit(self, topology: TopologyState, tasks: Iterable[TaskId]) -> list[Command]:
        """Let further tasks, which start without state, take part in the waves."""
        assert topology.waves is not None
        return self._carry_out(topology, topology.waves.admit(tasks, self.now))

    def drop(self, topology: TopologyState) -> list[Command]:
        """Roll back the wave that is being prepared, if there is one."""
        assert topology.waves is not None
        return self._carry_out(topology, topology.waves.give_way(self.now))

    def requested(self, event: WaveRequested) -> list[Command]:
        """Begin a wave with the next tick, or after the current wave."""
        waves = self._master.topology(event.name).waves
        if waves is None:
            raise TopologyError(f"{event.name!r} takes no waves: it keeps no state and is not exactly-once, or it runs in "
                                "batches")
        waves.request(self.now)
        return []

    def acked(self, event: WaveAcked) -> list[Command]:
        topology = self._numbered(event.topology, event.epoch)
        if topology is None or topology.waves is None:
            return []
        task = topology.graph.find(event.task)
        place = topology.places.get(task) if task is not None else None
        if task is None or place is None or place.incarnation != event.incarnation:
            return []
        reports: list[Command] = []
        if event.error and event.kind == INIT:
            reports = self._report_rarely(topology, event.error,
                                          f"{task} cannot restore the state of wave {event.wave} and retries: {event.error}")
        elif event.error and event.kind == COMMIT:
            reports = self._report_rarely(topology, event.error,
                                          f"{task} cannot commit wave {event.wave} and will be asked again: {event.error}")
        steps = topology.waves.acked(event.kind, event.wave, task, event.record, event.error, self.now)
        return reports + self._carry_out(topology, steps)

    def stored(self, event: ManifestStored) -> list[Command]:
        topology = self._master.topologies.get(event.name)
        if topology is None or topology.waves is None or event.epoch != topology.epoch:
            return []
        waves = topology.waves
        if waves.phase == CLAIM:
            return self._claimed(topology, event)
        steps = waves.stored(event.wave, event.error, self.now)
        if steps and not event.error:
            topology.checkpoint, topology.storing = topology.storing, None
        return self._carry_out(topology, steps)

    def _claimed(self, topology: TopologyState, event: ManifestStored) -> list[Command]:
        assert topology.waves is not None
        reports: list[Command] = []
        if event.error:
            reports = self._report_rarely(topology, event.error, f"waits for the checkpoint store: {event.error}")
        return reports + self._carry_out(topology, topology.waves.claimed(event.wave, event.error, self.now))

    def broke(self, event: ChannelBroke) -> list[Command]:
        topology = self._numbered(event.topology, event.epoch)
        if topology is None or not topology.graph.exactly_once or topology.status == WAITING:
            return []
        recent = self.now - max(topology.broke_at, topology.held_until) < MESSAGE_TIMEOUT.of(topology.graph.config)
        topology.attempt, topology.broke_at = topology.attempt + 1 if recent else 1, self.now
        pause = doubled_pause(topology.attempt - 1, FIRST_HOLD, LAST_HOLD)
        topology.held_until = self.now + pause
        topology.version += 1
        later = f", spouts continue in {pause:g} s" if pause else ""
        topology.restarts_because = event.reason
        return [Say(f"{event.reason}: rolled back to the last committed wave{later}", topology.graph.name, "warning",
                    event.reason),
                *self.roll_back(topology), self._master.distribute()]

    def _numbered(self, number: int, epoch: int) -> TopologyState | None:
        """The topology with that number, if it is in that epoch."""
        return next((topology for topology in self._master.topologies.values()
                     if topology.number == number and topology.epoch == epoch), None)

    def progressed(self, topology: TopologyState, tasks: Mapping[TaskId, bool]) -> None:
        """Record that these tasks have processed tuples: the end of the topology waits while they do, and a wave for those that
        it has not passed (False)."""
        if topology.waves is None or not tasks:
            return
        topology.waves.progress([task for task, passed in tasks.items() if not passed], self.now)
        if topology.status == STOPPING and topology.graph.exactly_once and topology.kill_wait:
            topology.deadline = max(topology.deadline, min(self.now + topology.kill_wait, topology.stop_by))

    # -- waves ---------------------------------------------------------------------------------------------------------

    def _carry_out(self, topology: TopologyState, steps: Sequence[WaveStep]) -> list[Command]:
        commands: list[Command] = []
        for step in steps:
            match step:
                case Send():
                    commands.append(_send(topology, step))
                case Claim():
                    commands.append(StoreManifest(_claim(topology), claim=True))
                case Store():
                    topology.storing = _manifest(topology, step)
                    commands.append(StoreManifest(topology.storing))
                case Restored():
                    commands += self._restored(topology, step.wave)
                case Committed():
                    if not topology.handover.copies:  # collected after a later wave
                        commands.append(CollectCheckpoints(topology.graph.name, topology.epoch))
                    commands += self._committed(topology)
                case Abandoned():
                    commands += self._abandoned(topology, step)
                case RolledBack():
                    commands.append(_delete_rolled_back(topology, step))
        return commands

    def _restored(self, topology: TopologyState, wave: int) -> list[Command]:
        reports: list[Command] = []
        topology.troubled, topology.troubles = "", 0
        if wave:
            reports.append(Say(f"every task has restored the state of wave {wave}", topology.graph.name,
                               cause=topology.restarts_because))
        return reports + self._up_if_ready(topology) if topology.status == STARTING else reports

    def _up_if_ready(self, topology: TopologyState) -> list[Command]:
        """Start the spouts once every task has restored its state and, if the topology is not exactly-once, every worker has
        the new plan: tasks that did not restore may still lack it."""
        ready = topology.graph.exactly_once or self._master.all_at(topology.ready_at)
        return self._master.all_up(topology) if ready and self.now >= topology.held_until else []

    def _committed(self, topology: TopologyState) -> list[Command]:
        assert topology.waves is not None
        topology.troubled, topology.troubles = "", 0
        waited, topology.spouts_wait = topology.spouts_wait, False
        if topology.closing and topology.waves.committed >= topology.closing:
            return self._master.end(topology, "drained, and its last wave is committed")
        resumed: list[Command] = []
        if waited:
            resumed = [Say("a wave is committed again: its spouts continue", topology.graph.name), self._master.distribute()]
        return resumed + self._master.wave_committed(topology)

    def _abandoned(self, topology: TopologyState, step: Abandoned) -> list[Command]:
        waited, limit = topology.spouts_wait, WAVE_FAILURES.of(topology.graph.config)
        topology.spouts_wait = waited or (topology.graph.exactly_once and 0 < limit <= topology.failed_waves)
        continues = "its spouts wait" if waited else "the stream continues"
        reports = self._report_rarely(topology, step.reason, f"wave {step.wave} is abandoned and {continues}: {step.reason}")
        if waited or not topology.spouts_wait:
            return reports
        return [*reports, Say(f"{topology.failed_waves} waves in a row have failed: its spouts wait until one is committed",
                              topology.graph.name, "warning", step.reason), self._master.distribute()]

    def _report_rarely(self, topology: TopologyState, reason: str, text: str) -> list[Command]:
        """Report the first time, the tenth, the hundredth: a store that is down for an hour must not flood the log."""
        topology.troubled, topology.troubles = reason, topology.troubles + 1
        if topology.troubles not in REPORTED_AT:
            return []
        often = f" ({topology.troubles} times in a row)" if topology.troubles > 1 else ""
        return [Say(f"{text}{often}", topology.graph.name, "warning", reason)]

    def close(self, topology: TopologyState) -> list[Command]:
        """End a drained topology. A last wave is committed first, because output since the previous wave is not visible yet."""
        waves = topology.waves
        if waves is None:
            return self._master.end(topology, "drained")
        if topology.closing:
            return []
        topology.closing = waves.close(self.now)
        topology.deadline = max(topology.deadline, self.now + waves.timeout)  # the user's limit was for the tuples in flight
        return self._carry_out(topology, waves.tick(self.now))

    def delete_abandoned(self, topology: TopologyState) -> list[Command]:
        """Delete what waves that were never committed have left of a topology that ends."""
        return _delete_uncommitted(topology, _with_waves(topology.graph)) if topology.begun else []

    # -- rolling back --------------------------------------------------------------------------------------------------

    def roll_back(self, topology: TopologyState) -> list[Command]:
        """Roll back to the last committed wave, under the version just begun. Exactly once: every task restarts in a new
        epoch. At least once: only lost tasks restore their state, and spouts replay the tuples after the wave."""
        waves, graph = topology.waves, topology.graph
        assert waves is not None
        reports: list[Command] = []
        topology.roll_backs += 1
        if graph.exactly_once:
            topology.epoch += 1
        for task in [task for task in topology.places if graph.exactly_once or _rewinds(graph, task)]:
            topology.places[task] = Place(topology.places[task].slot, topology.version)
        reports += self._master.rolled_back(topology)
        if not topology.never_repeats:
            topology.positions = dict(topology.checkpoint.positions()) if topology.checkpoint is not None else {}
        topology.quiet, topology.starting, topology.closing = {}, {}, 0
        topology.executed, topology.in_flight = {}, {}
        if topology.status in (RUNNING, PAUSED, STARTING):
            topology.become(STARTING)
        elif topology.status == STOPPING and graph.exactly_once:
            topology.uncommitted = f"ends as of wave {waves.committed}: --resume continues from there"
            reports.append(Say(topology.uncommitted, graph.name, "warning", topology.restarts_because))
        topology.ready_at = self._master.revision + 1
        tasks = _with_waves(graph)
        # A fresh start leaves older checkpoints alone until its first commit: --resume older goes back to them.
        claim = graph.exactly_once and (topology.checkpoint is not None or topology.begun)
        if topology.begun:
            restarted = [task for task in tasks if task in topology.places
                         and topology.places[task].incarnation == topology.version]
            reports += [*_state_lost(topology, restarted), *_delete_uncommitted(topology, restarted)]
        topology.begun = True
        return reports + self._carry_out(topology, waves.restore(tasks, topology.epoch, claim, self.now))


def check_read(checkpoint: Manifest, event: Submitted) -> None:
    """Raise `TopologyError` if a DataFrame would be read from the beginning again on top of resumed state."""
    if event.offsets and checkpoint.of_batches:
        fed = ", ".join(component.name for component in event.graph.spouts if component.dataframe)
        raise TopologyError(f"the checkpoint of {event.graph.name!r} was made by the microbatch engine, which stores "
                            f"the read position of {fed} elsewhere: the resident engine would read it from the beginning "
                            "again, on top of the restored state. Resume it with --engine microbatch, or start it under "
                            "another name")


def _with_waves(graph: TopologyGraph) -> list[TaskId]:
    return [task for task in graph.tasks() if task.component != ACKER]


def _rewinds(graph: TopologyGraph, task: TaskId) -> bool:
    """True for a spout that, at least once, replays the tuples after the wave."""
    if task.component == ACKER or GUARANTEE.of(graph.config) != AT_LEAST_ONCE:
        return False
    component = graph.component(task.component)
    return component.kind == "spout" and component.movable


def _send(topology: TopologyState, send: Send) -> SendWave:
    tasks: dict[int, list[int]] = {}
    for task in send.tasks:
        if task in topology.places:
            tasks.setdefault(topology.places[task].slot, []).append(topology.graph.number(task))
    return SendWave(topology.number, topology.epoch, send, {slot: tuple(numbers) for slot, numbers in sorted(tasks.items())})


def _delete_rolled_back(topology: TopologyState, step: RolledBack) -> DeleteAbandoned:
    """If the next wave writes everything whole, it builds on nothing."""
    assert topology.waves is not None
    whole = topology.waves.whole
    needed = {record.task: frozenset(() if whole else (piece.blob for piece in record.pieces())) for record in step.records}
    return DeleteAbandoned(topology.graph.name, topology.epoch, step.wave, needed)


def _delete_uncommitted(topology: TopologyState, tasks: Iterable[TaskId]) -> list[Command]:
    """Delete what waves after the last committed one have left, of tasks that begin again from that or have ended."""
    waves = topology.waves
    if waves is None or waves.wave == waves.committed:
        return []
    return [DeleteAbandoned(topology.graph.name, topology.epoch, waves.wave, dict.fromkeys(tasks, frozenset[str]()))]


def _state_lost(topology: TopologyState, restarted: Sequence[TaskId]) -> list[Command]:
    """The report that state goes back further than to a recent wave, because waves since then could not be stored."""
    assert topology.waves is not None
    graph, wave = topology.graph, topology.waves.committed
    stateful = [task for task in restarted if graph.component(task.component).stateful]
    if not topology.waves.failed or not stateful:
        return []
    back = f"back to wave {wave}" if wave else "back to the start"
    why = f": {topology.troubled}" if topology.troubled else ""
    text = f"the state of {tasks_named(stateful)} goes {back}, because no later wave could be stored{why}"
    unread = [spout.name for spout in graph.spouts if topology.never_repeats or not spout.movable]
    if unread:
        return [Say(f"state is lost: {text}. {', '.join(unread)} will not be read again from there: results are too low",
                    graph.name, "error", topology.troubled, tuple(stateful))]
    return [Say(f"{text}. Spouts read again from there", graph.name, "warning", topology.troubled, tuple(stateful))]


def _claim(topology: TopologyState) -> Manifest:
    """The checkpoint that the epoch continues from, under the epoch's number; an empty one for a fresh start."""
    if topology.checkpoint is not None:
        return msgspec.structs.replace(topology.checkpoint, epoch=topology.epoch)
    return Manifest(topology.graph.name, 0, topology.epoch, topology.graph.key_groups, topology.graph.parallelism, [], 0.0,
                    offsets=topology.offsets, declared=topology.graph.declared, splits=topology.graph.splits)


def _manifest(topology: TopologyState, store: Store) -> Manifest:
    """The tasks' records, completed with the pieces that have not changed since the last checkpoint."""
    graph, before = topology.graph, topology.checkpoint
    reported = {record.task: record for record in store.records}
    records: list[TaskRecord] = []
    for component in graph.components:
        chains = before.chains(component.name) if before is not None else {}
        blocks = before.blocks(component.name) if before is not None else {}
        of_component = [reported[TaskId(component.name, index)] for index in range(component.par)]
        for record in of_component:
            chains.update(record.chains)
            blocks.update(record.blocks)
        owners = topology.key_groups.get(component.name, ())
        for record in of_component:
            owned = {group: chain for group, chain in chains.items() if group < len(owners) and owners[group] == record.index}
            splits = {split: place for split, place in record.splits.items() if owners[split] == record.index}
            whole = msgspec.structs.replace(record, chains=owned, blocks={}, splits=splits)
            needed = {piece.blob for piece in whole.pieces()}
            records.append(msgspec.structs.replace(whole, blocks={blob: blocks[blob] for blob in needed if blob in blocks}))
    return Manifest(graph.name, store.wave, topology.epoch, graph.key_groups, graph.parallelism, records, 0.0, topology.epoch,
                    topology.offsets, declared=graph.declared, splits=graph.splits,
                    owners={name: list(owners) for name, owners in topology.key_groups.items()}, elastic=topology.elastic)
