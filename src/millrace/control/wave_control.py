"""Waves and going back to them, for all topologies of a master: turns what `Waves` decides into commands.

A new epoch begins with a manifest of its own, the *claim*: the wave that it goes on from, under its number. Before that is
written no sink throws away what it had prepared later than that wave. So whatever becomes of a manifest that was being
written when the failure came, and of one that a master which does not know that it is dead still writes: the newest epoch
in the store is the one that counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from millrace.config import AT_LEAST_ONCE, GUARANTEE, MESSAGE_TIMEOUT, WAVE_INTERVAL, WAVE_TIMEOUT
from millrace.control.assignment import Place
from millrace.control.events import (
    ChannelBroke,
    CollectCheckpoints,
    Command,
    ManifestStored,
    Say,
    SendWave,
    StoreManifest,
    Submitted,
    WaveAcked,
)
from millrace.control.topology_state import PAUSED, RUNNING, STARTING, STOPPING, WAITING, TopologyState
from millrace.control.waves import CLAIM, COMMIT, IDLE, INIT, Claim, Committed, GivenUp, Restored, Send, Step, Store, Waves
from millrace.errors import TopologyError
from millrace.model.graph import ACKER, TaskId, TopologyGraph
from millrace.state.checkpoint import Manifest, TaskRecord, fits

if TYPE_CHECKING:
    from millrace.control.master_state import MasterState

FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0  # before spouts go on after a sink failed twice in short succession, and again and again
TOLD_AT = {10**power for power in range(9)}


class Recovery:
    """Every method returns what is to be done. `now` is the time of the last tick."""

    def __init__(self, master: MasterState) -> None:
        self._master = master
        self.now = 0.0

    def prepare(self, topology: TopologyState, event: Submitted) -> None:
        """A topology that waves will sweep. Epochs and waves are numbered on from what the store has, so that no name is ever
        used twice. A master's author number is a time: epochs rise from run to run even where the store was emptied."""
        graph, checkpoint = event.graph, event.checkpoint
        if checkpoint is not None:
            fits(checkpoint, graph)
            _check_read(checkpoint, event)
        topology.epoch, topology.checkpoint = max(self._master.author, event.after[0]), checkpoint
        topology.offsets = event.offsets
        topology.waves = Waves(WAVE_INTERVAL.of(graph.config), WAVE_TIMEOUT.of(graph.config), event.after[1])
        if checkpoint is not None:
            topology.waves.committed, topology.waves.committed_epoch = checkpoint.wave, checkpoint.wave_epoch
            if event.offsets:
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
                commands += self._up_if_it_may(topology)
            else:
                commands += self._carry_out(topology, waves.tick(now))
        return commands

    def acked(self, event: WaveAcked) -> list[Command]:
        topology = self._numbered(event.topology, event.epoch)
        if topology is None or topology.waves is None:
            return []
        task = topology.graph.task(event.task)
        place = topology.places.get(task)
        if place is None or place.incarnation != event.incarnation:
            return []
        said: list[Command] = []
        if event.error and event.kind == INIT:
            said += self._said_seldom(topology, event.error, f"{task} cannot take up the state of wave {event.wave}, and tries "
                                                             f"again: {event.error}")
        elif event.error and event.kind == COMMIT:
            said += self._said_seldom(topology, event.error, f"{task} cannot commit wave {event.wave}, and is asked again: "
                                                             f"{event.error}")
        return said + self._carry_out(topology, topology.waves.acked(event.kind, event.wave, task, event.record, event.error,
                                                                     self.now))

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
        said: list[Command] = []
        if event.error:
            said = self._said_seldom(topology, event.error, f"waits for the checkpoint store: {event.error}")
        return said + self._carry_out(topology, topology.waves.claimed(event.wave, event.error, self.now))

    def broke(self, event: ChannelBroke) -> list[Command]:
        topology = self._numbered(event.topology, event.epoch)
        if topology is None or not topology.graph.exactly_once or topology.status == WAITING:
            return []
        recent = self.now - max(topology.broke_at, topology.held_until) < MESSAGE_TIMEOUT.of(topology.graph.config)
        topology.attempt, topology.broke_at = topology.attempt + 1 if recent else 1, self.now
        pause = min(FIRST_PAUSE * 2 ** (topology.attempt - 2), LAST_PAUSE) if topology.attempt > 1 else 0.0
        topology.held_until = self.now + pause
        topology.version += 1
        later = f", and on in {pause:g} s" if pause else ""
        return [Say(f"{event.reason}: back to the last committed wave{later}", topology.graph.name, "warning"),
                *self.go_back(topology), self._master.distribute()]

    def _numbered(self, number: int, epoch: int) -> TopologyState | None:
        """The topology of that number, if it is in that epoch."""
        return next((topology for topology in self._master.topologies.values()
                     if topology.number == number and topology.epoch == epoch), None)

    # -- waves ---------------------------------------------------------------------------------------------------------

    def _carry_out(self, topology: TopologyState, steps: Sequence[Step]) -> list[Command]:
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
                    commands += [CollectCheckpoints(topology.graph.name, topology.epoch), *self._committed(topology)]
                case GivenUp():
                    text = f"wave {step.wave} is given up, and the stream goes on: {step.reason}"
                    commands += self._said_seldom(topology, step.reason, text)
        return commands

    def _restored(self, topology: TopologyState, wave: int) -> list[Command]:
        said: list[Command] = []
        topology.troubled, topology.troubles = "", 0
        if wave:
            said.append(Say(f"every task has taken up the state of wave {wave}", topology.graph.name))
        return said + self._up_if_it_may(topology) if topology.status == STARTING else said

    def _up_if_it_may(self, topology: TopologyState) -> list[Command]:
        """Every task has taken up its state. Those that did not have to, as at least once, may not know the new plan yet."""
        ready = topology.graph.exactly_once or self._master.all_at(topology.ready_at)
        return self._master.all_up(topology) if ready and self.now >= topology.held_until else []

    def _committed(self, topology: TopologyState) -> list[Command]:
        assert topology.waves is not None
        topology.troubled, topology.troubles = "", 0
        if topology.closing and topology.waves.committed >= topology.closing:
            return self._master.end(topology, "drained, and its last wave is committed")
        return self._move_now(topology)

    def _said_seldom(self, topology: TopologyState, reason: str, text: str) -> list[Command]:
        """The first time, the tenth, the hundredth: a store that is away for an hour is not seven hundred pieces of news."""
        topology.troubled, topology.troubles = reason, topology.troubles + 1
        if topology.troubles not in TOLD_AT:
            return []
        often = f" ({topology.troubles} times in a row)" if topology.troubles > 1 else ""
        return [Say(f"{text}{often}", topology.graph.name, "warning")]

    def close(self, topology: TopologyState) -> list[Command]:
        """Everything has been worked off. What its sinks have got since the last wave is not visible yet: one more."""
        waves = topology.waves
        if waves is None:
            return self._master.end(topology, "drained")
        if topology.closing:
            return []
        topology.closing, waves.due, waves.closing = waves.wave + 1, self.now, True
        topology.deadline = max(topology.deadline, self.now + waves.timeout)  # what is in flight was what had to be waited for
        return self._carry_out(topology, waves.tick(self.now))

    # -- moves ---------------------------------------------------------------------------------------------------------

    def move(self, topology: TopologyState, moves: Mapping[TaskId, int]) -> list[Command]:
        """What has state to take along waits for a wave, so that little is done twice."""
        assert topology.waves is not None
        topology.moves.update(moves)
        return self._carry_out(topology, topology.waves.begin(self.now)) if topology.status in (RUNNING, PAUSED) else []

    def _move_now(self, topology: TopologyState) -> list[Command]:
        """The wave that moves waited for is over."""
        moves = {task: slot for task, slot in topology.moves.items()
                 if slot in self._master.workers and task in topology.places}
        topology.moves = {}
        if not moves or topology.status == STOPPING:
            return []
        topology.version += 1
        for task, slot in moves.items():
            topology.places[task] = Place(slot, topology.version)
        return [*self.go_back(topology), self._master.distribute()]

    # -- going back ----------------------------------------------------------------------------------------------------

    def go_back(self, topology: TopologyState) -> list[Command]:
        """To the last committed wave, under the version just begun. Exactly once: every task starts anew in a new epoch.
        At least once: only what was lost or moved takes up its state of then, and spouts send again what came after it."""
        waves, graph = topology.waves, topology.graph
        assert waves is not None
        if graph.exactly_once:
            topology.epoch += 1
        for task in [task for task in topology.places if graph.exactly_once or _rewinds(graph, task)]:
            topology.places[task] = Place(topology.places[task].slot, topology.version)
        if not topology.never_repeats:
            topology.positions = dict(topology.checkpoint.positions()) if topology.checkpoint is not None else {}
        topology.quiet, topology.starting, topology.closing = {}, {}, 0
        said: list[Command] = []
        if topology.status in (RUNNING, PAUSED, STARTING):
            topology.status = STARTING
        elif topology.status == STOPPING and graph.exactly_once:
            said.append(Say(f"it ends as of wave {waves.committed}: --resume goes on from there", graph.name, "warning"))
        topology.ready_at = self._master.revision + 1
        tasks = [task for task in graph.tasks() if task.component != ACKER]
        # A topology that begins anew leaves older checkpoints alone: whoever said --fresh too soon can still say --resume.
        claim = graph.exactly_once and (topology.checkpoint is not None or topology.begun)
        topology.begun = True
        return said + self._carry_out(topology, waves.restore(tasks, topology.epoch, claim, self.now))


def _check_read(checkpoint: Manifest, event: Submitted) -> None:
    """`TopologyError` if state would be resumed on top of which a DataFrame is read from its start once more."""
    if event.offsets and checkpoint.of_batches:
        fed = ", ".join(component.name for component in event.graph.spouts if component.dataframe)
        raise TopologyError(f"the checkpoint of {event.graph.name!r} was made by the microbatch engine, which keeps elsewhere "
                            f"how far {fed} was read: it would be read from its start once more, on top of the state. Resume "
                            "it with --engine microbatch, or start it under another name")


def _rewinds(graph: TopologyGraph, task: TaskId) -> bool:
    """A spout that, at least once, sends again what came after the wave."""
    if task.component == ACKER or GUARANTEE.of(graph.config) != AT_LEAST_ONCE:
        return False
    component = graph.component(task.component)
    return component.kind == "spout" and component.movable


def _send(topology: TopologyState, send: Send) -> SendWave:
    tasks: dict[int, list[int]] = {}
    for task in send.tasks:
        if task in topology.places:
            tasks.setdefault(topology.places[task].slot, []).append(topology.graph.number(task))
    return SendWave(topology.number, topology.epoch, send, {slot: tuple(found) for slot, found in sorted(tasks.items())})


def _claim(topology: TopologyState) -> Manifest:
    """The checkpoint that the epoch goes on from, under its own number; an empty one if it begins at the beginning."""
    if topology.checkpoint is not None:
        return msgspec.structs.replace(topology.checkpoint, epoch=topology.epoch)
    return Manifest(topology.graph.name, 0, topology.epoch, topology.graph.key_groups, _parallelism(topology.graph), [], 0.0,
                    offsets=topology.offsets)


def _manifest(topology: TopologyState, store: Store) -> Manifest:
    """What the tasks have told, put together with what has not changed since the last checkpoint."""
    graph, before = topology.graph, topology.checkpoint
    told = {record.task: record for record in store.records}
    records: list[TaskRecord] = []
    for component in graph.components:
        chains = before.chains(component.name) if before is not None else {}
        blocks = before.blocks(component.name) if before is not None else {}
        mine = [told[TaskId(component.name, index)] for index in range(component.par)]
        for record in mine:
            chains.update(record.chains)
            blocks.update(record.blocks)
        owners = topology.key_groups.get(component.name, ())
        for record in mine:
            own = {group: chain for group, chain in chains.items() if group < len(owners) and owners[group] == record.index}
            whole = msgspec.structs.replace(record, chains=own, blocks={})
            needed = {piece.blob for piece in whole.pieces()}
            records.append(msgspec.structs.replace(whole, blocks={blob: blocks[blob] for blob in needed if blob in blocks}))
    return Manifest(graph.name, store.wave, topology.epoch, graph.key_groups, _parallelism(graph), records, 0.0, topology.epoch,
                    topology.offsets)


def _parallelism(graph: TopologyGraph) -> dict[str, int]:
    return {component.name: component.par for component in graph.components}
