"""What all the engines' scripts share: their arguments, their verdict on the counts, and their last line.

A script measures throughput over `--lines` lines and, when `--rate` is given, the latency at that rate too.
Its last line on the standard output is one JSON object; everything an engine logs goes elsewhere or comes before.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from .job import WORDS_PER_LINE
else:
    from job import WORDS_PER_LINE


class WrongCount(RuntimeError):
    """The counts an engine ended with do not add up to the words it was sent: its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a script was asked to measure. `lines` is 0 when only the latency is wanted, `rate` 0 when it is not."""

    lines: int
    seed: int
    rate: float
    seconds: float
    # Lines in a batch, to try one after the other; empty: those that the script takes by itself, if it has batches.
    batch_lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Throughput:
    """A run at full speed: `words` in `seconds`, and what the counts summed to in the end.

    `checksum` covers everything the engine was sent, so it exceeds `words` by what was sent to warm it up.
    """

    words: int
    seconds: float
    checksum: int

    @property
    def words_per_s(self) -> float:
        return self.words / self.seconds

    def as_fields(self) -> dict[str, object]:
        return {
            "words": self.words,
            "seconds": round(self.seconds, 4),
            "words_per_s": round(self.words_per_s, 1),
            "checksum": self.checksum,
        }


@dataclass(slots=True)
class LatencyMeter:
    """Latency from the moment a line was due to the moment its counts were out, at a steady rate.

    Lines are known by their place in the input: when the counts add up to `n` words, the first `n / 10` lines
    are through. That needs no mark on the line, which would make it another job. The clock starts when a line
    is due and not when the source gets round to it, or an engine that holds up its source would look fast.
    """

    start: float
    rate: float
    # Lines due in this many seconds from the start are sent but not recorded: caches and compilers warm up.
    settle: float
    lines_done: int = 0
    _latencies: list[float] = field(default_factory=list)

    def due(self, line: int) -> float:
        return self.start + line / self.rate

    def lines_due(self, now: float) -> int:
        """How many lines are due by `now`."""
        return max(0, int((now - self.start) * self.rate) + 1)

    def counted(self, words: int, now: float) -> None:
        """Note that at `now` the counts of `words` words, in order of sending, were out."""
        through = words // WORDS_PER_LINE
        first = max(self.lines_done, int(self.settle * self.rate))
        self._latencies.extend(now - self.due(line) for line in range(first, through))
        self.lines_done = max(self.lines_done, through)

    def as_fields(self) -> dict[str, object]:
        if len(self._latencies) < 2:
            raise WrongCount(f"only {len(self._latencies)} lines came through after the first {self.settle} s")
        percentiles = statistics.quantiles(self._latencies, n=100, method="inclusive")
        return {
            "rate": self.rate,
            "p50_ms": round(percentiles[49] * 1e3, 3),
            "p99_ms": round(percentiles[98] * 1e3, 3),
        }


def parse_request(description: str, arguments: list[str] | None = None) -> Request:
    """Read a script's command line."""
    parser = argparse.ArgumentParser(description=description.strip().splitlines()[0])
    parser.add_argument("--lines", type=int, required=True, help="lines to send at full speed; 0 for none")
    parser.add_argument("--seed", type=int, required=True, help="seed of the input")
    parser.add_argument("--rate", type=float, default=0.0, help="lines a second for the latency; 0 leaves it out")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long the latency is measured")
    parser.add_argument("--batch-lines", type=int, nargs="*", default=[], help="sizes of a batch to try, in lines")
    given = parser.parse_args(arguments)
    request = Request(given.lines, given.seed, given.rate, given.seconds, tuple(given.batch_lines))
    if request.lines < 0 or request.rate < 0 or request.seconds <= 0:
        parser.error(f"--lines and --rate must not be negative and --seconds must be positive, got {request}")
    if not request.lines and not request.rate:
        parser.error("nothing to measure: give --lines, --rate or both")
    return request


def check(checksum: int, words_sent: int) -> int:
    """Return `checksum`, or raise `WrongCount` if the counts do not add up to the words sent."""
    if checksum != words_sent:
        raise WrongCount(f"the counts add up to {checksum} words, but {words_sent} were sent ({checksum - words_sent:+d})")
    return checksum


def print_result(
    engine: str,
    version: str,
    setting: str,
    throughput: Throughput | None,
    latency: LatencyMeter | None,
    trials: Sequence[dict[str, object]] = (),
) -> None:
    """Print the one line that `run` reads. `trials`: what the throughput is the best of."""
    result: dict[str, object] = {"engine": engine, "version": version, "setting": setting}
    if trials:
        result["trials"] = list(trials)
    if throughput is not None:
        result |= throughput.as_fields()
    if latency is not None:
        result |= latency.as_fields()
    print(json.dumps(result), flush=True)
