"""The cost of a wave every second: Word Count with 100,000 keys, all of them changed between two waves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.bench.other_engines.reporting import Rule
from millrace.bench.topologies import BenchCount, BenchSplit
from millrace.bench.topology_runs import end_run, resident_engine, start_run, window_rates
from millrace.config import EXACTLY_ONCE, GUARANTEE, WAVE_INTERVAL
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.sinks import Drop
from millrace.workloads.wordcount import WORDS_PER_LINE, vocabulary

KEYS = 100_000
NEVER = 1e6
WARM_UP_SECONDS = 4.0


class ManyLines(GeneratorSpout):
    """Lines with each of 100,000 words once, repeatedly."""

    outputs: ClassVar[list[str]] = ["line"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        words = vocabulary(KEYS)
        self._table = [(" ".join(words[first:first + WORDS_PER_LINE]),) for first in range(0, KEYS, WORDS_PER_LINE)]

    def generate(self, position: int) -> tuple[Any, ...]:
        return self._table[(position * self.parallelism + self.task_index) % len(self._table)]


class ManyKeys(Topology):
    lines = ManyLines.spec(par=2)
    split = BenchSplit.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = BenchCount.spec(inputs={split: Grouping.fields("word")}, par=2)
    drop = Drop.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


def measure_wave_cost(seconds: float, rounds: int, console: Console) -> dict[str, Any]:
    """Words per second without waves and with one every second, exactly-once, in turn; the best round of each, and the share
    of the throughput that the waves take."""
    rule = Rule(WARM_UP_SECONDS, seconds, 1)
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as directory, resident_engine(Path(directory)) as engine:
        for turn in range(rounds):
            for name, interval in (("without_waves", NEVER), ("wave_each_second", 1.0)):
                console.print(f"{name}, round {turn + 1} of {rounds} ...")
                config = {GUARANTEE.key: EXACTLY_ONCE, WAVE_INTERVAL.key: interval}
                running = start_run(engine, ManyKeys, config, rule.warm_up)
                best[name] = max(best.get(name, 0.0), *window_rates(running, rule))
                end_run(running)
    return {"wave_cost": round(1 - best["wave_each_second"] / best["without_waves"], 4), "words_per_s": best}
