"""Arguments, measuring rules, checks and output that the scripts of all engines share.

A script measures throughput, or with `--rate` the latency at that rate. Its last line on the standard output is one JSON
object; anything an engine logs goes elsewhere or comes before. The same meters measure Millrace.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE
else:
    from job import WORDS_PER_LINE

_SHOWN = 3


class WrongCount(RuntimeError):
    """The counts of an engine differ from independently computed ones, so its figures are invalid."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule by which every engine is measured: `warm_up` seconds unmeasured, then `rounds` windows of `seconds` each."""

    warm_up: float
    seconds: float
    rounds: int


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run of one engine. `rate` 0: at full speed. `checkpoint_seconds` 0: nothing is checkpointed."""

    corpus: Path
    rule: Rule
    batch_lines: int
    rate: float = 0.0
    checkpoint_seconds: float = 0.0

    @property
    def paced_lines(self) -> int:
        """The lines of a latency run."""
        return int(self.rate * (self.rule.warm_up + self.rule.seconds * self.rule.rounds))


class WindowMeter:
    """Cuts a run at full speed into the windows of its rule. Each engine notes how many words it has counted so far, as often
    as it can; a window ends with the first note after its time, so batches are never cut in two."""

    def __init__(self, rule: Rule, start: float) -> None:
        self._rule = rule
        self._next = start + rule.warm_up
        self._marks: list[tuple[float, int]] = []

    def note(self, words: int, now: float) -> None:
        """Note that `words` words are counted at `now`."""
        if now >= self._next and not self.done:
            self._marks.append((now, words))
            self._next = now + self._rule.seconds

    @property
    def done(self) -> bool:
        return len(self._marks) > self._rule.rounds

    @property
    def rates(self) -> list[float]:
        """Words per second in each window."""
        return [round((words - words_before) / (now - before), 1)
                for (before, words_before), (now, words) in zip(self._marks, self._marks[1:])]

    def as_fields(self) -> dict[str, object]:
        return throughput_fields(self.rates, self._rule)


def throughput_fields(rates: list[float], rule: Rule) -> dict[str, object]:
    """The result of a run at full speed: every window's rate, and the best."""
    if len(rates) != rule.rounds:
        raise WrongCount(f"only {len(rates)} of {rule.rounds} windows were measured before the run ended")
    return {"words_per_s": max(rates), "windows": rates}


@dataclass(slots=True)
class LatencyMeter:
    """Latency from the moment a line was due to the moment its counts were at the sink, at a steady rate.

    Lines are identified by their place in the input: when the sink has had `n` words, the first `n / 10` lines are delivered.
    The clock starts when a line is due and not when the source gets round to it, or an engine that holds up its source would
    look fast. Lines that are due during the first `settle` seconds are sent but not recorded.
    """

    start: float
    rate: float
    settle: float
    lines_done: int = 0
    _latencies: list[float] = field(default_factory=list)

    def due(self, line: int) -> float:
        return self.start + line / self.rate

    def lines_due(self, now: float) -> int:
        """Return how many lines are due by `now`."""
        return max(0, int((now - self.start) * self.rate) + 1)

    def counted(self, words: int, now: float) -> None:
        """Note that at `now` the sink has had the counts of `words` words."""
        through = words // WORDS_PER_LINE
        first = max(self.lines_done, int(self.settle * self.rate))
        self._latencies.extend(now - self.due(line) for line in range(first, through))
        self.lines_done = max(self.lines_done, through)

    def as_fields(self) -> dict[str, object]:
        return latency_fields(self._latencies, self.rate)


def latency_fields(latencies: list[float], rate: float) -> dict[str, object]:
    """The result of a latency run."""
    if len(latencies) < 2:
        raise WrongCount(f"only {len(latencies)} lines came through after the warm-up")
    percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
    return {
        "rate": rate,
        "lines_measured": len(latencies),
        "p50_ms": round(percentiles[49] * 1e3, 3),
        "p99_ms": round(percentiles[98] * 1e3, 3),
    }


def parse_request(description: str, arguments: list[str] | None = None) -> RunRequest:
    """Read a script's command line."""
    parser = argparse.ArgumentParser(description=description.strip().splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="directory of the files to read")
    parser.add_argument("--warm-up", type=float, required=True, help="seconds before anything is measured")
    parser.add_argument("--seconds", type=float, required=True, help="length of a window")
    parser.add_argument("--rounds", type=int, required=True, help="number of windows")
    parser.add_argument("--batch-lines", type=int, required=True, help="lines in a batch of the engine")
    parser.add_argument("--rate", type=float, default=0.0, help="measure latency at this many lines per second")
    parser.add_argument("--checkpoint-seconds", type=float, default=0.0, help="checkpoint this often; 0: never")
    options = parser.parse_args(arguments)
    if min(options.seconds, options.rounds, options.batch_lines) <= 0 or min(options.warm_up, options.rate) < 0:
        parser.error(f"--seconds, --rounds and --batch-lines must be positive, --warm-up and --rate not negative: {options}")
    rule = Rule(options.warm_up, options.seconds, options.rounds)
    return RunRequest(options.corpus, rule, options.batch_lines, options.rate, options.checkpoint_seconds)


def check_counts(counts: Mapping[str, int], truth: Mapping[str, int]) -> dict[str, object]:
    """Compare an engine's counts with independently computed ones, word by word; raise `WrongCount` if any differs."""
    if not truth:
        raise WrongCount("no word was counted")
    wrong = sorted(word for word in counts.keys() | truth.keys() if counts.get(word, 0) != truth.get(word, 0))
    if wrong:
        examples = ", ".join(f"{word} {counts.get(word, 0)} instead of {truth.get(word, 0)}" for word in wrong[:_SHOWN])
        raise WrongCount(f"{len(wrong)} of {len(truth)} words are counted wrong: {examples}")
    return {"checked_words": sum(truth.values()), "checked_counts": len(truth)}


def print_result(engine: str, version: str, setting: str, *fields: Mapping[str, object]) -> None:
    """Print the one line that `run` reads."""
    result: dict[str, object] = {"engine": engine, "version": version, "setting": setting}
    for part in fields:
        result |= part
    print(json.dumps(result), flush=True)
