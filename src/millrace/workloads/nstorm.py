"""The topologies of the N-Storm experiments, with the paper's numbers of tasks: Word Count, plain and with heavy computations.

The paper sends sentences by remote calls from clients; here two spouts generate them. The sink writes audit files.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.grouping import Grouping, stable_hash
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.config import KEY_GROUP_COUNT
from millrace.connectors.settings import setting
from millrace.workloads.audit import AuditSink, NumberedLines, SplitNumbered, TallyNumbered
from millrace.workloads.services import HARMONIC_TERMS, harmonic_number
from millrace.workloads.wordcount import SEED

NSTORM_NODES, NSTORM_WORKERS = 2, 8  # four workers on each node
LINES_PER_SHIFT = 10_000
HEAVY_SHARE = 4  # a quarter of the key groups has heavy computations

_PATH = {"path": str(Path(tempfile.gettempdir()) / "millrace-nstorm")}


class NStormWordCount(Topology):
    """The communication-intensive Word Count: 12 tasks split, 24 tasks count."""

    config: ClassVar[dict[str, Any]] = _PATH
    lines = NumberedLines.spec(par=2)
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=12)
    count = TallyNumbered.spec(inputs={split: Grouping.fields("word")}, par=24)
    sink = AuditSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class HarmonicSplit(SplitNumbered):
    """Splits lines, and computes a harmonic number for those in a quarter of the key groups. Which quarter it is changes at
    random, so that the load of the tasks shifts.

    | config | meaning |
    | --- | --- |
    | `terms` | terms of the harmonic number (default 2,000) |
    | `lines_per_shift` | lines of a spout task after which another quarter is heavy (default 10,000) |
    | `seed` | seed of the shifts, and of the lines (default 1) |
    """

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._terms: int = setting(self, storm_conf, "terms", int, HARMONIC_TERMS, least=1)
        self._lines_per_shift: int = setting(self, storm_conf, "lines_per_shift", int, LINES_PER_SHIFT, least=1)
        self._seed: int = setting(self, storm_conf, "seed", int, SEED)
        self._shift, self._first_heavy = -1, 0

    def process(self, tup: Tuple) -> None:
        if self.is_heavy(tup.values.position, tup.values.line):
            harmonic_number(self._terms)
        super().process(tup)

    def is_heavy(self, position: int, line: str) -> bool:
        shift, groups = position // self._lines_per_shift, KEY_GROUP_COUNT.default
        if shift != self._shift:
            self._shift = shift
            self._first_heavy = random.Random(f"shift {self._seed} {shift}").randrange(groups)
        return (stable_hash(line) - self._first_heavy) % groups < groups // HEAVY_SHARE


class HarmonicWordCount(Topology):
    """The computation-intensive Word Count: the same tasks, with lines grouped by their text."""

    config: ClassVar[dict[str, Any]] = _PATH
    lines = NumberedLines.spec(par=2)
    split = HarmonicSplit.spec(inputs={lines: Grouping.fields("line")}, par=12)
    count = TallyNumbered.spec(inputs={split: Grouping.fields("word")}, par=24)
    sink = AuditSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)
