"""Hand-over: tasks of a running topology move to other workers without a stop, in batches.

    ARM      the new worker makes the new incarnation and copies its state as of the last committed wave (the stream goes on)
    REFRESH  one more wave is committed, and the new incarnation copies what is new in it (the stream goes on)
    SWITCH   places change. Each sender sends a mark down the old channel and uses the new one from then on. Behind the marks of
             all senders, the old incarnation hands over what has changed since the wave, and the new one takes over.

No wave runs during SWITCH: the state that the new incarnation starts from is that of exactly one point in the stream. A batch
never has a task together with a direct upstream of it, because the marks of one would depend on the other's.

The key groups of a spout are its splits, and nothing is sent to them. While they arm, their old owner stops reading them and
waits until everything that it has sent of them is processed; then it tells their positions, with which they switch: only the
new owner has to act then. So they need no wave, and their tuples stay in order. The other splits are read on.

A move can be cancelled until it switches; the old incarnation has not been touched until then. After that there is no way
back: if a worker is lost that takes part in it, or if it takes too long, the task counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from millrace.config import HANDOVER_PREPARE_LIMIT, HANDOVER_SWITCH_LIMIT
from millrace.control.assignment import ARM, SWITCH
from millrace.control.events import Command, Migrated, MoveArmed, MoveTaken, Say
from millrace.control.migrations import CANCELLED, COMPLETED, ROLLED_BACK, handed_over
from millrace.control.moves import (
    REFRESH,
    RESTING,
    RETURN,
    SCHEDULER,
    Cause,
    GroupId,
    Handover,
    Moving,
    Regrouping,
    Wanted,
    at_stake,
    causes_of,
    tasks_in,
)
from millrace.control.moving.acker_moves import AckerMoves, AckerTopologies
from millrace.control.moving.batch_rules import (
    changes_receivers,
    failing_with,
    in_place,
    overtook_receivers,
    publishes,
    together,
)
from millrace.control.moving.next_batch import next_batch
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING, STARTING
from millrace.control.waves import IDLE
from millrace.control.wording import groups_named, tasks_named, workers_named
from millrace.model.graph import ACKER, TaskId
from millrace.model.plan import Plan

NEWER_PLAN = "a newer plan does not move it"
OTHER_PLACE = "a newer plan moves it elsewhere"


class MovingTopologies(AckerTopologies, Protocol):
    """The part of the master's state that hand-over uses."""

    topologies: dict[str, TopologyState]

    def lose(self, topology: TopologyState, tasks: Iterable[TaskId], cause: str) -> list[Command]:
        """Place these tasks anew, as if their worker were lost."""

    def start_again(self, topology: TopologyState, tasks: Iterable[TaskId]) -> list[Command]:
        """Start these tasks again where they are, with the state of the last wave."""


class HandoverControl:
    """Carries out the moves of all topologies. Every method returns the commands to carry out. `now` is the time of the last
    event."""

    def __init__(self, master: MovingTopologies) -> None:
        self._master = master
        self._ackers = AckerMoves(master)
        self.now = 0.0

    # -- requests ------------------------------------------------------------------------------------------------------

    def request(self, topology: TopologyState, moves: Mapping[TaskId, int], cause: Cause) -> list[Command]:
        """Move these tasks as soon as possible."""
        handover = topology.handover
        ackers = {task: slot for task, slot in moves.items() if task.component == ACKER}
        for task, slot in moves.items():
            topology.homes[task] = slot
        tasks = sorted(task for task in moves if task not in ackers)
        commands = self._ackers.begin(topology, ackers, cause, self.now) if ackers else []
        if not tasks:
            return commands
        revised = any(handover.waiting.get(task, Wanted(moves[task], cause)).slot != moves[task] for task in tasks)
        handover.waiting.update((task, Wanted(moves[task], cause)) for task in tasks)
        queued = self._queued(topology, tasks_named(tasks), revised, cause, tuple(tasks))
        return [*commands, *queued, *self.begin(topology)]

    def regroup(self, topology: TopologyState, owners: Mapping[GroupId, int], cause: Cause) -> list[Command]:
        """Give key groups to other tasks of their components as soon as possible."""
        waiting = topology.handover.regrouping
        revised = any(waiting.get(group, Regrouping(owner, cause)).owner != owner for group, owner in owners.items())
        waiting.update((group, Regrouping(owner, cause)) for group, owner in owners.items())
        queued = self._queued(topology, groups_named(owners, topology.graph.splits), revised, cause, tasks_of(topology, owners))
        return [*queued, *self.begin(topology)]

    def retire(self, topology: TopologyState, tasks: Iterable[TaskId], cause: Cause) -> list[Command]:
        """End tasks for good, the last ones of their components, as soon as they own no key group and have nothing to do."""
        topology.handover.retiring.update(dict.fromkeys(tasks, cause))
        return self.begin(topology)

    def _queued(self, topology: TopologyState, what: str, revised: bool, cause: Cause,
                tasks: tuple[TaskId, ...]) -> list[Command]:
        """The report that a move has to wait for the batch that is under way. `revised`: it replaces one that waited."""
        if topology.handover.phase == RESTING:
            return []
        instead = ", to the place asked for last" if revised else ""
        return [Say(f"{what} will move after {_moves_text(topology.handover.batch)}{instead}", topology.graph.name,
                    cause=str(cause), tasks=tasks)]

    def overtake(self, topology: TopologyState, plan: Plan) -> list[Command]:
        """Drop moves of earlier plans of schedulers that wait or arm, and that this plan does not want any more."""
        handover, owners = topology.handover, topology.key_groups
        tasks = sorted(task for task, wanted in handover.waiting.items() if wanted.cause.who == SCHEDULER
                       and plan.placement[task] == topology.places[task].slot)
        groups = [(name, group) for (name, group), wanted in handover.regrouping.items() if wanted.cause.who == SCHEDULER
                  and plan.key_groups[name][group] == owners[name][group]]
        dropped = {group: handover.regrouping.pop(group).owner for group in groups}
        said = self._forget_waiting(topology, tasks, NEWER_PLAN)
        text = f"{groups_named(groups, topology.graph.splits)} not moved: {NEWER_PLAN}"
        said += [Say(text, topology.graph.name, "warning", NEWER_PLAN, tasks_of(topology, dropped))] if groups else []
        unwanted = [moving for moving in handover.batch if moving.cause.who == SCHEDULER and not moving.is_in(plan)]
        stay = [moving for moving in unwanted if moving.stays_in(plan)]
        elsewhere = [moving for moving in unwanted if moving not in stay]
        return [*said, *self._cancel(topology, stay, NEWER_PLAN), *self._cancel(topology, elsewhere, OTHER_PLACE)]

    def withdraw(self, topology: TopologyState, task: TaskId, reason: str) -> list[Command]:
        """Cancel the move of a task that has not switched yet."""
        said = self._forget_waiting(topology, [task], reason)
        moving = topology.handover.moving(task)
        if moving is None:
            return said
        return [*said, *self._cancel(topology, [moving], reason), self._master.distribute()]

    def withdraw_groups(self, topology: TopologyState, task: TaskId, reason: str) -> list[Command]:
        """Cancel the moves of key groups of this task to others that have not switched yet."""
        handover = topology.handover
        waiting, leaving = handover.groups_waiting(task, topology.key_groups), handover.groups_leaving(task)
        for group in waiting:
            del handover.regrouping[group]
        named = groups_named(waiting, topology.graph.splits)
        said = [Say(f"{named} not moved: {reason}", topology.graph.name, "warning", reason,
                    (task,))] if waiting else []
        return [*said, *self._cancel(topology, leaving, reason), *([self._master.distribute()] if leaving else [])]

    def _forget_waiting(self, topology: TopologyState, tasks: Iterable[TaskId], reason: str) -> list[Command]:
        """Let tasks that wait to be moved stay where they are."""
        waiting = topology.handover.waiting
        forgotten = {task: waiting.pop(task) for task in sorted(tasks) if task in waiting}
        for task, wanted in forgotten.items():
            if wanted.cause.who != RETURN and task in topology.places:  # its home is there nevertheless
                topology.homes[task] = topology.places[task].slot
        text = f"{tasks_named(list(forgotten))} not moved: {reason}"
        return [Say(text, topology.graph.name, "warning", reason, tuple(forgotten))] if forgotten else []

    # -- events --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Command]:
        self.now = now
        commands = self._ackers.tick(now)
        for topology in list(self._master.topologies.values()):
            handover = topology.handover
            if handover.phase == RESTING:
                commands += self.begin(topology)
            elif handover.phase == SWITCH:
                commands += self._switch_too_long(topology)
            elif topology.status not in (RUNNING, PAUSED, STARTING):
                commands += [*self._cancel(topology, handover.batch, f"the topology is {topology.status}"),
                             self._master.distribute()]
            elif now - handover.since > (limit := HANDOVER_PREPARE_LIMIT.of(topology.graph.config)):
                reason = f"{_obstacle(handover, self._stopped(topology), self._behind(topology))} within {limit:g} s"
                commands += [*self._cancel(topology, handover.batch, reason),
                             self._master.distribute()]
            else:
                commands += self._advance(topology)
        return commands

    def armed(self, event: MoveArmed) -> list[Command]:
        found = self._find(event.topology, event.epoch, event.move)
        if found is None or found[0].handover.phase == SWITCH:
            return []
        topology, moving = found
        if event.error:
            moving.trouble = event.error
            return []
        moving.copied_bytes = max(moving.copied_bytes, event.copied_bytes)
        if moving.splits:
            moving.arm_splits(event.starts)
        else:
            moving.armed = max(moving.armed, event.wave)
        return self._advance(topology)

    def taken(self, event: MoveTaken) -> list[Command]:
        found = self._find(event.topology, event.epoch, event.move)
        if found is None or found[0].handover.phase != SWITCH:
            return []
        topology, moving = found
        if event.error:
            return self._give_up(topology, [moving], event.error)
        moving.taken, moving.delta_bytes, moving.pause = True, event.delta_bytes, event.pause
        if moving.splits:  # nobody has read them since it began
            moving.pause = self.now - topology.handover.began
        moving.copied_bytes = max(moving.copied_bytes, event.copied_bytes)
        return self._done(topology) if all(each.taken for each in topology.handover.batch) else []

    def advance(self) -> list[Command]:
        """Go on with the batches that the report of a worker may have helped."""
        return [command for topology in list(self._master.topologies.values()) if topology.handover.phase in (ARM, REFRESH)
                for command in self._advance(topology)]

    def wave_committed(self, topology: TopologyState) -> list[Command]:
        """Go on from the wave just committed; after the extra wave no other begins until the batch is done."""
        if topology.handover.phase == REFRESH and topology.waves is not None:
            topology.waves.held = True
        return self._advance(topology) if topology.handover.phase in (ARM, REFRESH) else []

    def lost(self, topology: TopologyState, slot: int) -> tuple[list[TaskId], list[Command]]:
        """A worker is lost, and a new assignment follows. Returns the tasks that are lost with it although they have another
        place already, and the commands to carry out."""
        handover = topology.handover
        # A task that has retired would be placed anew, without those that retire with it: they begin again, too.
        touched = [moving for moving in handover.batch if moving.touches(slot, handover.phase == SWITCH)
                   and (moving.retires or not moving.taken)]
        said = self._forget_waiting(topology, [task for task, wanted in handover.waiting.items() if wanted.slot == slot],
                                    f"worker {slot} was lost")
        if handover.phase != SWITCH:
            return [], [*said, *self._cancel(topology, touched, f"worker {slot} was lost")]
        touched = failing_with(topology, touched)
        ends = [*self._migrated(topology, touched, ROLLED_BACK, f"worker {slot} was lost"), *self._drop(topology, touched)]
        stranded = dict.fromkeys(task for task in at_stake(touched) if topology.places[task].slot != slot)
        return list(stranded), [*said, *ends]

    def rolled_back(self, topology: TopologyState) -> list[Command]:
        """The topology returns to its last wave: the moves of tasks that begin again end. Those that have switched begin at
        their new places."""
        handover, why = topology.handover, topology.restarts_because
        ended = together(topology, [moving for moving in handover.batch if not in_place(topology, moving)])
        if not ended or handover.phase != SWITCH:
            return self._cancel(topology, ended, f"the topology rolls back: {why}")
        ends = [*self._migrated(topology, ended, ROLLED_BACK, why), *self._drop(topology, ended)]
        return [Say(f"the hand-over of {_moves_text(ended)} ends with a roll-back", topology.graph.name, "warning", why,
                    tasks_in(ended)), *ends]

    def ended(self, topology: TopologyState, how: str) -> list[Command]:
        """The records of the moves that are under way in a topology that ends."""
        batch = topology.handover.batch
        taken, cut_short = [moving for moving in batch if moving.taken], [moving for moving in batch if not moving.taken]
        return [*self._migrated(topology, taken), *self._migrated(topology, cut_short, CANCELLED, f"the topology ended: {how}"),
                *self._ackers.ended(topology.graph.name, how, self.now)]

    # -- phases --------------------------------------------------------------------------------------------------------

    def begin(self, topology: TopologyState) -> list[Command]:
        """Arm the next batch, if moves wait."""
        handover, before = topology.handover, topology.version
        if handover.phase != RESTING or topology.status not in (RUNNING, PAUSED):
            return []
        handover.batch = next_batch(topology, self._master.workers)
        if not handover.batch:
            return []
        handover.groups_next = not handover.batch[0].groups
        handover.from_version, handover.in_flight = before, sum(topology.in_flight.values())
        handover.stateful = any(topology.graph.component(moving.task.component).stateful and not moving.retires
                                and not moving.splits for moving in handover.batch)
        handover.base = topology.restore_point if handover.stateful else (0, 0, 0)
        handover.phase, handover.since, handover.began = ARM, self.now, self.now
        if topology.waves is not None and changes_receivers(handover.batch):
            topology.waves.drains = True
        return [self._master.distribute()]

    def _advance(self, topology: TopologyState) -> list[Command]:
        """Enter the next phase if the new incarnations have what they need."""
        handover, waves = topology.handover, topology.waves
        rebased = self._rebase(topology)
        for moving in handover.batch:
            if moving.retires and not self._behind(topology):  # nothing is sent to it any more
                moving.armed = 0
        if any(moving.armed < 0 for moving in handover.batch):
            return rebased
        must_publish = publishes(topology)
        if must_publish and handover.phase == ARM and waves is not None and waves.phase != IDLE:
            return rebased  # that wave may have begun while the task still got tuples
        if handover.phase == ARM and waves is not None and not handover.cold and (
                handover.base[0] or must_publish or overtook_receivers(topology)):
            handover.phase, handover.since = REFRESH, self.now
            waves.request(self.now)
        if waves is not None:
            waves.held = waves.held or handover.phase == ARM
            if not waves.held or waves.phase != IDLE:  # a wave is under way
                return rebased
            if overtook_receivers(topology):  # it had begun before the batch
                waves.held = False
                waves.request(self.now)
                return rebased
        late = any(moving.armed < handover.base[0] for moving in handover.batch)
        return rebased if late or self._stopped(topology) or self._behind(topology) else self._switch(topology)

    def _behind(self, topology: TopologyState) -> list[int]:
        """The workers of senders and of old incarnations that do not know the current incarnations yet. With the plan of the
        switch alone, a sender would never have a channel to the old incarnation, and so send no mark to it; and an old
        incarnation would never start, and so hand nothing over."""
        places, workers, revision = topology.places, self._master.workers, topology.version_sent[1]
        slots = {place.slot for moving in topology.handover.batch for place in (
            moving.old, *([moving.new] if moving.groups else []),
            *(places[task] for task in topology.graph.upstream(moving.task.component) if task in places))}
        return sorted(slot for slot in slots if slot in workers and workers[slot].revision < revision)

    def _stopped(self, topology: TopologyState) -> str:
        """The call because of which the batch could not switch now; empty if all tasks that must work for it can."""
        name, now = topology.graph.name, self.now
        workers = {slot: worker for slot, worker in self._master.workers.items() if worker.long_calls or worker.silent(now)}
        if not workers:
            return ""
        calls = [call for moving in topology.handover.batch if not moving.taken
                 for slot, tasks in moving.involved(topology.graph, topology.places).items()
                 if slot in workers and (call := workers[slot].stops(name, tasks, now)) is not None]
        return str(max(calls, key=lambda call: call.seconds)) if calls else ""

    def _rebase(self, topology: TopologyState) -> list[Command]:
        """Let the new incarnations copy the last committed wave: earlier ones may be deleted."""
        handover = topology.handover
        if not handover.stateful or handover.base == topology.restore_point:
            return []
        handover.base = topology.restore_point
        return [self._master.distribute()]

    def _switch(self, topology: TopologyState) -> list[Command]:
        handover, graph = topology.handover, topology.graph
        handover.supersede(topology.plan)
        topology.version += 1
        for moving in handover.batch:
            upstream = graph.upstream(moving.task.component)
            moving.sources = tuple((task, topology.places[task].incarnation) for task in upstream if task in topology.places)
        for moving in handover.batch:
            if moving.groups:
                owners = topology.key_groups[moving.task.component]
                topology.key_groups[moving.task.component] = tuple(
                    moving.target.index if group in moving.groups else owner for group, owner in enumerate(owners))
                for split, start in moving.starts.items():
                    topology.positions[TaskId(moving.task.component, split)] = start.position
            elif not moving.retires:
                topology.places[moving.task] = moving.new
        handover.in_flight = sum(topology.in_flight.values())
        handover.phase, handover.since, topology.quiet = SWITCH, self.now, {}
        return [self._master.distribute()]

    def _switch_too_long(self, topology: TopologyState) -> list[Command]:
        """Give up what has not switched in time. Time in which some task is in a long call does not count: user code may be
        slow, and no worker is lost."""
        handover, config = topology.handover, topology.graph.config
        limit, named = HANDOVER_SWITCH_LIMIT.of(config), HANDOVER_SWITCH_LIMIT.key
        if handover.limit is not None:
            return self._cut_short(topology) if self.now - handover.since > handover.limit else []
        if handover.cold:
            limit, named = HANDOVER_PREPARE_LIMIT.of(config), HANDOVER_PREPARE_LIMIT.key
        if reason := self._stopped(topology):
            first, handover.stopped_at = handover.stopped_at < handover.since, self.now
            text = f"the hand-over of {_moves_text(handover.batch)} waits: {reason}"
            return [Say(text, topology.graph.name, "warning", reason, tasks_in(handover.batch))] if first else []
        if self.now - max(handover.since, handover.stopped_at) <= limit:
            return []
        return self._give_up(topology, [moving for moving in handover.batch if not moving.taken],
                             f"it took longer than {named} = {limit:g}")

    def _cut_short(self, topology: TopologyState) -> list[Command]:
        """End old incarnations that have had their time: the new ones start with the state of the last wave."""
        late = [moving for moving in topology.handover.batch if not moving.taken]
        text = f"{tasks_named(tasks_in(late))} had more queued than could be processed in {topology.handover.limit:g} s"
        ends = [*self._migrated(topology, late), *self._drop(topology, late)]
        return [Say(text, topology.graph.name, "warning", causes_of(late), tasks_in(late)), *ends,
                *self._master.start_again(topology, tasks_in(late)), self._master.distribute()]

    def _done(self, topology: TopologyState) -> list[Command]:
        handover = topology.handover
        batch, seconds, ends = handover.batch, self.now - handover.began, self._migrated(topology, handover.batch)
        self._rest(topology)
        reports: list[Command] = []
        if batch and not batch[0].retires:
            pause = max(moving.pause for moving in batch)
            reports.append(Say(f"{_done_text(batch)} in {seconds:.1f} s, with a pause of {pause * 1000:.0f} ms",
                               topology.graph.name, cause=causes_of(batch), tasks=tasks_in(batch)))
        return [*reports, *ends, self._master.distribute(), *self.begin(topology)]

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _cancel(self, topology: TopologyState, moves: Iterable[Moving], reason: str) -> list[Command]:
        """Cancel moves that have not switched: their tasks stay where they are."""
        cancelled = together(topology, list(moves))
        if not cancelled or topology.handover.phase == SWITCH:
            return []
        ends = [*self._migrated(topology, cancelled, CANCELLED, reason), *self._drop(topology, cancelled)]
        for moving in cancelled:
            if not moving.groups and moving.cause.who != RETURN:  # its home is there nevertheless
                topology.homes[moving.task] = moving.old.slot
        return [Say(f"{_moves_text(cancelled)} not moved: {reason}", topology.graph.name, "warning", reason,
                    tasks_in(cancelled)), *ends]

    def _give_up(self, topology: TopologyState, moves: Iterable[Moving], reason: str) -> list[Command]:
        """Count the tasks as lost: they have left their old place, and did not arrive at the new one."""
        given_up = failing_with(topology, list(moves))
        tasks = at_stake(given_up)
        ends = [*self._migrated(topology, given_up, ROLLED_BACK, reason), *self._drop(topology, given_up)]
        text = f"{tasks_named(tasks)} lost while being moved: {reason}"
        return [Say(text, topology.graph.name, "warning", reason, tasks), *ends,
                *self._master.lose(topology, tasks, text), self._master.distribute()]

    def _drop(self, topology: TopologyState, moves: Sequence[Moving]) -> list[Command]:
        """Take moves out of the batch; it ends if that was all that it waited for."""
        handover = topology.handover
        handover.batch = [moving for moving in handover.batch if moving not in moves]
        if not all(moving.taken for moving in handover.batch):
            return []
        ends = self._migrated(topology, handover.batch)
        self._rest(topology)
        return ends

    def _migrated(self, topology: TopologyState, moves: Sequence[Moving], outcome: str = COMPLETED,
                  reason: str = "") -> list[Command]:
        """The record of these moves, which end now; called while the batch is as it was."""
        name, version = topology.graph.name, topology.version
        if not moves:
            return []
        record = handed_over(name, version, topology.handover, moves, self.now, outcome, reason)
        if topology.migration is not None:  # a step of it
            topology.migration.note_moves(record)
            return []
        if topology.scaling is not None and record.cause == str(topology.scaling.cause):
            topology.scaling.note_moves(record)
            return []
        return [Migrated(record)]

    def _rest(self, topology: TopologyState) -> None:
        retired = [moving.task for moving in topology.handover.batch if moving.retires]
        topology.handover.batch, topology.handover.phase = [], RESTING
        if retired:
            topology.remove(retired)
        if topology.waves is not None:
            topology.waves.held = topology.waves.drains = False

    def _find(self, number: int, epoch: int, move: int) -> tuple[TopologyState, Moving] | None:
        for topology in self._master.topologies.values():
            if topology.number == number and topology.epoch == epoch:
                moving = next((moving for moving in topology.handover.batch if moving.number == move), None)
                return (topology, moving) if moving is not None else None
        return None


def _obstacle(handover: Handover, stopped: str, behind: Sequence[int]) -> str:
    """The reason why a batch has not switched. `stopped`: the call that some task is in. `behind`: workers without the plan."""
    late = [moving for moving in handover.batch if moving.armed < max(0, handover.base[0])]
    trouble = next((f" ({moving.trouble})" for moving in late if moving.trouble), "")
    if late:
        return f"{tasks_named([moving.task for moving in late])} could not be prepared{trouble}"
    if behind:
        return f"{workers_named(behind)} did not carry out the plan"
    return f"{stopped}, so no switch could begin" if stopped else "no wave was committed"


def tasks_of(topology: TopologyState, owners: Mapping[GroupId, int]) -> tuple[TaskId, ...]:
    """The tasks of these key groups: whoever owns or will own them."""
    return tuple(sorted({TaskId(name, index) for (name, group), owner in owners.items()
                         for index in (topology.key_groups[name][group], owner)}))


def _moves_text(moves: Sequence[Moving]) -> str:
    tasks = tasks_named([moving.task for moving in moves if not moving.groups])
    groups = groups_named([(moving.task.component, group) for moving in moves for group in moving.groups],
                          {moving.task.component for moving in moves if moving.splits})
    return " and ".join(filter(None, (tasks, groups)))


def _done_text(moves: Sequence[Moving]) -> str:
    where = tasks_named(sorted({moving.target for moving in moves})) if moves[0].groups else \
        workers_named(moving.new.slot for moving in moves)
    return f"{_moves_text(moves)} moved to {where}"
