"""Bytewax on the word count: split, key, stateful count that emits every update, a sink that drops.

One worker; more of them are not measured. The steps take a whole batch (`flat_map_batch`, `stateful_batch`); with `--per-item`
they take one item, with a Python call for every word, as most programs are written. With `--checkpoint-seconds` its recovery
store is used, and an epoch ends that often.

In a latency run a batch is the lines that are due, so mostly one line at a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic, StatefulLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE, Corpus
    from .reporting import LatencyMeter, RunRequest, WindowMeter, check_counts, parse_request, print_result
else:
    from job import WORDS_PER_LINE, Corpus
    from reporting import LatencyMeter, RunRequest, WindowMeter, check_counts, parse_request, print_result

NEVER = timedelta(seconds=10)  # an epoch when nothing is recovered: the longer, the less it costs


@dataclass(frozen=True, slots=True)
class Steps:
    """The job in Bytewax's operators."""

    engine: str
    setting: str
    count: Callable[[op.Stream[str]], op.KeyedStream[int]]


class _CorpusLines(StatefulSourcePartition[str, int]):
    """All lines at full speed, a batch at a time, until every window is measured."""

    def __init__(self, request: RunRequest, first: int) -> None:
        self._lines = Corpus.at(request.corpus).lines(first=first)
        self._request = request
        self.meter: WindowMeter | None = None
        self.sent = first

    def next_batch(self) -> Iterable[str]:
        if self.meter is None:
            self.meter = WindowMeter(self._request.rule, time.perf_counter())
        if self.meter.done:
            raise StopIteration
        self.sent += self._request.batch_lines
        return list(islice(self._lines, self._request.batch_lines))

    def counted(self, words: int, now: float) -> None:
        assert self.meter is not None, "words came out, so the source was read"
        self.meter.note(words, now)

    def snapshot(self) -> int:
        return self.sent


class _PacedLines(StatefulSourcePartition[str, int]):
    """Each line as soon as it is due."""

    def __init__(self, request: RunRequest, first: int) -> None:
        self._lines = Corpus.at(request.corpus).lines(first=first)
        self._request = request
        self.meter: LatencyMeter | None = None
        self.sent = first

    def next_batch(self) -> Iterable[str]:
        now = time.perf_counter()
        if self.meter is None:
            self.meter = LatencyMeter(now, self._request.rate, self._request.rule.warm_up)
        if self.sent >= self._request.paced_lines:
            raise StopIteration
        due = min(self.meter.lines_due(now), self._request.paced_lines)
        batch = list(islice(self._lines, due - self.sent))
        self.sent = due
        return batch

    def next_awake(self) -> datetime | None:
        if self.meter is None:
            return None
        return datetime.now(UTC) + timedelta(seconds=self.meter.due(self.sent) - time.perf_counter())

    def counted(self, words: int, now: float) -> None:
        assert self.meter is not None, "words came out, so the source was read"
        self.meter.counted(words, now)

    def snapshot(self) -> int:
        return self.sent


class _Source(FixedPartitionedSource[str, int]):
    """One partition, made by the one worker; recovery would make it again from its snapshot."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self.partition: _CorpusLines | _PacedLines | None = None

    def list_parts(self) -> list[str]:
        return ["all"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> _CorpusLines | _PacedLines:
        self.partition = (_PacedLines if self._request.rate else _CorpusLines)(self._request, resume_state or 0)
        return self.partition


class _Dropping(StatelessSinkPartition[tuple[str, int]]):
    """Drops the updates and counts them."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._updates = 0

    def write_batch(self, items: list[tuple[str, int]]) -> None:
        assert self._source.partition is not None, "words came out, so the source was made"
        self._updates += len(items)
        self._source.partition.counted(self._updates, time.perf_counter())


class _Sink(DynamicSink[tuple[str, int]]):
    """Gives the one worker its partition."""

    def __init__(self, source: _Source) -> None:
        self._source = source

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Dropping:
        return _Dropping(self._source)


_by_batch: list[_CountBatch] = []  # the state of every word, read when the run has ended
_by_item: list[_CountItem] = []


class _CountBatch(StatefulBatchLogic[str, int, int]):
    """Counts one word, all its occurrences in a batch at once, with an update for each."""

    def __init__(self, resumed: int | None) -> None:
        self.count = resumed or 0
        self.word = ""
        _by_batch.append(self)

    def on_batch(self, values: list[str]) -> tuple[Iterable[int], bool]:
        before = self.count
        if not before:
            self.word = values[0]
        self.count = before + len(values)
        return range(before + 1, self.count + 1), StatefulBatchLogic.RETAIN

    def snapshot(self) -> int:
        return self.count


class _CountItem(StatefulLogic[str, int, int]):
    """Counts one word, one occurrence at a time."""

    def __init__(self, resumed: int | None) -> None:
        self.count = resumed or 0
        self.word = ""
        _by_item.append(self)

    def on_item(self, value: str) -> tuple[Iterable[int], bool]:
        self.word = value
        self.count += 1
        return (self.count,), StatefulLogic.RETAIN

    def snapshot(self) -> int:
        return self.count


def _split(batch: list[str]) -> Iterable[str]:
    return chain.from_iterable(map(str.split, batch))


def _key(words: list[str]) -> Iterable[tuple[str, str]]:
    return zip(words, words)


def _count_by_batch(stream: op.Stream[str]) -> op.KeyedStream[int]:
    words = op.flat_map_batch("split", stream, _split)
    return op.stateful_batch("count", op.flat_map_batch("key", words, _key), _CountBatch)


def _count_by_item(stream: op.Stream[str]) -> op.KeyedStream[int]:
    words = op.flat_map("split", stream, str.split)
    return op.stateful("count", op.key_on("key", words, lambda word: word), _CountItem)


BY_BATCH = Steps("bytewax", "1 worker, operators on batches", _count_by_batch)
BY_ITEM = Steps("bytewax_per_item", "1 worker, operators on items", _count_by_item)


def measure(steps: Steps, request: RunRequest, recovery: Path) -> tuple[dict[str, object], dict[str, object]]:
    """Run the flow to its end. Returns the figures and the result of the check."""
    source = _Source(request)
    flow = Dataflow("words")
    op.output("drop", steps.count(op.input("lines", flow, source)), _Sink(source))
    if request.checkpoint_seconds:
        init_db_dir(recovery, 1)
        run_main(flow, epoch_interval=timedelta(seconds=request.checkpoint_seconds), recovery_config=RecoveryConfig(recovery))
    else:
        run_main(flow, epoch_interval=NEVER)
    partition = source.partition
    assert partition is not None and partition.meter is not None, "the flow has ended, so the source was read"
    counts = {state.word: state.count for state in _by_batch} | {state.word: state.count for state in _by_item}
    checked = check_counts(counts, Corpus.at(request.corpus).counts([partition.sent]))
    assert sum(counts.values()) == partition.sent * WORDS_PER_LINE
    return partition.meter.as_fields(), checked


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--per-item", action="store_true")
    options, others = parser.parse_known_args()
    steps = BY_ITEM if options.per_item else BY_BATCH
    request = parse_request(__doc__ or "", others)
    with TemporaryDirectory(prefix="recovery-", dir=request.corpus.parent) as recovery:
        figures, checked = measure(steps, request, Path(recovery))
    setting = f"{steps.setting}, {request.batch_lines:,} lines a batch"
    print_result(steps.engine, version("bytewax"), setting, figures, checked)


if __name__ == "__main__":
    main()
