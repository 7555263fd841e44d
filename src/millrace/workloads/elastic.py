"""Topologies for changes of parallelism: a load pattern, a service without state, a count by key, and sinks that prove it.

Latency depends on waiting and not on computing, so more instances help on any machine. The truth is computed from the settings
of the load alone, and the number that each tuple has among those of its key proves the state and the order.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.load import LoadSpout
from millrace.connectors.patterns import Pattern
from millrace.connectors.shifting_keys import ShiftingKeys
from millrace.workloads.audit import RECORD, AuditResult, AuditSink, compare_records
from millrace.workloads.services import CountService, ServiceBolt

_pack = struct.Struct("<HQHI").pack
_WAVE = re.compile(r"-w(\d+)-")  # in the name of a sink's file, in an exactly-once topology

# A chunk has one tuple, so that a task sends a tuple on before it begins with the next: latency is that of a queue of tuples.
# Channels are twice as wide as usual, since tasks that are busy for 90 % of the time and take as irregular times as these have
# little to spare for waiting until one of their receivers has room.
LOAD_CONFIG: dict[str, Any] = {"pattern": "constant", "rate": 100.0, "topology.chunk.tuples": 1, "topology.channel.window": 64,
                               "topology.channel.secs": 1.0,
                               "path": str(Path(tempfile.gettempdir()) / "millrace-elastic")}


class LoadSink(AuditSink):
    """Writes 16 bytes for each tuple: task, position, key and count. Keys above 65,535 do not fit. Settings: see
    PartFileSink."""

    def encode(self, rows: list[Any]) -> bytes:
        return b"".join([_pack(task, position, key, count) for task, position, key, _, count in rows])


class ElasticLoad(Topology):
    """Load → service, by shuffle → count by key → sink. Tuples may overtake each other in the service; from the count on, those
    of a key keep their order."""

    config: ClassVar[dict[str, Any]] = LOAD_CONFIG
    load = LoadSpout.spec(par=1)
    service = ServiceBolt.spec(inputs={load: Grouping.SHUFFLE}, par=2)
    count = CountService.spec(inputs={service: Grouping.fields("key")}, par=2)
    sink = LoadSink.spec(inputs={count: Grouping.fields("key")}, par=1)


class OrderedElasticLoad(Topology):
    """The same with a service that is grouped by key, so that the tuples of a key keep their order from the source on."""

    config: ClassVar[dict[str, Any]] = LOAD_CONFIG
    load = LoadSpout.spec(par=1)
    service = ServiceBolt.spec(inputs={load: Grouping.fields("key")}, par=2)
    count = CountService.spec(inputs={service: Grouping.fields("key")}, par=2)
    sink = LoadSink.spec(inputs={count: Grouping.fields("key")}, par=1)


@dataclass(frozen=True, slots=True)
class LoadAudit:
    """The sinks' records compared with the load. `rows`: each tuple by itself. `wrong_counts`: keys whose tuples do not have
    exactly the counts 1, 2, 3 and so on. `disordered`: tuples that came after one with a higher count of the same key.
    `overtaken`: tuples that came after a later one of the same source task and key, in an ordered topology."""

    rows: AuditResult
    wrong_counts: int
    disordered: int
    overtaken: int = 0

    @property
    def exact(self) -> bool:
        """True if every tuple is there once, and counts and order are right."""
        return self.rows.exact and not (self.wrong_counts or self.disordered or self.overtaken)


def true_keys(pattern: Pattern, keys: ShiftingKeys, tuples: int) -> np.ndarray:
    """The key of each tuple of the load."""
    return np.array([keys.key_of(number, pattern.time_of(number)) for number in range(tuples)], np.int64)


def audit_load(directory: str | Path, expected: Mapping[int, int], pattern: Pattern, keys: ShiftingKeys,
               ordered: bool = False) -> LoadAudit:
    """Checks all part files in `directory`. `expected`: the number of positions that each task of the spout, by index, has
    sent. `ordered`: the topology keeps the order of a key from the source on."""
    tasks = len(expected)
    sent = np.concatenate([np.zeros(0, np.int64),
                           *(np.arange(positions) * tasks + task for task, positions in expected.items())])
    truth = true_keys(pattern, keys, int(sent.max(initial=-1)) + 1)

    def places(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        number = records["position"] * np.uint64(tasks) + records["task"]
        known = (records["task"] < tasks) & (number < len(truth))
        is_true = known & (truth[np.where(known, number, 0).astype(np.int64)] == records["index"]) if len(truth) else known
        return is_true, np.zeros(len(records), np.int64)

    records = arrived(Path(directory))
    return LoadAudit(compare_records(directory, expected, 1, places), wrong_counts(records, truth[sent]),
                     disordered(records), overtaken(records) if ordered else 0)


def arrived(directory: Path) -> np.ndarray:
    """The records of all sinks: those of each file in the order of their arrival, and those of earlier waves first."""
    def turn(path: Path) -> tuple[int, int]:
        wave = _WAVE.search(path.name)
        return int(wave[1]) if wave else 0, path.stat().st_mtime_ns

    parts = [np.fromfile(path, RECORD) for path in sorted(directory.glob(f"part-*{LoadSink.suffix}"), key=turn)]
    return np.concatenate(parts) if parts else np.zeros(0, RECORD)


def wrong_counts(records: np.ndarray, truth: np.ndarray) -> int:
    """Keys whose tuples do not have exactly the counts from 1 to their number. `truth`: the key of each tuple."""
    return sum(not np.array_equal(np.sort(records["crc"][records["index"] == key]), np.arange(1, number + 1))
               for key, number in zip(*np.unique(truth, return_counts=True)))


def disordered(records: np.ndarray) -> int:
    """Tuples with a lower count than one of the same key that came before."""
    return _falls(records["index"].astype(np.int64), records["crc"].astype(np.int64))


def overtaken(records: np.ndarray) -> int:
    """Tuples with a lower position than one of the same source task and key that came before."""
    source = records["task"].astype(np.int64) << 16 | records["index"]
    return _falls(source, records["position"].astype(np.int64))


def _falls(groups: np.ndarray, values: np.ndarray) -> int:
    """Values that are below the one before them in their group."""
    order = np.argsort(groups, kind="stable")
    same, rise = np.diff(groups[order]) == 0, np.diff(values[order])
    return int(np.count_nonzero(same & (rise < 0)))
