"""What `millrace bench engines` runs beside the topologies of the other benchmarks."""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.bench.other_engines.job import vocabulary
from millrace.bench.topologies import SEED, BenchLinesArrow
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.settings import setting
from millrace.connectors.sinks import DropArrow
from millrace.workloads.wordcount import SplitArrow, TallyArrow

TABLE_WORDS = 40_960
ZIPF = 1.5
ROUNDS_OF_WORK = 300  # some 100 µs


class WordCountTallyBench(Topology):
    """In Arrow batches with the counts as keyed state, which can be spread over another number of tasks."""

    lines = BenchLinesArrow.spec(par=2)
    split = SplitArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = TallyArrow.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class TallyOnly(Topology):
    """The same without a sink: what is rescaled is the last stage, and stays it."""

    lines = BenchLinesArrow.spec(par=2)
    split = SplitArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = TallyArrow.spec(inputs={split: Grouping.fields("word")}, par=2)


class SplitAndCount(Bolt):
    """Batches of lines to the words in them, each once with its number: SQL counts before it shuffles, too."""

    outputs: ClassVar[list[str]] = ["word", "count"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        found = pc.list_flatten(pc.split_pattern(batch.column(0), " ")).value_counts()
        self.emit_arrow(pa.record_batch([found.field("values"), found.field("counts")], names=["word", "count"]))


class AddUp(Bolt):
    """The words of a batch, each once, with how often they have come by now."""

    outputs: ClassVar[list[str]] = ["word", "count"]
    counts = CounterState()

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        found = pa.Table.from_batches([batch]).group_by("word").aggregate([("count", "sum")]).combine_chunks()
        counts, keys = self.counts, found.column("word").to_pylist()
        totals = [counts[word] + n for word, n in zip(keys, found.column("count_sum").to_pylist(), strict=True)]
        counts.update(zip(keys, totals, strict=True))
        self.emit_arrow(pa.record_batch([pa.array(keys, pa.string()), pa.array(totals, pa.int64())], names=["word", "count"]))


def tally_of(lines_of_files: Any) -> type[Topology]:
    """Word Count on a streaming DataFrame of lines, so that Spark reads the input for it as it does for its own queries."""

    class TallyOfDataFrame(Topology):
        lines = Spout.from_dataframe(lines_of_files, par=2)
        split = SplitAndCount.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
        count = AddUp.spec(inputs={split: Grouping.fields("word")}, par=2)
        drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)

    return TallyOfDataFrame


class ZipfWords(GeneratorSpout):
    """Words by Zipf's law, ranked as the vocabulary is: where they hash to is left to chance."""

    outputs: ClassVar[list[str]] = ["word"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._table = [(word,) for word in zipf_words(setting(self, storm_conf, "zipf", float, ZIPF, least=0))]

    def generate(self, position: int) -> tuple[Any, ...]:
        return self._table[(position * self.parallelism + self.task_index) % TABLE_WORDS]


def zipf_words(exponent: float) -> list[str]:
    words = vocabulary()
    weights = list(itertools.accumulate(1.0 / rank**exponent for rank in range(1, len(words) + 1)))
    return random.Random(SEED).choices(words, cum_weights=weights, k=TABLE_WORDS)


class Sign(Bolt):
    """A key derivation for each word, as work that takes its time; counts them as well."""

    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        word = tup.values[0]
        hashlib.pbkdf2_hmac("sha256", word.encode(), b"salt", ROUNDS_OF_WORK)
        self.counts[word] += 1


class SkewedWork(Topology):
    words = ZipfWords.spec(par=2)
    count = Sign.spec(inputs={words: Grouping.fields("word")}, par=2)
