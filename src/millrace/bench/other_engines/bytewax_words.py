"""Bytewax on the word count: split, key, stateful count that emits every update, a sink that drops.

Setting: one worker, steps that take a whole batch (`flat_map_batch`, `stateful_batch`), 10,000 lines a batch.
With `--per-item` the steps take one item, with a Python call for every word, as most programs are written.

Tried, in millions of words a second on 2 cores, 500,000 lines, best of three:

    flat_map, key_on, stateful_map, 1,000 lines a batch       0.58  (0.38 with 100 lines)
    flat_map, key_on, stateful, 1,000                         0.71
    flat_map, key_on, stateful_batch, 1,000                   0.84
    batch steps, 1,000 / 5,000 / 10,000                       0.88 / 1.16 / 1.20
    batch steps, split and key in one step, 10,000 / 50,000   1.03 / 1.06
    batch steps, two workers, threads of one process          0.53  (one holds the interpreter lock at a time)
    batch steps, two workers, two processes                   0.47  (words are pickled between them)

Latency is measured with the lines that are due at each turn as the batch, so mostly one line at a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from itertools import chain, repeat
from typing import TYPE_CHECKING

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators import StatefulBatchLogic, StatefulLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, lines
    from .reporting import LatencyMeter, Request, Throughput, check, parse_request, print_result
else:
    from job import WORDS_PER_LINE, lines
    from reporting import LatencyMeter, Request, Throughput, check, parse_request, print_result

BATCH_LINES = 10_000
SETTLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Steps:
    """How the job is put together from Bytewax's operators."""

    engine: str
    setting: str
    count: Callable[[op.Stream[str]], op.KeyedStream[int]]


class _Lines(StatelessSourcePartition[str]):
    """All lines at full speed, a batch at a time; remembers when the first batch was asked for."""

    def __init__(self, all_lines: Sequence[str]) -> None:
        self._lines = all_lines
        self._sent = 0
        self.started: float | None = None

    def next_batch(self) -> Sequence[str]:
        if self.started is None:
            self.started = time.perf_counter()
        batch = self._lines[self._sent : self._sent + BATCH_LINES]
        if not batch:
            raise StopIteration
        self._sent += len(batch)
        return batch


class _PacedLines(StatelessSourcePartition[str]):
    """Each line as soon as it is due."""

    def __init__(self, all_lines: Sequence[str], rate: float) -> None:
        self._lines = all_lines
        self._sent = 0
        self._rate = rate
        self.meter: LatencyMeter | None = None

    def next_batch(self) -> Sequence[str]:
        now = time.perf_counter()
        if self.meter is None:
            self.meter = LatencyMeter(now, self._rate, SETTLE_SECONDS)
        if self._sent >= len(self._lines):
            raise StopIteration
        due = self.meter.lines_due(now)
        batch = self._lines[self._sent : due]
        self._sent += len(batch)
        return batch

    def next_awake(self) -> datetime | None:
        if self.meter is None:
            return None
        return datetime.now(UTC) + timedelta(seconds=self.meter.due(self._sent) - time.perf_counter())


class _Source(DynamicSource[str]):
    """Hands the one worker its partition."""

    def __init__(self, partition: StatelessSourcePartition[str]) -> None:
        self._partition = partition

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSourcePartition[str]:
        return self._partition


class _Dropping(StatelessSinkPartition[tuple[str, int]]):
    """Drops the updates, keeping the newest count of each word for the verdict at the end."""

    def __init__(self, on_batch: Callable[[int, float], None] | None) -> None:
        self._on_batch = on_batch
        self.newest: dict[str, int] = {}
        self.updates = 0
        self.ended = 0.0

    def write_batch(self, items: list[tuple[str, int]]) -> None:
        self.newest.update(items)
        self.updates += len(items)
        self.ended = time.perf_counter()
        if self._on_batch is not None:
            self._on_batch(self.updates, self.ended)


class _Sink(DynamicSink[tuple[str, int]]):
    """Hands the one worker its partition."""

    def __init__(self, partition: _Dropping) -> None:
        self._partition = partition

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Dropping:
        return self._partition


class _CountBatch(StatefulBatchLogic[None, int, int]):
    """Counts one word, all its occurrences in a batch at once: an update for each of them."""

    def __init__(self, resumed: int | None) -> None:
        self._count = resumed or 0

    def on_batch(self, values: list[None]) -> tuple[Iterable[int], bool]:
        before = self._count
        self._count = before + len(values)
        return range(before + 1, self._count + 1), StatefulBatchLogic.RETAIN

    def snapshot(self) -> int:
        return self._count


class _CountItem(StatefulLogic[str, int, int]):
    """Counts one word, an occurrence at a time."""

    def __init__(self, resumed: int | None) -> None:
        self._count = resumed or 0

    def on_item(self, value: str) -> tuple[Iterable[int], bool]:
        self._count += 1
        return (self._count,), StatefulLogic.RETAIN

    def snapshot(self) -> int:
        return self._count


def _split(batch: list[str]) -> Iterable[str]:
    return chain.from_iterable(map(str.split, batch))


def _key(words: list[str]) -> Iterable[tuple[str, None]]:
    return zip(words, repeat(None))


def _count_by_batch(stream: op.Stream[str]) -> op.KeyedStream[int]:
    words = op.flat_map_batch("split", stream, _split)
    return op.stateful_batch("count", op.flat_map_batch("key", words, _key), _CountBatch)


def _count_by_item(stream: op.Stream[str]) -> op.KeyedStream[int]:
    words = op.flat_map("split", stream, str.split)
    return op.stateful("count", op.key_on("key", words, lambda word: word), _CountItem)


BY_BATCH = Steps("bytewax", f"1 worker, operators on batches, {BATCH_LINES} lines a batch", _count_by_batch)
BY_ITEM = Steps("bytewax_per_item", f"1 worker, operators on items, {BATCH_LINES} lines a batch", _count_by_item)


def _run(steps: Steps, source: StatelessSourcePartition[str], sink: _Dropping, words_sent: int) -> int:
    """Run the flow to its end and return the verified sum of the counts."""
    flow = Dataflow("words")
    op.output("drop", steps.count(op.input("lines", flow, _Source(source))), _Sink(sink))
    # Nothing is recovered, so epochs serve no purpose here: the longer they are, the less they cost.
    run_main(flow, epoch_interval=timedelta(seconds=10))
    check(sink.updates, words_sent)
    return check(sum(sink.newest.values()), words_sent)


def measure_throughput(steps: Steps, request: Request) -> Throughput:
    source = _Lines(lines(request.seed, request.lines))
    sink = _Dropping(on_batch=None)
    words = request.lines * WORDS_PER_LINE
    checksum = _run(steps, source, sink, words)
    assert source.started is not None, "the counts are right, so the source was read"
    return Throughput(words, sink.ended - source.started, checksum)


def measure_latency(steps: Steps, request: Request) -> LatencyMeter:
    count = int(request.rate * (SETTLE_SECONDS + request.seconds))
    source = _PacedLines(lines(request.seed, count), request.rate)

    def note(words: int, now: float) -> None:
        assert source.meter is not None, "words came out, so the source was read"
        source.meter.counted(words, now)

    _run(steps, source, _Dropping(note), count * WORDS_PER_LINE)
    assert source.meter is not None, "the counts are right, so the source was read"
    return source.meter


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--per-item", action="store_true")
    given, others = own.parse_known_args()
    steps = BY_ITEM if given.per_item else BY_BATCH
    request = parse_request(__doc__ or "", others)
    throughput = measure_throughput(steps, request) if request.lines else None
    latency = measure_latency(steps, request) if request.rate else None
    print_result(steps.engine, version("bytewax"), steps.setting, throughput, latency)


if __name__ == "__main__":
    main()
