"""Carries out migrations step by step; `strategies/catalogue.py` decides on the steps.

A migration that fails ends with the old placement or with the new one. Until tasks have ended for it, it goes back: tasks that
were handed over return. After that it goes on to the new placement at once, or back if a worker of the new one is gone. Tasks
that have ended start at the places of the placement chosen, the others are handed over to them; a task whose worker there is
gone starts wherever there is room, and returns when the worker does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from millrace.config import HANDOVER_PREPARE_LIMIT
from millrace.control.assignment import SWITCH, Place
from millrace.control.events import Command, Distribute, Migrated, Rebalanced, Say
from millrace.control.migrations import CANCELLED, COMPLETED, ROLLED_BACK, Migration, TaskMove
from millrace.control.moves import RESTING
from millrace.control.moving.handover import HandoverControl
from millrace.control.moving.slots import SlotControl
from millrace.control.pauses import doubled_pause
from millrace.control.strategies.catalogue import steps_of, strategy_named
from millrace.control.strategies.steps import (
    Checkpoint,
    Delay,
    HandOver,
    Hold,
    PlacementChange,
    Release,
    Remove,
    Replace,
    Restart,
    Step,
    Until,
)
from millrace.control.strategies.under_way import MigrationUnderWay
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING, STOPPING
from millrace.control.waves import IDLE
from millrace.control.wording import tasks_named, workers_named
from millrace.control.workers import WorkerView
from millrace.errors import NotEnoughSlots, TopologyError, UnknownName
from millrace.model.graph import TaskId

MOST_TRIES = 8  # to hand over tasks of a migration that has failed
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0  # seconds between two of them


class MigratedTopologies(Protocol):
    """The part of the master's state that migrations use."""

    topologies: dict[str, TopologyState]
    workers: dict[int, WorkerView]
    revision: int

    @property
    def closed(self) -> frozenset[int]:
        """Slots of workers that are being removed or restarted."""

    def topology(self, name: str) -> TopologyState:
        """The running topology of that name; `UnknownTopology` if there is none."""

    def at_rest(self, topology: TopologyState) -> bool:
        """True if none of its tuples is in flight, by the reports since its spouts began to wait."""

    def all_at(self, revision: int) -> bool:
        """True if every worker has carried out the revision."""

    def place(self, topology: TopologyState, cause: str) -> list[Command]:
        """Find slots for the tasks that have none."""

    def begin_wave(self, topology: TopologyState) -> list[Command]:
        """Begin the wave that is due, unless one is under way."""

    def drop_wave(self, topology: TopologyState) -> list[Command]:
        """Roll back the wave that is being prepared, if there is one."""

    def roll_back(self, topology: TopologyState) -> list[Command]:
        """Roll back to the last committed wave, under the version just begun."""

    def distribute(self) -> Distribute:
        """The command that sends out the assignment under a new revision."""


class MigrationControl:
    """Every method returns the commands to carry out. `now` is the time of the last event, `cycles_began` that when the cycles
    began in which N-Storm's workers read plans."""

    def __init__(self, master: MigratedTopologies, handovers: HandoverControl, slots: SlotControl) -> None:
        self._master, self._handovers, self._slots = master, handovers, slots
        self.now = self.cycles_began = 0.0

    # -- requests ------------------------------------------------------------------------------------------------------

    def requested(self, event: Rebalanced) -> list[Command]:
        """Begin a migration. Refused as a whole if it cannot be carried out."""
        topology = self._master.topology(event.name)
        change, steps = self.planned(event)
        if not change.moves:
            return [Say("every task is already where it is wanted", event.name, cause=str(event.cause))]
        what = f"{tasks_named(list(change.moves))} {'moves' if len(change.moves) == 1 else 'move'} to " \
               f"{workers_named(change.moves.values())} by {event.strategy}"
        said = Say(what, event.name, cause=str(event.cause), tasks=tuple(change.moves))
        parameters = {**strategy_named(event.strategy).parameters, **event.parameters}
        topology.migration = MigrationUnderWay(event.strategy, parameters, event.cause, steps, change.moves,
                                               {task: change.before[task] for task in change.moves}, self.now, topology.version,
                                               sum(topology.in_flight.values()))
        return [said, *self._go_on(topology)]

    def planned(self, event: Rebalanced) -> tuple[PlacementChange, list[Step]]:
        """The change of placement, and its steps. Raises if it cannot be carried out."""
        topology = self._master.topology(event.name)
        self._check(topology, event)
        before = {task: place.slot for task, place in topology.places.items()}
        nodes = {slot: worker.node.name for slot, worker in self._master.workers.items()}
        change = PlacementChange(topology.graph, before, {**before, **event.placement}, nodes, self.now - self.cycles_began)
        steps = steps_of(event.strategy, change, event.parameters)
        if change.moves:
            self._check_alone(topology, steps)
        return change, steps

    def _check(self, topology: TopologyState, event: Rebalanced) -> None:
        name, workers = topology.graph.name, self._master.workers
        topology.check_free()
        for task, slot in event.placement.items():
            if task not in topology.places:
                raise UnknownName(f"{name!r} has no running task {task}")
            if slot not in workers:
                raise NotEnoughSlots(f"the placement needs worker {slot}, and there are only "
                                     f"{', '.join(map(str, sorted(workers)))}. Add workers first (millrace workers add)")
            if slot in self._master.closed:
                raise TopologyError(f"worker {slot} is being removed or restarted: move {task} to another worker, or try again "
                                    "later")
        if topology.batched:
            raise TopologyError(f"{name!r} runs in batches, and its tasks move between two of them: use `millrace move` "
                                "without a strategy")

    def _check_alone(self, topology: TopologyState, steps: Collection[object]) -> None:
        """Refuse a migration of a topology that does not run, that would meet moves, or would restart workers that others
        use."""
        name = topology.graph.name
        topology.check_free()
        if topology.status not in (RUNNING, PAUSED):
            raise TopologyError(f"topology {name!r} is {topology.status}: it can be migrated only while it runs or is paused")
        if not topology.handover.at_rest:
            raise TopologyError(f"tasks or key groups of {name!r} are being moved: try again when they have arrived (millrace "
                                "moves)")
        restarted = {slot for step in steps if isinstance(step, Replace) for slot in step.restart}
        if leaving := sorted(restarted & self._master.closed):
            raise TopologyError(f"worker {leaving[0]} is being removed or restarted: try again when that is over")
        if shared := self._shared(topology, restarted):
            raise TopologyError(f"{shared}: use a strategy that restarts no worker, for example handover")

    def _shared(self, topology: TopologyState, restarted: Collection[int]) -> str:
        """The reason why these workers cannot be restarted for the topology; empty if no other one uses them."""
        for other in self._master.topologies.values():
            if other is not topology and (shared := sorted(other.slots.intersection(restarted))):
                return f"worker {shared[0]} would be restarted, and it also has, or gets, tasks of {other.graph.name!r}"
        return ""

    # -- events --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Command]:
        self.now = now
        return self.advance()

    def advance(self) -> list[Command]:
        """Go on with the migrations that an event may have helped."""
        return [command for topology in list(self._master.topologies.values()) if topology.migration is not None
                for command in self._go_on(topology)]

    def cancel(self, topology: TopologyState, reason: str) -> list[Command]:
        """Cancel the migration, which has not ended any task yet."""
        assert topology.migration is not None
        topology.migration.trouble = topology.migration.trouble or reason
        return self._go_on(topology)

    def lost(self, topology: TopologyState, slot: int, generation: int) -> None:
        """A worker is lost, with the tasks that are still placed there. It may be one that the migration restarts."""
        migration = topology.migration
        if migration is None or migration.awaited.get(slot) == generation:
            return
        of_places = {place.slot for place in topology.places.values()}
        if slot in of_places.union(migration.moves.values(), migration.sources.values(), migration.removed.values()):
            migration.trouble = migration.trouble or f"worker {slot} was lost"

    def ended(self, topology: TopologyState, how: str) -> list[Command]:
        """The record of a migration that is under way in a topology that ends."""
        return [self._record(topology, CANCELLED, f"the topology ended: {how}")] if topology.migration is not None else []

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _go_on(self, topology: TopologyState) -> list[Command]:
        """Do everything that need not wait."""
        commands: list[Command] = []
        while (migration := topology.migration) is not None:
            if topology.status == STOPPING and not migration.trouble:
                migration.trouble = "the topology is being killed"
            if migration.trouble and not migration.given_up:
                commands += self._withdraw(topology, migration)
                if topology.handover.phase != RESTING:  # what has switched cannot be cancelled
                    return commands
                self._give_up(topology, migration)
            if migration.step is None:
                return [*commands, *self._end(topology, migration)]
            if not migration.entered:
                migration.entered, migration.since = True, self.now
                commands += self._enter(topology, migration)
                if migration.trouble and not migration.given_up:
                    continue
            done, more = self._finish(topology, migration)
            commands += more
            if migration.trouble and not migration.given_up:
                continue
            if not done:
                return commands
            migration.complete(self.now)
        return commands

    def _enter(self, topology: TopologyState, migration: MigrationUnderWay) -> list[Command]:
        """Begin a step."""
        match migration.step:
            case Hold(captures):
                topology.capturing = captures
                return self._hold(topology, migration, True)
            case Release():
                return self._hold(topology, migration, False)
            case Checkpoint(drains):
                assert topology.waves is not None
                migration.wave, topology.waves.drains = 0, drains
            case Remove(tasks):
                return self._remove(topology, migration, {task: migration.moves[task] for task in tasks})
            case Replace(moves, restart):
                return self._replace(topology, migration, moves, restart)
            case HandOver(moves, cold, limit):
                topology.handover.cold, topology.handover.limit = cold, limit
                return self._handovers.request(topology, self._away(topology, moves), migration.cause)
            case Restart(slots):
                return self._restart(migration, slots.difference(*(each.slots for each in self._master.topologies.values())))
        return []

    def _finish(self, topology: TopologyState, migration: MigrationUnderWay) -> tuple[bool, list[Command]]:
        """Go on with the step; True if it is over."""
        match migration.step:
            case Hold():
                return self._all_at(topology, migration.revision) or self._too_long(
                    topology, migration, "not all workers let their spouts wait"), []
            case Release():
                return self._all_at(topology, migration.revision), []
            case Delay(seconds):
                return self.now - migration.since >= seconds, []
            case Until(seconds):
                return self.now - migration.began >= seconds, []
            case Checkpoint():
                return self._checkpoint(topology, migration)
            case Replace():
                return self._replaced(topology, migration)
            case HandOver(moves):
                return self._handed_over(topology, migration, moves)
            case Restart():
                return not self._missing(migration), []
        return True, []

    def _all_at(self, topology: TopologyState, revision: int) -> bool:
        """True if all workers that have tasks of the topology have carried out the revision."""
        slots = {place.slot for place in topology.places.values()}
        return all(worker.revision >= revision for slot, worker in self._master.workers.items() if slot in slots)

    def _distribute(self, migration: MigrationUnderWay) -> list[Command]:
        distribute = self._master.distribute()
        migration.revision = self._master.revision
        return [distribute]

    def _hold(self, topology: TopologyState, migration: MigrationUnderWay, held: bool) -> list[Command]:
        topology.held_back = held
        commands = self._distribute(migration)
        topology.ready_at, topology.quiet = migration.revision, {}
        return commands

    def _checkpoint(self, topology: TopologyState, migration: MigrationUnderWay) -> tuple[bool, list[Command]]:
        """True once a wave is committed that began after the step. No other begins after it."""
        waves = topology.waves
        assert waves is not None
        if waves.drains and not migration.wave and not topology.graph.exactly_once and not self._master.at_rest(topology):
            return self._too_long(topology, migration, "its tuples in flight were not processed"), []  # they would be replayed
        begun: list[Command] = []
        if not migration.wave:
            migration.wave, waves.captures = waves.wave + 1, topology.capturing
            waves.request(self.now)
            # A wave under way sweeps the whole topology, and a capture need not wait for that.
            begun = [*(self._master.drop_wave(topology) if topology.capturing else []), *self._master.begin_wave(topology)]
        if waves.committed >= migration.wave and waves.phase == IDLE:
            migration.drained = waves.drains
            waves.held, waves.captures, waves.drains = True, False, False
            return True, begun
        return self._too_long(topology, migration, "no wave was committed"), begun

    def _too_long(self, topology: TopologyState, migration: MigrationUnderWay, what: str) -> bool:
        """False; the migration fails if its step has waited too long."""
        limit = HANDOVER_PREPARE_LIMIT.of(topology.graph.config)
        if self.now - migration.since > limit:
            migration.trouble = f"{what} within {HANDOVER_PREPARE_LIMIT.key} = {limit:g}"
        return False

    def _away(self, topology: TopologyState, moves: Mapping[TaskId, int]) -> dict[TaskId, int]:
        """Those of the tasks that are elsewhere and can be handed over."""
        return {task: slot for task, slot in moves.items() if task in topology.places and topology.places[task].slot != slot
                and slot in self._master.workers and slot not in self._master.closed}

    def _handed_over(self, topology: TopologyState, migration: MigrationUnderWay,
                     moves: Mapping[TaskId, int]) -> tuple[bool, list[Command]]:
        """True once all tasks have arrived. If the migration was given up, they are handed over until they have: nothing may
        end between two placements."""
        if topology.status == STOPPING:
            return topology.handover.phase == RESTING, []
        if topology.handover.phase != RESTING or topology.handover.waiting:
            return False, []
        away = self._away(topology, moves)
        if away and migration.given_up:
            return self._return(topology, migration, away)
        if away:
            migration.trouble = migration.trouble or migration.reason or f"{tasks_named(sorted(away))} did not arrive"
        return True, []

    def _return(self, topology: TopologyState, migration: MigrationUnderWay,
                away: Mapping[TaskId, int]) -> tuple[bool, list[Command]]:
        """Try again to hand over the tasks that are away, some times and later each time; True if that was in vain."""
        if migration.tries >= MOST_TRIES:
            return True, []
        if self.now < migration.not_before:
            return False, []
        migration.tries += 1
        migration.not_before = self.now + doubled_pause(migration.tries, FIRST_PAUSE, LAST_PAUSE)
        return False, self._handovers.request(topology, away, migration.cause)

    # -- tasks that end and start again --------------------------------------------------------------------------------

    def _remove(self, topology: TopologyState, migration: MigrationUnderWay, targets: Mapping[TaskId, int]) -> list[Command]:
        """End tasks, which are to start again on these slots."""
        there = {task: slot for task, slot in targets.items() if task in topology.places}
        if not there:
            return []
        if migration.rebalance_began is None:
            migration.rebalance_began = self.now
        topology.handover.supersede(topology.plan)
        topology.version += 1
        if not migration.drained:  # tuples in flight are lost
            topology.losses += 1
        for task in there:
            del topology.places[task]
        migration.removed.update(there)
        if topology.waves is not None:
            topology.waves.held = True
        return self._distribute(migration)

    def _replace(self, topology: TopologyState, migration: MigrationUnderWay, moves: Mapping[TaskId, int],
                 restart: frozenset[int]) -> list[Command]:
        if shared := self._shared(topology, restart):  # it came meanwhile
            migration.trouble = shared
            return []
        staying = {task: place.slot for task, place in topology.places.items() if place.slot in restart}
        migration.placed = migration.started = False
        return [*self._remove(topology, migration, {**staying, **moves}), *self._restart(migration, restart)]

    def _restart(self, migration: MigrationUnderWay, slots: Collection[int]) -> list[Command]:
        workers = self._master.workers
        there = {slot: workers[slot].address.generation for slot in sorted(slots) if slot in workers}
        migration.awaited = {**{slot: migration.awaited[slot] for slot in self._missing(migration)}, **there}
        migration.restarted += [slot for slot in there if slot not in migration.restarted]
        return self._slots.restart(there)

    def _missing(self, migration: MigrationUnderWay) -> list[int]:
        """The slots whose new worker has not joined, and may still."""
        workers = self._master.workers
        return [slot for slot, generation in migration.awaited.items()
                if (slot not in workers or workers[slot].address.generation == generation) and self._slots.leaving(slot)]

    def _replaced(self, topology: TopologyState, migration: MigrationUnderWay) -> tuple[bool, list[Command]]:
        """Start the tasks once the workers are back; True once all of them work, unless others are to follow."""
        if not migration.placed:
            if self._missing(migration) or (topology.never_repeats and not self._master.all_at(migration.revision)):
                return False, []  # at most once, spouts must have reported how far they have come
            gone = sorted(task for task, slot in migration.removed.items() if slot not in self._master.workers)
            if gone and not migration.given_up:
                migration.trouble = migration.trouble or f"{workers_named(migration.removed[task] for task in gone)} for " \
                                                         f"{tasks_named(gone)} did not come back"
                return False, []
            return False, self._put(topology, migration)
        if not self._all_at(topology, migration.revision):
            return False, []
        if not migration.started:
            migration.started, migration.rebalance_ended = True, self.now
        working = topology.status in (RUNNING, PAUSED, STOPPING) and not any(topology.starting.values())
        return working or bool(migration.removed), []

    def _put(self, topology: TopologyState, migration: MigrationUnderWay) -> list[Command]:
        """Start the removed tasks that the current step wants; those whose worker is gone, wherever there is room."""
        wanted = migration.step.moves if isinstance(migration.step, Replace) else {}
        removed = {task: slot for task, slot in migration.removed.items()
                   if task in wanted or task not in migration.moves}
        for task in removed:
            del migration.removed[task]
        topology.version += 1
        for task, slot in removed.items():
            if slot in self._master.workers:
                topology.places[task] = Place(slot, topology.version)
                topology.homes[task] = slot
        migration.placed, topology.capturing = True, False
        wave = f", with the state of wave {topology.restore_point[0]}" if topology.restore_point[0] else ""
        why = f"{tasks_named(sorted(removed))} started on {workers_named(removed.values())} by {migration.strategy}{wave}"
        topology.restarts_because = why
        if topology.waves is not None:
            topology.waves.held, migration.went_back = bool(migration.removed), self.now
            if isinstance(migration.step, Replace) and migration.step.init_resend:
                topology.waves.init_cycle = migration.since, migration.step.init_resend
        commands: list[Command] = [Say(why, topology.graph.name, cause=str(migration.cause), tasks=tuple(sorted(removed)))]
        if any(task not in topology.places for task in removed):  # their worker is gone
            commands += self._master.place(topology, migration.trouble)
        elif topology.waves is not None:
            commands += self._master.roll_back(topology)
        return [*commands, *self._distribute(migration)]

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _withdraw(self, topology: TopologyState, migration: MigrationUnderWay) -> list[Command]:
        """Cancel the moves of its tasks that have not switched."""
        handover = topology.handover
        under_way = [] if handover.phase == SWITCH else [moving.task for moving in handover.batch if not moving.groups]
        return [command for task in (*handover.waiting, *under_way) if task in migration.moves
                for command in self._handovers.withdraw(topology, task, migration.trouble)]

    def _give_up(self, topology: TopologyState, migration: MigrationUnderWay) -> None:
        """Take the way to the old placement or, if tasks have ended already, to the new one."""
        migration.given_up = True
        goals = migration.sources
        if migration.rebalance_began is not None and (self._lives(migration, migration.moves.values())
                                                      or not self._lives(migration, goals.values())):
            goals = migration.moves
        topology.homes.update(goals)
        migration.removed = {task: goals.get(task, slot) for task, slot in migration.removed.items()}
        self._still(topology)
        migration.redirect([*([Replace(dict(migration.removed))] if migration.removed else []),
                            *([Release()] if topology.held_back else []), HandOver(goals)])

    def _lives(self, migration: MigrationUnderWay, slots: Collection[int]) -> bool:
        """True if all these workers are there or are expected back."""
        return {slot for slot in slots if slot not in self._master.workers} <= set(self._missing(migration))

    def _still(self, topology: TopologyState) -> None:
        """Forget the wave that the current step waits for, and let tasks process their input again."""
        topology.capturing = False
        topology.handover.cold, topology.handover.limit = False, None
        if topology.waves is not None:
            topology.waves.held = bool(topology.migration and topology.migration.removed)
            topology.waves.captures = topology.waves.drains = False
            topology.waves.init_cycle = None

    def _end(self, topology: TopologyState, migration: MigrationUnderWay) -> list[Command]:
        there = all(topology.places[task].slot == slot for task, slot in migration.moves.items() if task in topology.places)
        untouched = all(topology.places[task].slot == slot for task, slot in migration.sources.items()
                        if task in topology.places)
        self._still(topology)
        outcome = COMPLETED if there else CANCELLED if untouched and not migration.disturbed else ROLLED_BACK
        reason = migration.trouble
        seconds = self.now - migration.began
        text = f"{tasks_named(sorted(migration.moves))} " + (
            f"moved to {workers_named(migration.moves.values())} by {migration.strategy} in {seconds:.1f} s"
            if there else f"not moved by {migration.strategy}: {reason}")
        return [Say(text, topology.graph.name, "info" if there else "warning", str(migration.cause),
                    tuple(sorted(migration.moves))),
                self._record(topology, outcome, reason), *self._handovers.begin(topology), self._master.distribute()]

    def _record(self, topology: TopologyState, outcome: str, reason: str) -> Command:
        """The record of the migration, which ends now."""
        migration, topology.migration = topology.migration, None
        assert migration is not None
        handed = {move.task: move for move in migration.handed_over}
        moved = tuple(handed.get(task, TaskMove(task, source, migration.moves[task]))
                      for task, source in sorted(migration.sources.items()))
        rebalanced = None if migration.rebalance_began is None else (
            migration.rebalance_began, self.now if migration.rebalance_ended is None else migration.rebalance_ended)
        return Migrated(Migration(
            topology.graph.name, migration.strategy, str(migration.cause), outcome, reason, migration.from_version,
            topology.version, migration.began, migration.switched if rebalanced is None else rebalanced[0], self.now, moved,
            migration.in_flight, migration.parameters, tuple(migration.done), rebalanced, tuple(migration.restarted),
            migration.went_back))


