"""Moves in which every task has a worker of its own, and in which the messages of a hand-over can be caught on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.events import Regrouped
from millrace.model.graph import ACKER, TaskId
from millrace.runtime.wire import messages as wire
from support.cluster.wave_parts import AtLeast, Exact, FakeLedger, Numbers, Tally
from support.cluster.wave_runs import assert_exact, finish, finish_at_least, start, tasks, until_wave

STATE, MOVE, END, START, LANE, ARMED, TAKEN = "state", "move", "end", "start", "lane", "armed", "taken"
BETWEEN_WORKERS = (STATE, MOVE, END, START)  # a move of key groups has lanes, too
OLD, NEW, UPSTREAM, DOWNSTREAM = "old", "new", "upstream", "downstream"
ROLES = (OLD, NEW, UPSTREAM, DOWNSTREAM)
TASK, GROUPS = "task", "groups"
TALLY = TaskId("tally", 0)


class Short(Topology):
    """Exactly once: spouts, a bolt with every kind of state, and a sink."""

    config: ClassVar[dict[str, Any]] = {**Exact.config, "topology.handover.switch.secs": 3.0}
    numbers = Numbers.spec(par=2)
    tally = Tally.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


class ShortAtLeast(Topology):
    """The same, at least once."""

    config: ClassVar[dict[str, Any]] = {**AtLeast.config, "topology.handover.switch.secs": 3.0}
    numbers = Numbers.spec(par=2)
    tally = Tally.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


def kind_of(frames: list[bytes]) -> str:
    """The kind of a message between workers, if it belongs to a hand-over."""
    message = wire.decode_data(frames[0])
    if isinstance(message, wire.StatePart):
        return STATE
    if not isinstance(message, wire.Chunk):
        return ""
    if message.form == wire.HANDOVER:
        return {wire.MOVE: MOVE, wire.END: END, wire.START: START}[wire.decode_handover(frames[1]).kind]
    return LANE if message.lane else ""


class WatchedMove:
    """A cluster whose first tally, or half of its key groups, can be moved. `name`: that of the topology."""

    def __init__(self, topology: Any, what: str, limit: int, **config: Any) -> None:
        self.name, self._topology, self._what, self.limit = topology.__name__.lower(), topology, what, limit
        self.cluster = start(topology, workers=8, limit=limit, **{"rate": 800.0, **config})
        until_wave(self.cluster, 1, self.name)
        self.state = self.cluster.master.topologies[self.name]
        self.epoch = self.state.epoch
        where = self.cluster.where(self.name)
        self.spare = min(set(range(8)) - {slot for task, slot in where.items() if task.component != ACKER})
        self.slots = {OLD: where[TALLY], UPSTREAM: where[TaskId("numbers", 0)], DOWNSTREAM: where[TaskId("ledger", 0)],
                      NEW: self.spare if what == TASK else where[TaskId("tally", 1)]}
        assert len(set(self.slots.values())) == 4, "each of them has a worker of its own"
        self._post = self.cluster.post
        self.kept: list[tuple[int, Any, list[bytes]]] = []

    def move(self) -> None:
        if self._what == TASK:
            self.cluster.move(self.name, TALLY, self.spare)
            return
        owned = [group for group, owner in enumerate(self.state.key_groups["tally"]) if owner == 0]
        self.cluster.tell(Regrouped(self.name, "tally", dict.fromkeys(owned[::2], 1)))

    @property
    def at_rest(self) -> bool:
        return bool(self.state.handover.at_rest)

    def end(self) -> None:
        """Let the stream end. Exactly once, its output must be exact; at least once, never short."""
        if issubclass(self._topology, Short):
            finish(self.cluster, self.name)
            assert_exact(self.limit, 1)
        else:
            finish_at_least(self.cluster, self.limit, self.name)

    def failures(self) -> list[Any]:
        """The records of moves that were not done."""
        return [record for record in self.cluster.migrations.past(self.name) if record["outcome"] != "done"]

    def until_message(self, kind: str) -> None:
        """Run until the first message of this kind is on its way, and keep it, with all behind it. One to the master is lost.
        While the state is kept, too, there is something to send in a lane."""
        behind: set[tuple[int, int]] = set()
        seen: list[Any] = []

        def post(sender: int, address: Any, frames: list[bytes]) -> None:
            pair = sender, address.slot
            found = kind_of(frames)
            if found == kind:
                seen.append(frames)
            if pair in behind or (found == kind and len(seen) == 1) or (found == STATE and kind == LANE):
                behind.add(pair)
                self.kept.append((sender, address, frames))
            else:
                self._post(sender, address, frames)

        def lose(message: Any) -> bool:
            chosen = not seen and isinstance(message, wire.Armed if kind == ARMED else wire.Taken)
            seen.extend([message] if chosen else [])
            return chosen

        self.cluster.post = post  # type: ignore[method-assign]
        if kind in (ARMED, TAKEN):
            self.cluster.lose = lose
        self.cluster.run_until(lambda: bool(seen), seconds=2.0)
        assert not any(spout.component.exhausted for spout in tasks(self.cluster, "numbers")), "the stream runs"

    def release(self) -> None:
        """Let the messages that were kept arrive."""
        self.cluster.post = self._post  # type: ignore[method-assign]
        for message in self.kept:
            self._post(*message)
        self.kept = []

    def each_message(self, kind: str, pass_on: Callable[[Callable[[], None]], None]) -> list[bytes]:
        """Call `pass_on` with the sending of each message of this kind. Returns the list of those that came by."""
        seen: list[bytes] = []

        def post(sender: int, address: Any, frames: list[bytes]) -> None:
            if kind_of(frames) != kind:
                self._post(sender, address, frames)
                return
            seen.append(frames[0])
            pass_on(lambda: self._post(sender, address, list(frames)))

        self.cluster.post = post  # type: ignore[method-assign]
        return seen

    def slow_state(self, kind: str) -> None:
        """Let the state be a while on its way if the messages of interest are those in lanes: else there would be none."""
        if kind != LANE:
            return
        post, kept = self.cluster.post, list[Any]()

        def slow(sender: int, address: Any, frames: list[bytes]) -> None:
            if kind_of(frames) == STATE:
                kept.append((self.cluster.clock.now() + 0.05, (sender, address, frames)))
            else:
                post(sender, address, frames)
            while kept and kept[0][0] <= self.cluster.clock.now():
                post(*kept.pop(0)[1])

        self.cluster.post = slow  # type: ignore[method-assign]
