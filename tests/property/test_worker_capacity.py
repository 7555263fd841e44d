"""The control of the number of workers, driven by every possible sequence of loads, losses and answers on a virtual clock."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from millrace.control.scheduling.capacity import (
    FIRST_PAUSE,
    Add,
    AutoWorkers,
    GiveBack,
    Shortage,
    Stay,
    WorkerCapacity,
    WorkerSeen,
    Workforce,
    shortage_of,
)
from support.examples import examples

LOADS = st.sampled_from([0.0, 0.1, 0.4, 0.5, 0.7, 1.0])


class CapacityStory(RuleBasedStateMachine):
    """`workers` and `starting` are the cluster; the times of changes and failures are recorded independently of the decider."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next_slot = 0
        self.workers: dict[int, WorkerSeen] = {}
        self.starting: set[int] = set()
        self.loaded_at: dict[int, float] = {}  # slot -> last time at which it had much to do, or joined
        self.request: Add | GiveBack | None = None
        self.overload: Shortage | None = None
        self.changed: tuple[float, type] = (float("-inf"), Add)
        self.failures = {Add: 0, GiveBack: 0}
        self.failed_at = {Add: float("-inf"), GiveBack: float("-inf")}
        self.unused: set[int] = set()  # slots that were added for tasks and have had none

    @initialize(low=st.integers(1, 3), more=st.integers(0, 3), workers=st.integers(1, 6), idle=st.sampled_from([0.0, 5.0]),
                cool_down=st.sampled_from([0.0, 20.0]), share=st.sampled_from([0.0, 0.5]))
    def begin(self, low: int, more: int, workers: int, idle: float, cool_down: float, share: float) -> None:
        self.limits = AutoWorkers(low, low + more, idle, cool_down, share)
        self.capacity = WorkerCapacity(self.limits)
        for _ in range(workers):
            self.join(self.new_slot())

    def new_slot(self) -> int:
        self.next_slot += 1
        return self.next_slot - 1

    def join(self, slot: int) -> None:
        self.workers[slot] = WorkerSeen(slot, f"e{slot // 2}")
        self.loaded_at[slot] = self.now
        self.look(0.0, "a worker joins")  # the decider sees every change; nothing may follow from it yet

    def quiet(self, slot: int) -> bool:
        worker = self.workers[slot]
        return worker.tasks == 0 or worker.load <= self.limits.share > 0

    # -- the world -----------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 3.0, 5.0, 20.0, 60.0]), after=LOADS)
    def time_passes(self, seconds: float, after: float) -> None:
        self.now += seconds
        self.look(after, "")

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), tasks=st.integers(0, 3), load=LOADS, heaviest=LOADS, stays=st.sampled_from(["", "", "", "a task"]))
    def load_changes(self, data: st.DataObject, tasks: int, load: float, heaviest: float, stays: str) -> None:
        slot = data.draw(st.sampled_from(sorted(self.workers)))
        stays = stays if tasks else ""
        self.workers[slot] = replace(self.workers[slot], tasks=tasks, load=load, heaviest=heaviest, stays=stays)
        if not self.quiet(slot):
            self.loaded_at[slot] = self.now
        self.unused -= {slot} if tasks else set()
        self.look(0.0, "a move")

    @rule(overloaded=st.booleans(), moves=st.booleans(), grows=st.booleans())
    def a_window_ends(self, overloaded: bool, moves: bool, grows: bool) -> None:
        """By the load of the workers. Only a scheduler or elasticity brings tasks to a new one."""
        nodes = {"host": 0.95 if overloaded else 0.1}
        self.overload = shortage_of(list(self.workers.values()), nodes, 0.9, moves=moves, grows=grows)
        assert self.overload is not None or not overloaded
        self.capacity.window(self.overload)

    @precondition(lambda self: len(self.workers) > 1)
    @rule(data=st.data())
    def a_worker_is_lost(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.workers)))
        if isinstance(self.request, GiveBack) and self.request.slot == slot:
            return
        del self.workers[slot]
        self.starting.add(slot)
        self.look(0.0, "it is lost")

    @precondition(lambda self: self.starting)
    @rule()
    def a_worker_is_back(self) -> None:
        self.join(self.starting.pop())

    # -- decisions -----------------------------------------------------------------------------------------------------

    @rule(after=LOADS, under_way=st.sampled_from(["", "", "", "a move"]), unplaced=st.sampled_from([None, None, None, 2]))
    def decide(self, after: float, under_way: str, unplaced: int | None) -> None:
        self.look(after, under_way, Shortage(unplaced, "no slot") if unplaced else None)

    def look(self, after: float, under_way: str, unplaced: Shortage | None = None) -> None:
        seen = Workforce(list(self.workers.values()), lambda slot: after, len(self.starting), under_way, unplaced)
        decision = self.capacity.decide(self.now, seen)
        if isinstance(decision, Stay):
            return
        assert self.request is None, "one request at a time"
        assert not under_way, "nothing while something else changes"
        assert decision.reason
        kind = type(decision)
        changed_at, changed_by = self.changed
        assert self.now - changed_at >= self.limits.cool_down, f"{kind} too soon after {changed_by}"
        if self.failures[kind]:
            pause = max(FIRST_PAUSE, self.limits.cool_down) * 2.0 ** (self.failures[kind] - 1)
            assert self.now - self.failed_at[kind] >= pause, "requests that fail come less and less often"
        if isinstance(decision, Add):
            assert decision.count >= 1 and seen.count + decision.count <= self.limits.max
            assert decision.for_tasks == (seen.count >= self.limits.min)
            if decision.for_tasks and unplaced is None:
                assert self.overload is not None and not self.overload.useless, "someone would use it"
        else:
            self.check_given_back(decision, seen, after)
        self.request = decision

    def check_given_back(self, decision: GiveBack, seen: Workforce, after: float) -> None:
        worker = self.workers[decision.slot]
        assert not worker.stays and len(seen.workers) > 1 and seen.count > self.limits.min
        if seen.count > self.limits.max:
            return
        assert not self.starting
        assert self.quiet(decision.slot) and self.now - self.loaded_at[decision.slot] >= self.limits.idle
        assert not worker.tasks or after <= self.limits.share, "its tasks fit elsewhere"
        idle = [other for other in self.workers.values() if not other.tasks and not other.stays
                and self.now - self.loaded_at[other.slot] > self.limits.idle]
        assert not worker.tasks or not idle, "those without tasks go first"

    @precondition(lambda self: self.request is not None)
    @rule(works=st.booleans())
    def the_request_ends(self, works: bool) -> None:
        request, self.request = self.request, None
        kind = type(request)
        if not works:
            self.capacity.failed(self.now)
            self.failures[kind], self.failed_at[kind] = self.failures[kind] + 1, self.now
            return
        self.failures[kind], self.changed = 0, (self.now, kind)
        if isinstance(request, Add):
            slots = [self.new_slot() for _ in range(request.count)]
            self.unused |= set(slots) if request.for_tasks else set()
            for slot in slots:
                self.join(slot)
            self.capacity.added(self.now, slots)
        else:
            del self.workers[request.slot]
            self.capacity.given_back(self.now)
            if request.slot in self.unused:  # it was of no use: the next one must wait, and ever longer
                self.unused.discard(request.slot)
                self.failures[Add], self.failed_at[Add] = self.failures[Add] + 1, self.now


TestCapacity = CapacityStory.TestCase
TestCapacity.settings = settings(max_examples=examples(100), stateful_step_count=60, deadline=None)
