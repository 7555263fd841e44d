"""Splits of a generator that go from task to task in any way: every number comes once, and those of a split in order."""

from __future__ import annotations

import logging
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.connectors.generator import GeneratorSpout
from millrace.runtime.tasks.splits import SplitHandle, Splits

Number = int
HISTORIES = st.lists(st.tuples(st.sampled_from(["read", "read", "move", "crash"]), st.integers(0, 99), st.integers(0, 99)),
                     max_size=60)


class Ordinals(GeneratorSpout):
    def generate(self, position: int) -> tuple[Number]:
        return (self.ordinal(position),)


class FakeTask:
    """The part of a task that splits use. `sent`: ids and values of all tasks, in order."""

    chunk_tuples, max_fails = 1000, 3

    def __init__(self, splits: int, sent: list[tuple[int, Number]]) -> None:
        self.definition, self._sent = SimpleNamespace(splits=splits), sent
        self.outbox: Any = SimpleNamespace(by_stream={}, emit=self._emit)

    def _emit(self, values: tuple[Number], tup_id: int, *how: Any) -> None:
        self._sent.append((tup_id, values[0]))

    def waiting(self) -> int:
        return len(self._sent)

    def report_error(self, error: BaseException, tup: Any) -> None:
        raise error


class Tasks:
    """As many tasks as there are splits, of which the first has all."""

    def __init__(self, splits: int, limit: int, burst: int, tracked: bool) -> None:
        self.splits, self.config, self.tracked = splits, {"limit": limit, "burst": burst}, tracked
        self.sent: list[tuple[int, Number]] = []
        self.owners = [0] * splits
        self.tasks = [self._task() for _ in range(splits)]
        self.tasks[0].become(range(splits), {})

    def _task(self) -> Splits:
        def make(split: int, handle: SplitHandle) -> Ordinals:
            spout = Ordinals()
            spout.storm_conf, spout.task_index, spout.parallelism = self.config, split, self.splits
            spout.tracked, spout.splits, spout._handle, spout.logger = self.tracked, self.splits, handle, logging.getLogger()
            return spout

        task: Any = FakeTask(self.splits, self.sent)
        return Splits(task, Ordinals, make)

    def ack(self, index: int) -> None:
        for tup_id in list(self.tasks[index].unacked_tuples):
            self.tasks[index].ack(tup_id)

    def move(self, split: int, target: int) -> None:
        old, new = self.tasks[self.owners[split]], self.tasks[target]
        if old is new:
            return
        old.rest([split])
        new.prepare(split)
        before = len(self.sent)
        old.next_tuple()
        assert all(tup_id % self.splits != split for tup_id, _ in self.sent[before:]), "it is read no more"
        self.ack(self.owners[split])
        assert old.settled([split])
        place = old.places([split])[split]
        new.begin(split, place.position, place.own)
        old.drop([split])
        self.owners[split] = target

    def crash(self, index: int) -> None:
        """A new incarnation begins where everything was processed."""
        positions = self.tasks[index].places()
        self.tasks[index] = self._task()
        self.tasks[index].become(positions.keys(), positions)


@given(splits=st.integers(1, 9), limit=st.integers(0, 120), burst=st.integers(1, 8), tracked=st.booleans(), history=HISTORIES)
def test_any_history_of_owners(splits: int, limit: int, burst: int, tracked: bool, history: list[tuple[str, int, int]]) -> None:
    tasks = Tasks(splits, limit, burst, tracked)
    crashed = False
    for action, one, other in history:
        if action == "read":
            tasks.tasks[one % splits].next_tuple()
            if other % 2:
                tasks.ack(one % splits)
        elif action == "move":
            tasks.move(one % splits, other % splits)
        else:
            crashed = crashed or bool(tasks.tasks[one % splits].unacked_tuples)
            tasks.crash(one % splits)
    while not all(task.exhausted for task in tasks.tasks):
        for task in tasks.tasks:
            task.next_tuple()
    assert all(number == tup_id for tup_id, number in tasks.sent), "the id is the number among those of all splits"
    numbers = [number for _, number in tasks.sent]
    assert set(numbers) == set(range(limit))
    if not crashed:
        assert len(numbers) == limit
        by_split = defaultdict[int, list[int]](list)
        for number in numbers:
            by_split[number % splits].append(number)
        assert all(each == sorted(each) for each in by_split.values())
