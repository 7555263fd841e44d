"""Runs generated topologies through random plans, and compares their rows and state with the truth."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

from millrace.control.events import Regrouped, Rescaled, WaveRequested, Withdrawn
from millrace.control.moving.plan_changes import CANCELLED_BY_PERSON
from millrace.errors import MillraceError, StoreUnreachable, TopologyError
from support.cluster import generated_parts as parts
from support.cluster.generated import KEYED, NUMBERED, Shape, disorder, rows_of, truth
from support.cluster.slow_cluster import SlowCluster
from support.cluster.wave_runs import tasks, until_wave
from support.suites.kept_state import state_of

NAME = "generated"
EXACTLY, AT_LEAST, AT_MOST = "exactly-once", "at-least-once", "at-most-once"
ON_PURPOSE = (CANCELLED_BY_PERSON, "you moved it to the worker where it already is", "is being restarted")
FLAWS = ("gaps", "repeats", "replayed", "failed", "expired", "dead_letters", "errors")


States = dict[str, dict[str, dict[Any, Any]]]  # by component, state and key


class GeneratedRun:
    """A slow cluster that runs a generated topology."""

    def __init__(self, shape: Shape, random: Random, workers: int = 5) -> None:
        parts.forget()
        self.shape = shape
        self.cluster = SlowCluster(workers, random)
        parts.Source.clock = parts.SourceArrow.clock = staticmethod(self.cluster.clock.now)
        parts.Source.wall_clock = parts.SourceArrow.wall_clock = staticmethod(self.cluster.clock.now)
        self.graph = self.cluster.submit(shape.topology())
        self.regrouped = False
        self.live: States = {}  # at the end, as `state_of`
        self.cluster.run_until(lambda: self.state.status == "running")
        self.epoch = self.state.epoch

    @property
    def state(self) -> Any:
        return self.cluster.master.topologies[NAME]

    @property
    def at_rest(self) -> bool:
        """True if nothing moves, and no component is being scaled."""
        return self.state.handover.at_rest and self.state.scaling is None

    # -- plans ---------------------------------------------------------------------------------------------------------

    def move(self, random: Random, most: int = 1) -> None:
        """Ask that random tasks move, each to a random worker."""
        everyone = sorted(self.state.places)  # with ackers
        for task in random.sample(everyone, random.randint(1, min(most, len(everyone)))):
            slot = random.choice(sorted(self.cluster.master.workers))
            with suppress(TopologyError):  # it is being moved, is there already, or the topology rolls back
                self.cluster.move(NAME, task, slot)

    def regroup(self, random: Random) -> None:
        """Ask that random key groups of a component go to other tasks of it."""
        names = sorted(name for name in self.state.key_groups if self.state.graph.component(name).par > 1)
        if names:
            name = random.choice(names)
            par, groups = self.state.graph.component(name).par, range(len(self.state.key_groups[name]))
            chosen = random.sample(groups, min(random.choice([1, 10, 60, len(groups)]), len(groups)))
            one = random.choice([None, random.randrange(par)])
            with suppress(TopologyError):
                self.cluster.tell(Regrouped(NAME, name, {
                    group: random.randrange(par) if one is None else one for group in chosen}))
                self.regrouped = True

    def scale(self, random: Random) -> None:
        """Ask that components have other numbers of tasks: those whose number does not change the rows."""
        names = [part.name for part in self.shape.parts
                 if (part.inputs or part.splits) and not any(how in NUMBERED for _, how in part.inputs)]
        if names:
            chosen = random.sample(names, min(len(names), random.choice([1, 1, 2])))
            with suppress(TopologyError):  # tasks are being moved, it has snapshot(), or fewer splits
                self.cluster.tell(Rescaled(NAME, {name: random.randint(1, 6) for name in chosen}))
                self.regrouped = True

    def act(self, random: Random, action: str) -> None:
        if action == "scale":
            self.scale(random)
        if action in ("move", "both"):
            self.move(random)
        if action == "many":
            self.move(random, self.shape.tasks)
        if action in ("regroup", "both"):
            self.regroup(random)
        if action == "cancel":
            with suppress(TopologyError):  # nothing moves, or it has switched
                self.cluster.tell(Withdrawn(NAME, random.choice(sorted(self.state.graph.tasks()))))
        if action == "restart":
            with suppress(MillraceError):  # it restarts already
                self.cluster.restart(random.choice(sorted(self.cluster.master.workers)))
        if action == "wave" and self.state.waves is not None:
            self.cluster.tell(WaveRequested(NAME))

    # -- the end -------------------------------------------------------------------------------------------------------

    def sent(self) -> bool:
        """True if every spout has sent everything and, at least once, got every ack."""
        spouts = [task for spout in self.shape.spouts for task in tasks(self.cluster, spout.name)]
        splits = sorted((task.name.component, split) for task in spouts if task.definition.splits
                        for split in task.component.parts)
        return (len(spouts) == sum(self.state.graph.component(spout.name).par for spout in self.shape.spouts)
                and splits == [(spout.name, split) for spout in self.shape.spouts for split in range(spout.splits)]
                and self.state.status == "running"
                and all(spout.component.exhausted and not spout.component.unacked_tuples for spout in spouts))

    def finish(self) -> None:
        """Run until everything is sent and processed and, exactly once, committed."""
        self.cluster.run_until(self.sent)
        if self.shape.guarantee == EXACTLY:
            until_wave(self.cluster, 1, NAME)  # by then the master has noticed every lost worker
        self.cluster.run_until(self.sent)
        received = -1
        while received < len(parts.RECEIVED):
            received = len(parts.RECEIVED)
            self.cluster.run(0.3)  # longer than anything waits for a tick or a message
        # Workers that restarted get tasks back, and must know it.
        self.cluster.run_until(lambda: self.sent() and self.at_rest and all(
            len(tasks(self.cluster, part.name)) == self.state.graph.component(part.name).par for part in self.shape.parts))
        self.live = self.live_states()
        if self.shape.guarantee == EXACTLY:
            self.cluster.stop(NAME, wait=100)
            self.cluster.run_until(lambda: NAME not in self.cluster.master.topologies)

    # -- checks --------------------------------------------------------------------------------------------------------

    def flaws(self) -> dict[str, int]:
        """Everything that counts as lost, repeated or failed, of all tasks of the plan and those that leave."""
        found: Counter[str] = Counter()
        for worker in self.cluster.workers.values():
            found["stale"] += worker.counters["stale"]
            for run in worker.topologies.values():
                for task in run.everyone():
                    found.update({name: getattr(task.meters, name) for name in FLAWS})
        for record in self.cluster.migrations.past(NAME):
            found.update({name: record[name] or 0 for name in ("lost", "replayed", "repeated")})
            found[f"outcome {record['outcome']}: {record['reason']}"] += record["outcome"] != "done" and not record[
                "reason"].endswith(ON_PURPOSE)
        found["epochs"] = self.state.epoch - self.epoch
        return {name: count for name, count in found.items() if count}

    def check_order(self) -> None:
        assert not (wrong := disorder(self.shape, parts.RECEIVED, self.regrouped)), wrong[:5]

    def check_received(self) -> None:
        """Every component has received every row once, and nothing else."""
        for name, expected in truth(self.shape).items():
            _check_rows(name, rows_of(parts.RECEIVED, name), expected)

    def check_never_short(self) -> None:
        for name, expected in truth(self.shape).items():
            missing = expected - rows_of(parts.RECEIVED, name)
            assert not missing, f"{name} misses {list(missing.items())[:5]}"

        for name, states in self.live.items():
            for key, count in Counter(self._keys(name)).items():
                assert states["counts"].get(key, 0) >= count, f"{name} has not counted every row of {key}"

    def _keys(self, name: str) -> list[str]:
        return [key for (key, _, _), count in truth(self.shape)[name].items() for _ in range(count)]

    def check_visible(self) -> None:
        """The sinks have every row once, in the order of their senders."""
        for sink in self.shape.sinks:
            _check_rows(sink.name, rows_of(parts.VISIBLE, sink.name), truth(self.shape)[sink.name])
        assert not (wrong := disorder(self.shape, parts.VISIBLE, self.regrouped, across=False)), wrong[:5]

    def live_states(self) -> States:
        """As `state_of`, of the running tasks."""
        found: States = {}
        for part in self.shape.parts:
            for task in tasks(self.cluster, part.name) if part.kind in KEYED else ():
                for name, state in task.snapshots.state.states.items():
                    entries = found.setdefault(part.name, {}).setdefault(name, {})
                    for key, value in state.copy().items():
                        assert key not in entries, f"{key} is in two tasks of {part.name}"
                        entries[key] = value
        return found

    def check_state(self) -> None:
        """State by key is that of every row once, in the tasks and, exactly once, in the store."""
        self._check_states(self.live)
        if self.shape.guarantee == EXACTLY:
            stored = state_of(self.cluster.store, self.graph)
            for name, states in self.live.items():
                assert _lasting(stored[name]) == _lasting(states), name

    def _check_states(self, states: States) -> None:
        for name, expected in truth(self.shape).items():
            kind = self.shape[name].kind
            if kind not in KEYED:
                continue
            numbers: dict[str, list[int]] = {}
            for (key, number, _), count in expected.items():
                numbers.setdefault(key, []).extend([number] * count)
            found = states[name]
            assert found["counts"] == {key: len(values) for key, values in numbers.items()}, name
            if kind is parts.KeyedBatching:
                continue
            assert {key: sorted(values) for key, values in found["recent"].items()} == {
                key: sorted(values) for key, values in numbers.items()}, name
            lasts = {key: values[-1] for key, values in found["recent"].items() if values[-1] % 5}
            assert found["expiring"] == lasts and found["state"] == {key: {"last": last} for key, last in lasts.items()}, name


def _check_rows(name: str, got: Counter[Any], expected: Counter[Any]) -> None:
    short, long = expected - got, got - expected
    assert not short and not long, f"{name} misses {list(short.items())[:5]}, has too many {list(long.items())[:5]}"


def _lasting(states: dict[str, dict[Any, Any]]) -> dict[str, dict[Any, Any]]:
    """Without entries that expire: those of a past clock have."""
    return {name: entries for name, entries in states.items() if name != "expiring"}


FAULTS = ("kill", "kill unnoticed", "start", "stand still", "go on", "deaf", "hear", "store fails", "store hangs",
          "store works", "messages lost", "messages twice")


class Faults:
    """Random faults of a run, until they are mended."""

    def __init__(self, run: GeneratedRun, random: Random) -> None:
        self.cluster, self._random = run.cluster, random
        self._slots = sorted(run.cluster.workers)
        self._chance = {"lost": 0.0, "twice": 0.0}  # of a message between workers
        self._post = self.cluster.post
        self.cluster.post = self._unreliable  # type: ignore[method-assign]

    def act(self, fault: str) -> None:
        cluster, slot = self.cluster, self._random.choice(self._slots)
        if fault.startswith("kill") and slot in cluster.workers and len(cluster.workers) > 1:
            cluster.kill(slot, noticed=fault == "kill")
        elif fault == "start" and slot not in cluster.workers:
            cluster.start(slot)
        elif fault == "stand still" and slot in cluster.workers:
            cluster.still.add(slot)
        elif fault == "go on":
            cluster.still.discard(slot)
        elif fault == "deaf":
            cluster.cut_off.add(slot)
        elif fault == "hear":
            cluster.cut_off.discard(slot)
        elif fault.startswith("store"):
            cluster.store_hangs = fault == "store hangs"
            cluster.store.broken = StoreUnreachable("the test's store is away") if fault == "store fails" else None
        elif fault.startswith("messages"):
            self._chance[fault.split()[1]] = 0.02
            cluster.step(self._random.randrange(30))
            self._chance[fault.split()[1]] = 0.0

    def _unreliable(self, sender: int, address: Any, frames: list[bytes]) -> None:
        draw, chance = self._random.random, self._chance
        if chance["lost"] and draw() < chance["lost"]:
            return
        for _ in range(2 if chance["twice"] and draw() < chance["twice"] else 1):
            self._post(sender, address, list(frames))

    def mend(self) -> None:
        cluster = self.cluster
        cluster.still.clear()
        cluster.cut_off.clear()
        cluster.store_hangs, cluster.store.broken = False, None
        cluster.post = self._post  # type: ignore[method-assign]
        for slot in self._slots:
            if slot not in cluster.workers:
                cluster.start(slot)
