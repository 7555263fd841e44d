"""Word count, the standard benchmark of stream engines: tuple by tuple, and in Arrow batches.

The lines come from a table of 4,096 that is drawn once from the seed; line n of the stream is line n mod 4,096 of the table. So
any position can be read again by indexing, and the true counts after n lines are known without a run (`expected_counts`).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import ArrowGeneratorSpout, GeneratorSpout
from millrace.connectors.settings import setting
from millrace.connectors.sinks import Drop, DropArrow

TABLE_LINES = 4096
WORDS_PER_LINE = 10
VOCABULARY = 10_000
SEED = 1

_ONSETS = ("b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "ch", "cl", "dr", "fr", "gr",
           "pl", "qu", "sh", "sl", "sp", "st", "str", "th", "tr")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ie", "oo", "ou")
_CODAS = ("", "b", "d", "g", "k", "l", "m", "n", "p", "r", "s", "t", "ck", "ll", "nd", "ng", "nt", "rd", "sh", "ss",
          "st")


def vocabulary(n: int, seed: int = SEED) -> list[str]:
    """n different words of one to three syllables, determined by the seed."""
    rng = random.Random(f"vocabulary {seed}")
    words: dict[str, None] = {}  # a set that keeps the order
    while len(words) < n:
        syllables = rng.choice((1, 2, 2, 3))
        words["".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))] = None
    return list(words)


def table_words(seed: int = SEED, words: int = VOCABULARY, zipf: float = 0.0) -> list[list[str]]:
    """The table: 4,096 lines of 10 words; word k of the vocabulary has weight 1 / k ** zipf (0: uniform)."""
    weights = itertools.accumulate(1.0 / rank**zipf for rank in range(1, words + 1))
    drawn = random.Random(f"lines {seed}").choices(vocabulary(words, seed), cum_weights=list(weights),
                                                   k=TABLE_LINES * WORDS_PER_LINE)
    return [drawn[start:start + WORDS_PER_LINE] for start in range(0, len(drawn), WORDS_PER_LINE)]


def expected_counts(seed: int, lines: int, words: int = VOCABULARY, zipf: float = 0.0) -> Counter[str]:
    """The true counts after the first `lines` lines of the stream, for any parallelism."""
    table = table_words(seed, words, zipf)
    rounds, rest = divmod(lines, TABLE_LINES)
    counts: Counter[str] = Counter()
    if rounds:
        counts.update({word: n * rounds for word, n in Counter(itertools.chain.from_iterable(table)).items()})
    counts.update(itertools.chain.from_iterable(table[:rest]))
    return counts


class Lines(GeneratorSpout):
    """Emits lines of ten words.

    | config | meaning |
    | --- | --- |
    | `seed` | seed of the table (default 1) |
    | `words` | size of the vocabulary (default 10,000) |
    | `zipf` | exponent of Zipf's law; 0, the default, makes all words equally frequent |

    and the settings of GeneratorSpout.
    """

    outputs: ClassVar[list[str]] = ["line"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._table = [(" ".join(words),) for words in configured_table(self, storm_conf)]  # shared tuples

    def generate(self, position: int) -> tuple[Any, ...]:
        return self._table[(position * self.parallelism + self.task_index) % TABLE_LINES]


class Split(Bolt):
    """Splits a line into words."""

    outputs: ClassVar[list[str]] = ["word"]

    def process(self, tup: Tuple) -> None:
        emit = self.emit
        for word in tup.values[0].split():
            emit((word,))


class Count(Bolt):
    """Counts words in keyed state; emits every update."""

    outputs: ClassVar[list[str]] = ["word", "count"]
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        word = tup.values[0]
        self.counts[word] = count = self.counts[word] + 1
        self.emit((word, count))


class WordCount(Topology):
    """Uniform words. Set `rate`, `limit`, `seed`, `words` in the topology's config."""

    lines = Lines.spec(par=2)
    split = Split.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=1)


class ZipfWordCount(Topology):
    """Word count with the frequencies of a real text: the most frequent word is a tenth of all."""

    config: ClassVar[dict[str, Any]] = {"zipf": 1.0}
    lines = Lines.spec(par=2)
    split = Split.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=1)


class LinesArrow(ArrowGeneratorSpout):
    """Emits the lines of `Lines` in batches of `batch` (default 1,000). Config: that of Lines and ArrowGeneratorSpout."""

    outputs: ClassVar[list[str]] = ["line"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        lines = pa.array([" ".join(words) for words in configured_table(self, storm_conf)], pa.string())
        # Long enough that every batch is one slice, without copying.
        repeats = 1 + -(-self.batch // TABLE_LINES)
        self._lines = pa.concat_arrays([lines] * repeats)

    def generate_arrow(self, first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch([self._lines.slice(first % TABLE_LINES, count)], names=["line"])


class SplitArrow(Bolt):
    """Splits batches of lines into batches of words."""

    outputs: ClassVar[list[str]] = ["word"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        words = pc.list_flatten(pc.split_pattern(batch.column(0), " "))
        self.emit_arrow(pa.record_batch([words], names=["word"]))


class CountArrow(Bolt):
    """Counts words in arrays; emits for each batch its words with their new counts."""

    outputs: ClassVar[list[str]] = ["word", "count"]

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[str, int] = {}  # word -> its place in _totals, in order
        self._known: pa.Array | None = None  # the keys of _slots, as Arrow
        self._totals = np.zeros(0, np.int64)

    @property
    def counts(self) -> dict[str, int]:
        return dict(zip(self._slots, self._totals.tolist(), strict=True))

    def snapshot(self) -> Any:
        """The arrays of the task. They are not by key, so its parallelism is fixed; see TallyArrow."""
        return list(self._slots), self._totals.tolist()

    def restore(self, snapshot: Any) -> None:
        words, totals = snapshot
        self._slots = {word: slot for slot, word in enumerate(words)}
        self._known, self._totals = None, np.array(totals, np.int64)

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        words = batch.column(0)
        # For a lookup Arrow builds a hash table of the known words in every call: fine while they are few compared with the
        # batch. With a large vocabulary only the different words of the batch go through the dict.
        update = self._count_by_lookup if len(self._slots) <= len(words) else self._count_by_dictionary
        self.emit_arrow(pa.record_batch(update(words), names=["word", "count"]))

    def _count_by_lookup(self, words: pa.Array) -> list[pa.Array]:
        known = self._known_words(words.type)
        slots = pc.index_in(words, value_set=known)
        if slots.null_count:
            self._learn(words.filter(slots.is_null()).unique().to_pylist())
            known = self._known_words(words.type)
            slots = pc.index_in(words, value_set=known)
        counts = np.bincount(slots.to_numpy(), minlength=len(known))
        self._totals += counts
        changed = np.flatnonzero(counts)
        return [known.take(pa.array(changed)), pa.array(self._totals[changed])]

    def _count_by_dictionary(self, words: pa.Array) -> list[pa.Array]:
        encoded = words.dictionary_encode()
        different = encoded.dictionary.to_pylist()
        try:
            slots = np.fromiter(map(self._slots.__getitem__, different), np.int64, len(different))
        except KeyError:
            self._learn(different)
            slots = np.fromiter(map(self._slots.__getitem__, different), np.int64, len(different))
        self._totals[slots] += np.bincount(encoded.indices.to_numpy(), minlength=len(different))
        return [encoded.dictionary, pa.array(self._totals[slots])]

    def _learn(self, words: list[str]) -> None:
        for word in words:
            self._slots.setdefault(word, len(self._slots))
        self._totals = np.concatenate([self._totals, np.zeros(len(self._slots) - len(self._totals), np.int64)])

    def _known_words(self, kind: pa.DataType) -> pa.Array:
        if self._known is None or len(self._known) != len(self._slots) or self._known.type != kind:
            self._known = pa.array(list(self._slots), kind)
        return self._known


class WordCountArrow(Topology):
    """Word count in Arrow batches. Set `rate`, `limit`, `seed`, `words`, `zipf`, `batch` in the topology's config."""

    lines = LinesArrow.spec(par=2)
    split = SplitArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = CountArrow.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=1)


class TallyArrow(Bolt):
    """Counts words in keyed state, which can be redistributed over another number of tasks; emits for each batch its words with
    their new counts."""

    outputs: ClassVar[list[str]] = ["word", "count"]
    counts = CounterState()

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.emit_arrow(pa.record_batch(self.counts.add_batch(batch.column(0)), names=["word", "count"]))


class TallyArrowCount(Topology):
    """Word count in Arrow batches with the counts as keyed state. Settings: those of WordCountArrow."""

    lines = LinesArrow.spec(par=2)
    split = SplitArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = TallyArrow.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=1)


class SplitOnes(Bolt):
    """Splits a line into words, each with the number one."""

    outputs: ClassVar[list[str]] = ["word", "count"]

    def process(self, tup: Tuple) -> None:
        emit = self.emit
        for word in tup.values[0].split():
            emit((word, 1))


class Total(Bolt):
    """Adds up numbers of words in keyed state; emits every update."""

    outputs: ClassVar[list[str]] = ["word", "count"]
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        word, n = tup.values
        self.counts[word] = count = self.counts[word] + n
        self.emit((word, count))


class CombinedWordCount(Topology):
    """Word count in which each sender counts the words of a chunk before it sends them. Settings: those of WordCount."""

    lines = Lines.spec(par=2)
    split = SplitOnes.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = Total.spec(inputs={split: Grouping.fields("word", combine={"count": "sum"})}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=1)


class SplitOnesArrow(Bolt):
    """Splits batches of lines into batches of words, each with the number one."""

    outputs: ClassVar[list[str]] = ["word", "count"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        words = pc.list_flatten(pc.split_pattern(batch.column(0), " "))
        self.emit_arrow(pa.record_batch([words, pa.array(np.ones(len(words), np.int64))], names=["word", "count"]))


class TotalArrow(Bolt):
    """Adds up batches with numbers of words in keyed state; emits for each batch its words with their new counts."""

    outputs: ClassVar[list[str]] = ["word", "count"]
    counts = CounterState()

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.emit_arrow(pa.record_batch(self.counts.add_batch(batch["word"], batch["count"]), names=["word", "count"]))


class CombinedWordCountArrow(Topology):
    """Word count in Arrow batches, counted by each sender before it sends them. Settings: those of WordCountArrow."""

    lines = LinesArrow.spec(par=2)
    split = SplitOnesArrow.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = TotalArrow.spec(inputs={split: Grouping.fields("word", combine={"count": "sum"})}, par=2)
    drop = DropArrow.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=1)


def configured_table(spout: GeneratorSpout, conf: dict[str, Any]) -> list[list[str]]:
    """The table for a spout's `seed`, `words` and `zipf`."""
    return table_words(setting(spout, conf, "seed", int, SEED), setting(spout, conf, "words", int, VOCABULARY, least=1),
                       setting(spout, conf, "zipf", float, 0.0, least=0))
