"""A small engine for two-phase sinks: it stages, prepares, decides and commits, crashes anywhere, and knows the rows that must
be visible.

Every row is (task, number). Numbers only rise, also after a crash, so that a row of a dead incarnation differs from the row
that replaces it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from millrace.api.sink import TwoPhaseSink
from millrace.connectors.redis import RedisSink
from millrace.connectors.sinks import JsonLinesSink
from millrace.connectors.sql import SqlSink
from millrace.connectors.staged_rows import TABLE
from millrace.errors import MillraceError

Row = namedtuple("Row", ["task", "number"])
Seen = dict[int, list[int]]


class Crash(BaseException):
    """The process ends here: no code of the project catches it."""


class Wire:
    """Counts the calls to the disk or the server, and raises instead of the one with number `at` (or after it). `fired`: it
    has raised."""

    def __init__(self, at: int | None, error: type[BaseException] = Crash) -> None:
        self.left, self.error, self.fired = at, error, False

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left, self.fired = None, True  # only once
                raise self.error("cut here")


class Target:
    """The place that a sink writes to, and a reader of its visible output."""

    ordered = True

    def __init__(self) -> None:
        self.opened: list[TwoPhaseSink] = []

    def make(self) -> tuple[type[TwoPhaseSink], dict[str, Any]]:
        raise NotImplementedError

    def rows(self, task: int, numbers: list[int]) -> list[Any]:
        return [Row(task, number) for number in numbers]

    def seen(self) -> Seen:
        """The visible numbers of each task, in order."""
        raise NotImplementedError

    def cut(self, sink: TwoPhaseSink, wire: Wire) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError

    def sink(self, task: int, parallelism: int, epoch: int, component: str = "sink") -> Any:
        """A sink as the engine starts it, before `recover`."""
        kind, config = self.make()
        sink = kind()
        sink.topology_name, sink.component_name = "a topology/with:signs", component
        sink.task_index, sink.task_id, sink.parallelism = task, task, parallelism
        sink.exactly_once, sink.epoch, sink.tracked = True, epoch, False
        sink.initialize(config, {})
        self.opened.append(sink)
        return sink

    def close(self) -> None:
        for sink in self.opened:
            sink.close()

    def wanted(self, truth: list[int]) -> list[int]:
        return truth

    def disconnect(self, sink: Any) -> None:
        """Free the sink's connections; a zombie connects again when it continues."""


def by_task(rows: Iterator[tuple[Any, Any]]) -> Seen:
    numbers: Seen = defaultdict(list)
    for task, number in rows:
        numbers[int(task)].append(int(number))
    return dict(numbers)


class Files(Target):
    CALLS = ("pwrite", "fsync", "ftruncate", "rename", "unlink")

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def make(self) -> tuple[type[TwoPhaseSink], dict[str, Any]]:
        return JsonLinesSink, {"path": str(self.directory)}

    def seen(self) -> Seen:
        return by_task((row["task"], row["number"]) for path in sorted(self.directory.glob("part-*.jsonl"))
                       for row in map(json.loads, path.read_text().splitlines()))

    @contextlib.contextmanager
    def cut(self, sink: TwoPhaseSink, wire: Wire) -> Iterator[None]:
        originals = {name: getattr(os, name) for name in self.CALLS}

        def wrapped(name: str) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                try:
                    wire.step()
                except BaseException:
                    if name == "pwrite":  # a torn write
                        originals[name](arguments[0], bytes(arguments[1])[:len(arguments[1]) // 2], arguments[2])
                    raise
                return originals[name](*arguments, **named)
            return call

        for name in self.CALLS:
            setattr(os, name, wrapped(name))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(os, name, original)


class Sql(Target):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.engine, self.made = url, sa.create_engine(url), False
        with self.engine.begin() as connection:
            for table in ("seen", TABLE):
                connection.execute(sa.text(f"drop table if exists {table}"))

    def make(self) -> tuple[type[TwoPhaseSink], dict[str, Any]]:
        return SqlSink, {"url": self.url, "table": "seen"}

    def seen(self) -> Seen:
        self.made = self.made or sa.inspect(self.engine).has_table("seen")
        if not self.made:
            return {}
        with self.engine.connect() as connection:
            return by_task(iter(connection.execute(sa.text("select task, number from seen")).all()))

    def disconnect(self, sink: Any) -> None:
        sink._engine.dispose()

    def close(self) -> None:
        super().close()
        self.engine.dispose()

    @contextlib.contextmanager
    def cut(self, sink: Any, wire: Wire) -> Iterator[None]:
        """Cuts before each statement, before each commit, and after a commit, when only its answer is lost."""
        engine, commit = sink._engine, sink._engine.dialect.do_commit

        def cut_commit(connection: Any) -> None:
            wire.step()
            commit(connection)
            wire.step()

        def before(*_: Any) -> None:
            wire.step()

        sa.event.listen(engine, "before_cursor_execute", before)
        engine.dialect.do_commit = cut_commit
        try:
            yield
        finally:
            engine.dialect.do_commit = commit
            sa.event.remove(engine, "before_cursor_execute", before)


class Redis(Target):
    def __init__(self, client: Any, url: str, mode: str) -> None:
        super().__init__()
        self.client, self.url, self.mode = client, url, mode
        self.ordered = mode in ("list", "stream")
        client.flushall()

    def make(self) -> tuple[type[TwoPhaseSink], dict[str, Any]]:
        return RedisSink, {"url": self.url, "key": "seen", "mode": self.mode}

    def rows(self, task: int, numbers: list[int]) -> list[Any]:
        if self.mode == "counter":
            return [(f"{task}:{number}", 1) for number in numbers]
        return super().rows(task, numbers)

    def seen(self) -> Seen:
        if self.mode == "list":
            rows = map(json.loads, self.client.lrange("seen", 0, -1))
            return by_task((row["task"], row["number"]) for row in rows)
        if self.mode == "stream":
            return by_task((data["task"], data["number"]) for _, data in self.client.xrange("seen"))
        fields = self.client.hgetall("seen")
        if self.mode == "hash":
            return by_task(iter(fields.items()))
        unsorted = by_task(iter(field.split(":") for field, count in fields.items() for _ in range(int(count))))
        return {task: sorted(numbers) for task, numbers in unsorted.items()}

    def wanted(self, truth: list[int]) -> list[int]:
        return truth[-1:] if self.mode == "hash" else truth

    @contextlib.contextmanager
    def cut(self, sink: TwoPhaseSink, wire: Wire) -> Iterator[None]:
        """Cuts before each request, and after its execution, when only its answer is lost."""
        from redis.connection import AbstractConnection

        send, read = AbstractConnection.send_packed_command, AbstractConnection.read_response

        def cut_send(connection: Any, *arguments: Any, **named: Any) -> Any:
            wire.step()
            return send(connection, *arguments, **named)

        def cut_read(connection: Any, *arguments: Any, **named: Any) -> Any:
            answer = read(connection, *arguments, **named)
            wire.step()
            return answer

        AbstractConnection.send_packed_command, AbstractConnection.read_response = cut_send, cut_read
        try:
            yield
        finally:
            AbstractConnection.send_packed_command, AbstractConnection.read_response = send, read


class Zombie:
    """An incarnation that is presumed dead and does not know it yet."""

    def __init__(self, sink: Any, task: int, last_commit: int, recover: tuple[int, int] | None) -> None:
        self.sink, self.task, self.last_commit, self.recover = sink, task, last_commit, recover


class Engine:
    """Runs waves over sinks. `truth` holds the rows of committed manifests, `settled` the number of them that must be visible
    by now, `fired` the operations that crashed at their cut."""

    def __init__(self, target: Target, parallelism: int = 2) -> None:
        self.target, self.parallelism = target, parallelism
        self.number = self.wave = self.epoch = 0
        self.committed = (0, 0)
        self.truth: Seen = defaultdict(list)
        self.settled: dict[int, int] = defaultdict(int)
        self.zombies: list[Zombie] = []
        self.sinks: list[Any] = []
        self.fired: Counter[str] = Counter()
        self.crash()

    def numbers(self, count: int) -> list[int]:
        self.number += count
        return list(range(self.number - count + 1, self.number + 1))

    # -- operations that succeed, or crash at step `at`----------------------------------------------------------------

    def crash(self, parallelism: int | None = None, at: int | None = None, slow: bool = False) -> None:
        """All tasks restart from the last committed wave. `slow`: the tasks of an epoch in between come up too late."""
        self.zombies += [Zombie(sink, task, self.committed[0] if self.committed[1] == self.epoch else 0, None)
                         for task, sink in enumerate(self.sinks)]
        self.parallelism = parallelism or self.parallelism
        if slow:
            self.epoch += 1
            self.zombies += [Zombie(sink, sink.task_index, 0, self.committed) for sink in self._started()]
        for zombie in self.zombies:
            self.target.disconnect(zombie.sink)
        self._begin_epoch()
        try:
            for sink in self.sinks:
                with self.target.cut(sink, Wire(at)):
                    sink.recover(*self.committed)
                self._settle(sink.task_index)
        except Crash:
            self.fired["recover"] += 1
            self.crash()
        self.check()

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.staged: Seen = defaultdict(list)  # since the last committed wave
        self.sinks = self._started()

    def _started(self) -> list[Any]:
        return [self.target.sink(task, self.parallelism, self.epoch) for task in range(self.parallelism)]

    def stage(self, task: int, count: int, at: int | None = None) -> None:
        task %= self.parallelism
        numbers = self.numbers(count)
        if self._survives("stage", task, lambda sink: sink.process_rows(self.target.rows(task, numbers)), at):
            self.staged[task] += numbers

    def run_wave(self, prepare_at: int | None = None, abandon: bool = False, commit_at: int | None = None,
                 twice: bool = False) -> None:
        self.wave += 1
        wave, taken = self.wave, {task: list(numbers) for task, numbers in self.staged.items()}
        for task in range(self.parallelism):
            at = prepare_at if task == self.parallelism - 1 else None
            if not self._survives("prepare", task, lambda sink: sink.prepare(wave), at):
                return
        self.check()
        if abandon:
            return
        for task, numbers in taken.items():
            self.truth[task] += numbers
        self.staged.clear()
        self.committed = (wave, self.epoch)
        for task in range(self.parallelism):
            at = commit_at if task == 0 else None
            if not self._survives("commit", task, lambda sink: sink.commit(wave), at):
                return
            if twice:
                self.sinks[task].commit(wave)
            self._settle(task)
        self.check()

    def _survives(self, operation: str, task: int, call: Callable[[Any], None], at: int | None) -> bool:
        try:
            with self.target.cut(self.sinks[task], Wire(at)):
                call(self.sinks[task])
            return True
        except Crash:
            self.fired[operation] += 1
            self.crash()
            return False

    def _settle(self, task: int) -> None:
        tasks = [task] if task else [0, *(other for other in self.truth if other >= self.parallelism)]
        for settled in tasks:
            self.settled[settled] = len(self.truth[settled])

    # -- zombies -----------------------------------------------------------------------------------------------------

    def haunt(self, which: int, deed: str) -> None:
        """A zombie continues. The only error it may get says that its staged rows are gone."""
        if not self.zombies:
            return
        zombie = self.zombies[which % len(self.zombies)]
        with contextlib.suppress(MillraceError):
            if zombie.recover is not None:
                recover, zombie.recover = zombie.recover, None
                zombie.sink.recover(*recover)
            elif deed == "stage":
                zombie.sink.process_rows(self.target.rows(zombie.task, self.numbers(2)))
            elif deed == "prepare":
                zombie.sink.prepare(self.wave + 1)
            elif zombie.last_commit:
                zombie.sink.commit(zombie.last_commit)
        self.target.disconnect(zombie.sink)
        self.check()

    # -- checks -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        seen = self.target.seen()
        for task in {*seen, *self.truth}:
            truth, numbers, settled = self.truth[task], seen.get(task, []), self.settled[task]
            if self.target.ordered:
                assert numbers == truth[:len(numbers)], f"task {task}"
                assert len(numbers) >= settled, f"task {task}"
            else:
                assert set(numbers) <= set(truth), f"task {task}"
                assert len(numbers) == len(set(numbers)) >= len(self.target.wanted(truth[:settled])), f"task {task}"

    def finish(self) -> None:
        """Ends every story: a wave is committed, every row is visible once, and a last restart leaves nothing staged."""
        for task in range(self.parallelism):
            self.stage(task, 1)
        self.run_wave()
        seen = self.target.seen()
        assert {task: self.target.wanted(truth) for task, truth in self.truth.items() if truth} == seen
        self.crash()
        assert self.target.seen() == seen
        assert not list(self.sinks[0].staging.staged())
