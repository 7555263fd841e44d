"""What `millrace bench engines` runs beside the topologies of the other benchmarks."""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import Any, ClassVar

from millrace.api.component import Bolt, Spout, Tuple
from millrace.api.grouping import Grouping, stable_hash
from millrace.api.state import CounterState
from millrace.api.topology import Topology
from millrace.bench.rivals.job import vocabulary
from millrace.bench.topologies import SEED, BenchLinesArrow
from millrace.config import KEY_GROUP_COUNT
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.settings import setting
from millrace.connectors.sinks import DropArrow
from millrace.workloads.wordcount import SplitArrow, TallyArrow

TABLE_WORDS = 40_960
ZIPF = 0.8
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


def tally_of(lines_of_files: Any) -> type[Topology]:
    """The same on a streaming DataFrame of lines, so that Spark reads the input for it as it does for its own queries."""

    class TallyOfFrame(Topology):
        lines = Spout.from_dataframe(lines_of_files, par=2)
        split = SplitArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
        count = TallyArrow.spec(inputs={split: Grouping.fields("word")}, par=2)
        drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)

    return TallyOfFrame


class SkewedWords(GeneratorSpout):
    """Words by Zipf's law, those in the first key groups the most frequent ones: as key groups are shared out at first, one
    task of two gets five sixths of the words, and no key group alone more than a quarter."""

    outputs: ClassVar[list[str]] = ["word"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._table = [(word,) for word in skewed_words(setting(self, storm_conf, "zipf", float, ZIPF, least=0))]

    def generate(self, position: int) -> tuple[Any, ...]:
        return self._table[(position * self.parallelism + self.task_index) % TABLE_WORDS]


def skewed_words(zipf: float) -> list[str]:
    ranked = sorted(vocabulary(), key=lambda word: stable_hash(word) % int(KEY_GROUP_COUNT.default))
    weights = list(itertools.accumulate(1.0 / rank**zipf for rank in range(1, len(ranked) + 1)))
    return random.Random(SEED).choices(ranked, cum_weights=weights, k=TABLE_WORDS)


class Sign(Bolt):
    """A key derivation for each word, as work that takes its time; counts them as well."""

    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        word = tup.values[0]
        hashlib.pbkdf2_hmac("sha256", word.encode(), b"salt", ROUNDS_OF_WORK)
        self.counts[word] += 1


class SkewedWork(Topology):
    words = SkewedWords.spec(par=2)
    sign = Sign.spec(inputs={words: Grouping.fields("word")}, par=2)
