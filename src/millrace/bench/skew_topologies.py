"""Skewed keys: words by Zipf's law, with work for each of them."""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.bench.other_engines.job import vocabulary
from millrace.bench.topologies import BENCH_SEED
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.settings import setting

TABLE_WORDS = 40_960
ZIPF = 1.5
ROUNDS_OF_WORK = 300  # some 100 µs


class ZipfWords(GeneratorSpout):
    """Words by Zipf's law, ranked as the vocabulary is: which task they hash to is left to chance."""

    outputs: ClassVar[list[str]] = ["word"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._table = [(word,) for word in zipf_words(setting(self, storm_conf, "zipf", float, ZIPF, least=0))]

    def generate(self, position: int) -> tuple[Any, ...]:
        return self._table[(position * self.parallelism + self.task_index) % TABLE_WORDS]


def zipf_words(exponent: float) -> list[str]:
    words = vocabulary()
    weights = list(itertools.accumulate(1.0 / rank**exponent for rank in range(1, len(words) + 1)))
    return random.Random(BENCH_SEED).choices(words, cum_weights=weights, k=TABLE_WORDS)


class Sign(Bolt):
    """Derives a key from each word, as work that takes its time; counts the words as well."""

    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        word = tup.values[0]
        hashlib.pbkdf2_hmac("sha256", word.encode(), b"salt", ROUNDS_OF_WORK)
        self.counts[word] += 1


class SkewedWork(Topology):
    words = ZipfWords.spec(par=2)
    count = Sign.spec(inputs={words: Grouping.fields("word")}, par=2)
